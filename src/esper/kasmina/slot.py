"""A slot: the permanent hook on one submodule of the host, and the seed behind it."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, TypeVar
from weakref import ReferenceType

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_map_only

from esper.kasmina.blueprints import Blueprint, Site
from esper.kasmina.replicas import whole
from esper.kasmina.seed import Seed, drop_non_finite_gradient, isolate
from esper.kasmina.stage_machine import Count, Facts, GrowthRules, Life, LivingSlot, Ramp, Share
from esper.kasmina.tree import Seat, bare_parameters
from esper.leyline import BlueprintCard, Stage, Style

if TYPE_CHECKING:
    from esper.kasmina.model import GrowingModel

_Tree = TypeVar("_Tree")
_LIFE = tuple(field.name for field in fields(Life) if field.name != "rules")
_MEASURED = (
    *("contribution", "weighed", "probe", "gradient_norm", "gradient_health"),
    *("reported_gradients_finite", "remembered_gradients_finite"),
)


class SlotRecord(BaseModel):
    """The state of one slot, but for tensors: its life, what grows there and what was measured of it.

    A rollback in memory and a saved model hold the same record; read from a file, it is checked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    blueprint: Annotated[str, Field(min_length=1)] | None
    stage: Stage
    fading: bool
    age: Count
    epochs_in_stage: Count
    births: Count
    alpha: Share
    alpha_target: Share | None
    style: Style | None
    tempo: Count
    ramp: Ramp | None
    contribution: float | None
    weighed: bool = False
    probe: float | None = None
    gradient_norm: float | None = None
    gradient_health: float | None = None
    reported_gradients_finite: bool | None
    remembered_gradients_finite: bool | None
    non_finite: tuple[bool, bool]
    """As in `Slot.non_finite`."""

    @model_validator(mode="after")
    def _is_a_life(self) -> "SlotRecord":
        grown = self.stage.is_live or self.stage is Stage.FOSSILIZED
        blended = grown and self.stage is not Stage.TRAINING
        checks = {
            "a seed is there exactly in the stages that have one": (self.blueprint is not None) == grown,
            "a seed has a style, an alpha target and a birth": not grown
            or (self.style is not None and self.alpha_target is not None and self.births > 0),
            "alpha is 0 before blending and without a seed": blended or self.alpha == 0.0,
            "a ramp belongs to BLENDING": (self.ramp is not None) == (self.stage is Stage.BLENDING),
            "only a BLENDING seed fades": not self.fading or self.stage is Stage.BLENDING,
        }
        for rule, holds in checks.items():
            if not holds:
                raise ValueError(rule)
        return self

    def at_rest(self, non_finite: tuple[bool, bool]) -> "SlotRecord":
        """The record of a slot that was restored from this one and has these flags, and no gradients to look at."""
        seen = self.reported_gradients_finite
        if seen is None:
            seen = False if any(non_finite) else self.remembered_gradients_finite
        remembered = seen if self.stage.is_live else None
        return self.model_copy(update={"non_finite": non_finite, "remembered_gradients_finite": remembered})


@dataclass
class IsolationPenalty:
    """The weight of a TRAINING seed's penalty, in the units of the loss that is being backpropagated."""

    weight: float
    scaler: GradScaler | None = None

    def in_loss_units(self, device: torch.device) -> Tensor | float:
        """The weight, scaled as the loss is scaled."""
        if self.scaler is None or not self.scaler.is_enabled():
            return self.weight
        return self.scaler.scale(torch.full((), self.weight, device=device))

    def __getstate__(self) -> dict[str, object]:
        return {"weight": self.weight, "scaler": None}  # a copied model is not in the middle of a loss


class Slot(LivingSlot):
    """One place where the host can grow.

    It holds no tensor but two flags: the seed is in the host's tree. A copy of the host has a copy of the slot.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        seat: Seat,
        blueprints: tuple[Blueprint, ...],
        rules: GrowthRules,
        penalty: IsolationPenalty,
        *,
        like: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.name, self.layout, self.channels = name, site.layout, site.channels
        self.seat = seat
        """Where the seed sits in the host's tree."""
        self.blueprints = {blueprint.name: blueprint for blueprint in blueprints}
        self.life = Life(rules)
        self.owner: ReferenceType[GrowingModel] | None = None
        """The growing model it is a slot of; None in a copy of the host alone."""
        self.reported_gradients_finite: bool | None = None
        self.remembered_gradients_finite: bool | None = None
        """What `.grad` showed when the model was saved; gradients themselves are not."""
        self.guards_gradients = True
        """Whether the seed's NaN are kept out of its gradients here; False where the training loop does it."""
        self.penalty = penalty
        self.maximizes = False
        """Whether the optimiser ascends, and the penalty has to be taken off what is backpropagated."""
        self.alpha_override: Tensor | float | None = None
        """An alpha per sample (batch,), or one for all, for the forwards to come, whatever the stage."""
        self.site = site
        self.dtype = dtype
        """Of the activation in the example forward."""
        self._flags, self._like = torch.zeros(2, dtype=torch.bool, device=device), like
        self.hook = self._module.register_forward_hook(self._grow, with_kwargs=True)
        """The handle of the forward hook."""

    def hook_again(self) -> None:
        """Hook a copy of the submodule that came without hooks, as copies of fx graphs do."""
        if self.hook.id not in self._module._forward_hooks:
            self.hook = self._module.register_forward_hook(self._grow, with_kwargs=True)

    # What can be seen

    @property
    def _module(self) -> nn.Module:
        assert self.site.module is not None
        return self.site.module

    @property
    def seed(self) -> Seed | None:
        """What grows here."""
        found = self.seat.occupant()
        assert found is None or isinstance(found, Seed)
        return found

    @seed.setter
    def seed(self, seed: Seed | None) -> None:
        self.seat.put(seed)

    @property
    def non_finite(self) -> Tensor:
        """Whether a delta was not finite: (since the last optimiser step, between the last tick and that step)."""
        seed = self.seed
        return self._flags if seed is None else seed.non_finite

    @non_finite.setter
    def non_finite(self, flags: Tensor) -> None:
        self._flags = flags
        if self.seed is not None:
            self.seed.non_finite = flags

    @property
    def prefix(self) -> str:
        """Where the seed's parameters are found in the growing model."""
        return f"host.{self.seat.path}"

    @property
    def alpha(self) -> float:
        """How strongly the seed is mixed in now, 0..1."""
        return self.life.alpha

    @property
    def parameter_count(self) -> int:
        """Parameters of the seed and its gate; 0 without a seed."""
        return 0 if self.seed is None else self.seed.parameter_count

    @property
    def card_index(self) -> int:
        """The place of the seed's blueprint in `cards`; -1 without a seed."""
        return -1 if self.seed is None else self._places[self.seed.blueprint_name]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.blueprints)}

    @cached_property
    def cards(self) -> tuple[BlueprintCard, ...]:
        """The blueprints offered here with what each would cost."""
        return tuple(
            BlueprintCard(name, blueprint.kind, blueprint.body_parameters(self.site) + self.channels)
            for name, blueprint in self.blueprints.items()
        )

    # What may be done

    def facts(self, *, free_places: int) -> Facts:
        """What legality depends on. Flags on the device are read only where an operation depends on them."""
        facts = super().facts(free_places=free_places)
        if facts.stage is Stage.HOLDING:
            return facts._replace(finite=not self.broken())
        if facts.stage is Stage.TRAINING and facts.trained:
            return facts._replace(gradients_finite=self.gradients_finite())
        return facts

    def gradients_finite(self) -> bool | None:
        """As reported for this epoch; else what `.grad` shows; None if neither says anything."""
        if self.reported_gradients_finite is not None:
            return self.reported_gradients_finite
        if self.seed is None:
            return None
        if self.broken():
            return False
        gradients = [p.grad for p in self.seed.parameters() if p.grad is not None]
        if not gradients:
            return self.remembered_gradients_finite
        return bool(torch.isfinite(whole(torch.stack(torch._foreach_norm(gradients)))).all())

    def broken(self) -> bool:
        """Whether an output or gradient of the seed was not finite in this epoch, unless a report denies it."""
        return not self.reported_gradients_finite and bool(self.non_finite.any())

    # What happens to it

    def placement(self) -> tuple[torch.device, torch.dtype]:
        """Where a new seed's parameters belong: beside the submodule's own, or those of what is around it."""
        for parameter in bare_parameters(self._like):
            if parameter.is_floating_point():
                return parameter.device, parameter.dtype
        return self.non_finite.device, self.dtype

    def plant(self, seed: Seed) -> None:
        """Put a seed in the slot; nothing is known of it yet."""
        self._flags = seed.non_finite = self.non_finite.to(seed.scale.device)
        self._flags.zero_()
        if self.guards_gradients:
            seed.guard_gradients()
        self.seed, self.contribution = seed, None
        self.forget_epoch()

    def clear(self) -> None:
        """Take the seed out, and forget what was known of it."""
        self._flags = self.non_finite
        self.seed = self.contribution = None
        self.forget_epoch()

    def forget_epoch(self) -> None:
        """What is known of an epoch ends with it."""
        self.reported_gradients_finite = self.remembered_gradients_finite = None
        self.probe = self.gradient_norm = self.gradient_health = None
        self.weighed = False

    def record(
        self, *, non_finite: tuple[bool, bool] = (False, False), epoch_begins: bool = False
    ) -> SlotRecord:
        """The slot's state, but for the seed and `non_finite`, which is on the device: the caller copies both.

        epoch_begins  whether the gradients that are there belong to the epoch before: they are not looked at, which
                      would wait for the device
        """
        life = {name: copy(getattr(self.life, name)) for name in _LIFE}
        known = {name: getattr(self, name) for name in _MEASURED}
        # .grad is not kept, what it showed is
        looked_at = self.stage.is_live and not epoch_begins
        known["remembered_gradients_finite"] = self.gradients_finite() if looked_at else None
        blueprint = None if self.seed is None else self.seed.blueprint_name
        return SlotRecord(blueprint=blueprint, non_finite=non_finite, **life, **known)

    def restore(self, record: SlotRecord, rules: GrowthRules) -> None:
        """Bring life and measurements back to what was recorded; the caller has put the seed in its place."""
        self.life = Life(
            rules, **{name: copy(getattr(record, name)) for name in _LIFE}
        )  # a ramp goes on by itself
        for name in _MEASURED:
            setattr(self, name, getattr(record, name))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "owner": None}  # a copied growing model claims its slots itself

    def __repr__(self) -> str:
        seen = self.snapshot()
        growing = "" if seen.blueprint is None else f" {seen.blueprint} alpha={seen.alpha:.3g}"
        return f"Slot({self.name!r}, {self.layout} x {seen.channels}, {seen.stage.name}{growing})"

    def take_step_flag(self) -> Tensor:
        """Whether a delta since the last optimiser step was not finite; begins the next step's record."""
        flags = self.non_finite
        if flags.device.type == "cpu" and not flags[0]:
            return flags[0]
        flag = flags[0].clone()
        flags[1].logical_or_(flag)
        flags[0].zero_()
        return flag

    def take_epoch_flag(self) -> bool:
        """Whether any delta since the last tick was not finite; begins the next epoch's record."""
        flag = self.broken()  # a report that denies it spares reading the device
        self.non_finite.zero_()
        return flag

    def sync_seed(self) -> None:
        """Tell the seed what its life says: its alpha, and whether it is part of the host."""
        if self.seed is not None:
            self.seed.alpha.fill_(self.life.alpha)
            self.seed.part_of_host = self.stage is Stage.FOSSILIZED

    # The forward

    def _grow(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> object:
        """The hook: the submodule's output, grown. None leaves it as it is."""
        del module
        seed, life = self.seed, self.life
        if seed is None:
            return None
        form = self.site.form
        if not form.fits(output):
            raise RuntimeError(
                f"slot {self.name!r} returned a {type(output).__name__}, in the example {form}: it must not vary"
            )
        h = form.pick(output)
        override = self.alpha_override
        if override is not None:
            if isinstance(override, float) and override == 0.0:
                return None
            alpha = override if isinstance(override, float) else self._by_row(override, h)
            grown = h + alpha * self._guarded_delta(seed, h, args, kwargs)
        elif life.stage is Stage.TRAINING:
            if torch.is_grad_enabled():
                grown = self._isolated(seed, h, args, kwargs)
            elif self.owner is not None:
                return None
            else:  # the stage of a copy stands still, alpha is what an average of the model is given
                grown = h + seed.alpha * self._guarded_delta(seed, h, args, kwargs)
        elif life.stage is Stage.FOSSILIZED:
            grown = h + seed.alpha * seed(h, args, kwargs)[0]
        else:
            grown = h + seed.alpha * self._guarded_delta(seed, h, args, kwargs)
        return form.put_back(output, grown)

    def _isolated(
        self, seed: Seed, h: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Tensor:
        """The host's output, untouched; the seed learns from the gradient that passes."""
        args, kwargs = _map_tensors(Tensor.detach, (args, kwargs))
        delta, finite = seed(h.detach(), args, kwargs)
        seed.note(finite)
        penalty = self.penalty.in_loss_units(h.device)
        return isolate(h, delta, -penalty if self.maximizes else penalty)

    def _guarded_delta(
        self, seed: Seed, h: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Tensor:
        """delta with the samples where it is not finite set to zero, in the forward and in the gradient."""
        if seed.reads_input:
            args, kwargs = _map_tensors(drop_non_finite_gradient, (args, kwargs))
        delta: Tensor
        finite: Tensor | None
        delta, finite = seed(drop_non_finite_gradient(h), args, kwargs)
        if self.alpha_override is None:
            seed.note(finite)
        if finite is None:
            return delta
        return torch.where(finite, delta, 0.0)

    def _by_row(self, alphas: Tensor, h: Tensor) -> Tensor:
        """(sample,) -> one alpha per entry of h's batch axis, ready to broadcast."""
        if not self.site.samples_in_order:
            raise ValueError(
                f"slot {self.name!r} does not keep the samples in order: give one alpha for all of them, a float"
            )
        axis = self.layout.batch_axis
        rows, samples = h.shape[axis], alphas.shape[0]
        if rows % samples:
            raise ValueError(
                f"slot {self.name!r} has {rows} rows, which {samples} per-sample alphas do not divide"
            )
        if rows != samples:  # several rows a sample, as with windows of an image
            alphas = alphas.repeat_interleave(rows // samples)
        return alphas.to(h.dtype).view(*([1] * axis), -1, *([1] * (h.ndim - 1 - axis)))


def _map_tensors(change: Callable[[Tensor], Tensor], tree: _Tree) -> _Tree:
    """`change` done to every tensor, once each: what was one tensor stays one."""
    done: dict[int, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = change(tensor)
        return done[id(tensor)]

    mapped: _Tree = tree_map_only(Tensor, once, tree)
    return mapped
