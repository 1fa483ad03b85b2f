"""What the callbacks of all trainers share: the Grower, its options, when it decides; the host in a checkpoint.

Trainers restore weights and optimiser into what has not grown yet. They load the host alone; the seeds come back
with the growth. Weights of seeds are left out when weights are loaded. Of the optimiser just the host's part is
saved, with the growth beside it as state that belongs to no parameter, which `Optimizer.load_state_dict` hands
through unchanged. Schedulers know the host's groups alone in any case.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from esper.grower import Grower
from esper.grower.losses import Loss
from esper.grower.measuring import Mode, Validate
from esper.grower.validating import Metric
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.describing import describe
from esper.kasmina.governor import GovernorRules
from esper.kasmina.probing import ExampleInput
from esper.kasmina.tree import names_a_seed
from esper.kasmina.wrapping import WrapOptions
from esper.leyline import Settle
from esper.tamiyo.controller import Controller
from esper.tamiyo.rules import RulePolicy


class GrowerOptions(WrapOptions, total=False):
    """The options of `esper.Grower` that no trainer knows better."""

    controller: str | os.PathLike[str] | Controller | RulePolicy | None
    validate: Validate | None
    loss: Loss | None
    metric: Metric | None
    mode: Mode | None
    parameter_budget: int | None
    rent: float
    training_samples: int | None
    governor: GovernorRules | None
    keep_best: bool
    generator: torch.Generator | None
    seed_lr_multiplier: float | None


class HasGrower:
    """A callback that makes a Grower when training begins.

    It measures an epoch where the trainer does, and decides on it when training goes on. A checkpoint that is saved
    in between holds the very network that was evaluated, and whoever resumes it makes the decision.
    """

    _grower: Grower | None = None

    @property
    def grower(self) -> Grower:
        """With `history`, `explain()` and `plot()`; there once training has begun."""
        if self._grower is None:
            raise RuntimeError("nothing has been trained yet: the Grower is made when training begins")
        return self._grower

    def finish(self, *, settle: Settle = "worth", best: bool = False) -> nn.Module:
        """Settle, or with `best` go back to the best epoch, and give back an ordinary module."""
        return self.grower.finish(settle=settle, best=best)

    def _go_on(self) -> None:
        """Training goes on: decide on the epoch before."""
        if self.grower.undecided:
            self.grower.decide()

    def _end(self) -> None:
        """Training is over: record the last epoch, and do nothing that no epoch would show."""
        if self.grower.undecided:
            self.grower.epochs = self.grower.epoch
            self.grower.decide()


def require_growth(saved: object, fields: set[str]) -> None:
    """Raise unless a checkpoint's growth is what a callback of this version saves."""
    if not isinstance(saved, Mapping) or set(saved) != fields:
        found = ", ".join(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise WrapError(
            f"the checkpoint's growth holds {found}; this version of Esper reads {', '.join(sorted(fields))}. Resume "
            "with the version that saved it, or train from the start"
        )


def on_device(example: ExampleInput, device: torch.device) -> ExampleInput:
    """The example with its tensors on the device."""
    moved: ExampleInput = tree_map_only(Tensor, lambda tensor: tensor.to(device), example)
    return moved


def scaler_of(owner: object) -> GradScaler | None:
    """The gradient scaler that a trainer's plugin or optimiser holds, if there is one."""
    scaler = getattr(owner, "scaler", None)
    return scaler if isinstance(scaler, GradScaler) else None


GROWTH = "esper_growth"
"""The key of the growth in an optimiser's state."""


def host_part(model: GrowingModel, optimizer: Optimizer, packed: Mapping[str, Any]) -> dict[str, Any]:
    """`packed`, which is the optimiser's `state_dict()`, without the seeds' parameters, numbered anew."""
    seeds = {id(p) for slot in model.slots.values() if slot.seed is not None for p in slot.seed.parameters()}
    numbers: dict[int, int] = {}
    groups = []
    for group, theirs in zip(optimizer.param_groups, packed["param_groups"], strict=True):
        stays = [id(parameter) not in seeds for parameter in group["params"]]
        if model.care is not None and model.care.is_seeds(group):
            continue
        kept = dict(theirs)
        for key in {"params", "param_names"} & set(theirs):
            kept[key] = [entry for entry, stay in zip(theirs[key], stays, strict=True) if stay]
        numbers |= {number: len(numbers) + place for place, number in enumerate(kept["params"])}
        groups.append(kept | {"params": [numbers[number] for number in kept["params"]]})
    state = {numbers[number]: values for number, values in packed["state"].items() if number in numbers}
    return {"state": state, "param_groups": groups}


def without_host(grower: Grower) -> dict[str, object]:
    """The Grower's state without the host's tensors, which the trainer saves itself."""
    state = grower.state_dict()
    tensors = state["tensors"]
    assert isinstance(tensors, dict)
    return state | {"tensors": {name: t for name, t in tensors.items() if not _is_host(grower.model, name)}}


def with_host(grower: Grower, state: Mapping[str, object]) -> dict[str, object]:
    """The same with the host's tensors as the trainer has restored them."""
    tensors = state.get("tensors")
    if not isinstance(tensors, Mapping):
        return dict(state)  # which is refused by the Grower
    present = describe(grower.model)[1]
    host = {name: tensor for name, tensor in present.items() if _is_host(grower.model, name)}
    return {**state, "tensors": {**host, **tensors}}


def _is_host(model: GrowingModel, name: str) -> bool:
    """Whether a tensor of a Grower's state belongs to the host's own parameters and buffers."""
    kind, _, path = name.partition("/")
    if kind == "optimizer" and path.startswith("group "):
        return False  # the options of a group
    return not any(path.startswith(f"{slot.prefix}.") for slot in model.slots.values())


class HostLoads:
    """Until `end`, `module.load_state_dict` loads the host and leaves its seeds as they are.

    when   asked at each load; where it answers False everything is loaded as ever
    """

    def __init__(self, module: nn.Module, when: Callable[[], bool] = lambda: True) -> None:
        self.seeds_due = False
        """Whether seeds were left out of a load, so that their growth has to be restored."""
        self._when = when
        self._handles = [
            module.register_load_state_dict_pre_hook(self._leave_out),
            module.register_load_state_dict_post_hook(self._not_missing),
        ]

    def end(self) -> None:
        """From here on everything is loaded."""
        for handle in self._handles:
            handle.remove()

    def _leave_out(self, module: nn.Module, state: dict[str, object], *_: object) -> None:
        if not self._when():
            return
        theirs = [key for key in state if names_a_seed(key)]
        self.seeds_due = bool(theirs) or any(map(names_a_seed, module.state_dict()))
        for key in theirs:
            del state[key]

    def _not_missing(self, module: nn.Module, keys: Any) -> None:
        del module
        if self._when():
            keys.missing_keys[:] = [key for key in keys.missing_keys if not names_a_seed(key)]
        elif not keys.missing_keys:
            self.seeds_due = False  # they came with it
