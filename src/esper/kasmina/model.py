"""The growing model: a host, its slots, and the operations of a seed's life."""

import math
import os
import random
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from esper.kasmina.blueprints.registry import BlueprintError
from esper.kasmina.optimisers import OptimiserCare
from esper.kasmina.replicas import ALONE, Replicas
from esper.kasmina.schedules import Scheduler
from esper.kasmina.seed import bear_seed, birth_randomness
from esper.kasmina.slot import IsolationPenalty, Slot
from esper.kasmina.stage_machine import LivingHost, require_choice
from esper.kasmina.tree import bare_parameters
from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    CAUSAL_TABLE,
    STYLES,
    TEMPOS,
    ActionSpec,
    BlueprintCard,
    Curve,
    EpochReport,
    Event,
    EventSink,
    LifecycleOp,
    NonFiniteSeedOutput,
    SeedFading,
    SeedGerminated,
    SlotConfig,
    Stage,
    StageChanged,
    Style,
)


class GrowingModel(LivingHost, nn.Module):
    """A host that can grow. Made by `esper.wrap`; calling it calls the host.

    A seed is a part of the host while it is there: its parameters, keys, device and copies are the host's.
    Once per epoch, in this order: one operation (or none), `tick()`, train, and `report` what was measured.
    """

    def __init__(
        self,
        host: nn.Module,
        slots: Sequence[Slot],
        *,
        penalty: IsolationPenalty,
        growth_seed: int,
        events: EventSink | None,
        replicas: Replicas = ALONE,
    ) -> None:
        super().__init__()
        self.host = host
        self.slot_config = SlotConfig(tuple(slot.name for slot in slots))
        self.host_parameters = sum(parameter.numel() for parameter in bare_parameters(host))
        self.growth_seed = growth_seed
        self.slots: Mapping[str, Slot] = {slot.name: slot for slot in slots}
        """Name -> slot, in the order they fire in a forward."""
        self._penalty = penalty
        self._events = events
        self._claim_slots()
        self.care: OptimiserCare | None = None
        """The attached optimiser's keeper."""
        self.replicas = replicas
        """The processes that train the model together."""
        replicas.follow(self, self.slots)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the host; where it learns, through the wrapper that reduces its gradients."""
        wrapper = self.replicas.wrapper
        through = self.host if wrapper is None or not torch.is_grad_enabled() else wrapper
        return through(*args, **kwargs)

    def __getstate__(self) -> dict[str, object]:
        # A copy grows on its own: it has no optimiser yet, emits no events and is trained by nobody else.
        return {**self.__dict__, "care": None, "_events": None, "replicas": ALONE}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._claim_slots()

    def _claim_slots(self) -> None:
        for slot in self.slots.values():
            slot.owner = weakref.ref(self)
            slot.hook_again()

    def bare_parameters(self) -> Iterator[nn.Parameter]:
        """The host's own parameters, without its seeds'."""
        return bare_parameters(self.host)

    # The operations

    def execute(self, action: ActionSpec) -> None:
        """Do what one action asks for; WAIT does nothing, and what is not legal now is refused."""
        op, slot = LifecycleOp(action.op), action.slot
        if op is LifecycleOp.WAIT:
            return
        if slot is None:
            raise ValueError(f"{op.name} needs a slot; the slots are {', '.join(self.slots)}")
        given = {head: getattr(action, head) for head in CAUSAL_TABLE[op] if head not in ("op", "slot")}
        if op is LifecycleOp.GERMINATE and action.blueprint is None:
            raise ValueError(
                f"GERMINATE needs a blueprint; offered: {', '.join(self._slot(slot).blueprints)}"
            )
        getattr(self, op.name.lower())(slot, **given)

    def germinate(
        self,
        slot: str,
        blueprint: str,
        *,
        style: Style | str = Style.LINEAR_ADD,
        tempo: int = 3,
        alpha_target: float = 1.0,
    ) -> None:
        """Plant a seed, which begins to train behind the host.

        tempo         epochs its first ramp will take (3, 5 or 8)
        alpha_target  where that ramp will end (0.5, 0.7 or 1)
        """
        place = self._require(slot, LifecycleOp.GERMINATE)
        style = require_choice("style", style, STYLES)
        tempo = require_choice("tempo", tempo, TEMPOS)
        alpha_target = require_choice("alpha_target", alpha_target, ALPHA_TARGETS)
        if blueprint not in place.blueprints:
            raise BlueprintError(
                f"blueprint {blueprint!r} is not offered at slot {slot!r} (layout {place.layout}"
                f"{', causal' if place.site.causal else ''}); offered: {', '.join(place.blueprints)}"
            )
        device, dtype = place.placement()
        with birth_randomness(self.growth_seed, slot, place.life.births):
            seed = bear_seed(
                place.blueprints[blueprint], place.site, style.composition, device=device, dtype=dtype
            )
        self.replicas.adopt(seed)
        place.plant(seed)
        place.life.germinate(style, tempo, alpha_target)
        if self.care is not None:
            self.care.adopt(place)
        self._emit(SeedGerminated(slot, blueprint, style, place.parameter_count))
        self._emit(StageChanged(slot, Stage.DORMANT, Stage.TRAINING, LifecycleOp.GERMINATE))

    def advance(self, slot: str) -> None:
        """Let a trained seed begin to blend in; alpha moves from the next tick on."""
        place = self._require(slot, LifecycleOp.ADVANCE)
        place.life.advance()
        self._changed(place, Stage.TRAINING, LifecycleOp.ADVANCE)

    def set_alpha_target(
        self,
        slot: str,
        alpha_target: float,
        *,
        style: Style | str | None = None,
        alpha_speed: int = 0,
        alpha_curve: Curve | str = Curve.LINEAR,
    ) -> None:
        """Send a holding seed to another alpha over `alpha_speed` epochs (0, 3, 5 or 8; 0 is the next tick).

        A style may only be one with the seed's own composition.
        """
        place = self._require(slot, LifecycleOp.SET_ALPHA_TARGET)
        life, legal = place.life, place.legal(free_places=0)
        style = require_choice("style", life.style if style is None else style, legal.styles)
        alpha_target = require_choice("alpha_target", alpha_target, legal.alpha_targets)
        speed = require_choice("alpha_speed", alpha_speed, ALPHA_SPEEDS)
        life.set_alpha_target(
            alpha_target, style, speed, require_choice("alpha_curve", alpha_curve, ALPHA_CURVES)
        )
        self._changed(place, Stage.HOLDING, LifecycleOp.SET_ALPHA_TARGET)

    def prune(self, slot: str, *, alpha_speed: int = 0, alpha_curve: Curve | str = Curve.LINEAR) -> None:
        """Remove a seed: now, or faded out over `alpha_speed` epochs, frozen meanwhile (3, 5 or 8)."""
        place = self._require(slot, LifecycleOp.PRUNE)
        speed = require_choice("alpha_speed", alpha_speed, ALPHA_SPEEDS)
        curve = require_choice("alpha_curve", alpha_curve, ALPHA_CURVES)
        self._take_out(place, speed, curve, LifecycleOp.PRUNE)

    def retire(self, slot: str, *, alpha_speed: int = 0, alpha_curve: Curve | str = Curve.LINEAR) -> None:
        """Give a fossil back: now, or faded out over `alpha_speed` epochs, frozen meanwhile (3, 5 or 8).

        Its parameters leave the optimiser at once and the budget when it is gone; the slot is free again after its
        embargo. While it fades it takes one of the live places.
        """
        place = self._require(slot, LifecycleOp.RETIRE)
        speed = require_choice("alpha_speed", alpha_speed, ALPHA_SPEEDS)
        curve = require_choice("alpha_curve", alpha_curve, ALPHA_CURVES)
        self._take_out(place, speed, curve, LifecycleOp.RETIRE)

    def remove(self, slot: str) -> None:
        """Take a live seed out now, however young it is: for settling a finished run."""
        place = self._slot(slot)
        if not place.stage.is_live:
            raise ValueError(f"slot {slot!r} is {place.stage.name}: there is no live seed to remove")
        self._take_out(place, 0, Curve.LINEAR, LifecycleOp.PRUNE)

    def _take_out(self, place: Slot, speed: int, curve: Curve, operation: LifecycleOp) -> None:
        before = place.stage
        self._emit_if_broken(place)
        place.life.take_out(speed, curve)
        assert place.seed is not None
        for parameter in place.seed.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        if self.care is not None:
            self.care.forget(place)
        if place.life.fading:
            place.sync_seed()
            self._emit(SeedFading(place.name, place.alpha, speed))
        else:
            place.clear()
        self._changed(place, before, operation)

    def fossilize(self, slot: str) -> None:
        """Keep a seed: it is part of the host from now on, and its live place is free again."""
        place = self._require(slot, LifecycleOp.FOSSILIZE)
        place.life.fossilize()
        place.sync_seed()
        if self.care is not None:
            self.care.settle(place)
        self._changed(place, Stage.HOLDING, LifecycleOp.FOSSILIZE)

    def tick(self) -> None:
        """Begin an epoch: alphas move, arrivals happen, cooldowns run out. Call it once, before training."""
        for slot in self.slots.values():
            before = slot.stage
            self._emit_if_broken(slot)
            slot.forget_epoch()
            slot.life.tick()
            if not (slot.stage.is_live or slot.stage is Stage.FOSSILIZED):
                slot.clear()
            slot.sync_seed()
            self._changed(slot, before, None)

    def report(
        self,
        slot: str,
        *,
        contribution: float | None = None,
        gradients_finite: bool | None = None,
        probe: float | None = None,
        gradient_norm: float | None = None,
        gradient_health: float | None = None,
    ) -> None:
        """Record what was measured of a seed in the epoch that just ended; None leaves a value as it is.

        All but the contribution is forgotten at the next tick. Without `gradients_finite`, `.grad` is looked at.
        """
        place = self._slot(slot)
        if not place.stage.is_live and place.stage is not Stage.FOSSILIZED:
            raise ValueError(f"slot {slot!r} is {place.stage.name}: there is no seed to report on")
        measured = {
            "contribution": contribution,
            "probe": probe,
            "gradient_norm": gradient_norm,
            "gradient_health": gradient_health,
        }
        for name, value in measured.items():
            if value is None:
                continue
            if not math.isfinite(value):
                raise ValueError(f"{name}={value!r} is no measurement: leave it out when it is unknown")
            setattr(place, name, value)
        if contribution is not None and place.stage is Stage.FOSSILIZED:
            place.weighed = True
        if gradients_finite is not None:
            place.reported_gradients_finite = gradients_finite

    # Optimisers

    @property
    def isolation_penalty(self) -> float:
        """Weight of the penalty that keeps a seed in TRAINING from running away."""
        return self._penalty.weight

    @isolation_penalty.setter
    def isolation_penalty(self, weight: float) -> None:
        self._penalty.weight = weight

    def attach(
        self,
        optimizer: Optimizer,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        *,
        scaler: GradScaler | None = None,
        seed_lr_multiplier: float | None = None,
        guard_gradients: bool = True,
    ) -> None:
        """Keep an optimiser that updates each parameter by itself, and its schedulers, right across growth.

        Germination adds a parameter group that follows the submodule's at `seed_lr_multiplier` times its learning
        rate (None: 3, or 1 on a frozen host); pruning removes it with its state; fossilising moves it into the
        submodule's group, momentum and all; retiring takes it out of there. Schedulers see the host's groups alone.
        Pass the `GradScaler`, if there is one, so that the isolation penalty follows its scale and steps that it
        skips are not held against seeds. A seed that was not finite is not updated, unless `guard_gradients` is
        False: then the loop sees to that.
        """
        if self.care is not None:
            raise ValueError("an optimizer is attached already: call detach() first")
        given = scheduler if isinstance(scheduler, Sequence) else [] if scheduler is None else [scheduler]
        care = OptimiserCare(
            optimizer,
            given,
            self.host,
            self.slots.values(),
            seed_lr_multiplier=seed_lr_multiplier,
            scaler=scaler,
            guard_gradients=guard_gradients,
        )
        for slot in self.slots.values():
            slot.guards_gradients = guard_gradients
            if slot.stage.is_live and not slot.life.fading:
                care.adopt(slot)
            elif slot.stage is Stage.FOSSILIZED:
                care.settle(slot)
            elif slot.seed is not None:
                care.forget(slot)
        self.care, self._penalty.scaler = care, scaler

    def detach(self) -> None:
        """Stop caring for the optimiser; its groups stay as they are."""
        if self.care is not None:
            self.care.detach()
        self.care = self._penalty.scaler = None

    # Looking through other alphas

    @contextmanager
    def override_alpha(self, alphas: Mapping[str, Tensor | float]) -> Iterator[None]:
        """Forwards inside use these alphas, whatever the stage; nothing of the model is changed.

        An alpha is a tensor with one value per sample (batch,), or a float for all of them; at 0.0 the seed is
        not even computed. A seed in TRAINING takes part too. Slots that are not named behave as always.
        """
        for name, alpha in alphas.items():
            if not isinstance(alpha, Tensor | float | int):
                raise TypeError(f"alpha of {name!r} must be a float or a tensor, not {alpha!r}")
        before = {name: self._slot(name).alpha_override for name in alphas}
        for name, alpha in alphas.items():
            self.slots[name].alpha_override = alpha if isinstance(alpha, Tensor) else float(alpha)
        try:
            yield
        finally:
            for name, previous in before.items():
                self.slots[name].alpha_override = previous

    # Out of here

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, topology, lifecycle and the attached optimiser's state to one safetensors file."""
        from esper.kasmina.persistence import save

        save(self, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Bring this wrap of the same host, grown or not, to the state that `save` wrote."""
        from esper.kasmina.persistence import load

        load(self, path)

    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """The host's modules with the slots and seeds as text; with a path, also as a picture (.svg, .png)."""
        from esper.kasmina.drawing import draw, draw_text

        if path is not None:
            draw(self, path)
        return draw_text(self)

    def export(self) -> nn.Module:
        """A plain module that computes what this one computes now: no hooks of ours, no esper to import.

        `esper.kasmina.export_with_keys(model)` also says where each key of the state dict went.
        """
        from esper.kasmina.export import export_with_keys

        return export_with_keys(self)[0]

    def merge(self) -> nn.Module:
        """A copy of the host in its own class, with its seeds merged into weights.

        Only seeds of low rank behind linear layers can be; others are refused by name.
        """
        from esper.kasmina.adapted import merge

        return merge(self)

    def unwrap(self) -> nn.Module:
        """Take the hooks and the seeds off, out of the attached optimiser too, and return the bare host."""
        if self.care is not None:
            for slot in self.slots.values():
                self.care.forget(slot)
            self.detach()
        self.release()
        for slot in self.slots.values():
            slot.hook.remove()
            slot.seed = None
        return self.host

    def release(self) -> nn.Module:
        """Let go of the host, which keeps its slots and seeds as a copy has them: it can be wrapped there again."""
        self.replicas.leave()
        for slot in self.slots.values():
            slot.owner = None
        return self.host

    # Helpers

    def _slot(self, name: str) -> Slot:
        self.slot_config.index(name)
        return self.slots[name]

    def _require(self, name: str, operation: LifecycleOp) -> Slot:
        slot = self._slot(name)
        slot.require_legal(operation, free_places=self.free_places)
        return slot

    def _emit_if_broken(self, slot: Slot) -> None:
        """At the end of an epoch, or of a seed's life: emit an event if it was not finite, and begin a new record."""
        if slot.stage.is_live and slot.take_epoch_flag():
            self._emit(NonFiniteSeedOutput(slot.name, slot.stage))

    def _changed(self, slot: Slot, before: Stage, operation: LifecycleOp | None) -> None:
        if slot.stage is not before:
            self._emit(StageChanged(slot.name, before, slot.stage, operation))

    def _emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.emit(event)


class GrowingHost:
    """A growing model as deciders read hosts: leyline's `HostProtocol` but for `training_samples`.

    `report` is written after each epoch by the loop that trains the model.
    """

    def __init__(self, model: GrowingModel) -> None:
        self.model = model
        self.slot_config, self.host_parameters = model.slot_config, model.host_parameters
        self.readings, self.snapshots = model.readings, model.snapshots
        self.legal_operations = model.legal_operations
        self.report = EpochReport(0, None, None, math.nan, None, None, None)
        self.parameter_budget: int | None = None
        """Parameters that may be added in all, where the task has a cap; None is any number."""

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        """Slot -> the blueprints offered there."""
        return self.model.cards

    @property
    def added_parameters(self) -> int:
        """Parameters that seeds have added."""
        return self.model.added_parameters


@contextmanager
def forked_randomness() -> Iterator[None]:
    """Random states of torch, on the CPU and on all GPUs, of Python and of numpy are as before afterwards."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    pythons, numpys = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; training flags and random states as before afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model_training = model.training
    with forked_randomness():
        model.eval()
        try:
            yield
        finally:
            model.train(model_training)  # a module may do more than set its flag
            for module, training in flags:
                if module.training is not training:
                    module.training = training
