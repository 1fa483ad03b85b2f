"""Remembering a growing model in memory, and going back to it: weights, topology, lifecycle, optimiser."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import Scheduler
from esper.kasmina.seed import Seed
from esper.kasmina.slot import Slot
from esper.kasmina.stage_machine import Life


@dataclass(frozen=True, slots=True)
class _SlotMemory:
    """One slot: its life, the seed itself, and what was known of it."""

    life: Life
    seed: Seed | None
    trainable: tuple[bool, ...]
    contribution: float | None
    probe: float | None
    gradient_norm: float | None
    gradient_health: float | None
    reported_gradients_finite: bool | None
    remembered_gradients_finite: bool | None


class ModelSnapshot:
    """A model and its attached optimiser as they were. Taking it again reuses the memory while nothing grows.

    Seeds are kept as the modules they are and tensors by value, so restoring brings back the same parameters.
    Schedulers go on in time, with the parameter groups there were. Nothing here waits for a device.
    """

    def __init__(self, model: GrowingModel) -> None:
        self._model = model
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._slots: list[_SlotMemory] = []
        self._groups: list[dict[str, object]] = []
        self._state: dict[Tensor, dict[str, object]] = {}
        self._schedules: list[tuple[Scheduler, str, list[Any]]] = []
        self.take()

    @torch.no_grad()
    def take(self) -> None:
        """Remember the model as it is now."""
        care = self._model.care
        self._slots = [_remember(slot) for slot in self._model.slots.values()]
        if care is not None:
            optimizer, self._schedules = care.optimizer, care.group_lists()
            self._groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
            self._state = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        sources = [*self._model.parameters(), *self._model.buffers()]
        for values in (*self._groups, *self._state.values()):  # a learning rate may be a tensor too
            sources += [value for value in values.values() if isinstance(value, Tensor)]
        same = len(sources) == len(self._sources) and all(
            new is old for new, old in zip(sources, self._sources, strict=True)
        )
        if same:
            _copy(self._copies, sources)
        else:
            self._sources, self._copies = sources, [source.detach().clone() for source in sources]

    @torch.no_grad()
    def restore(self) -> None:
        """Bring the model and its optimiser back to what `take` saw last."""
        for slot, memory in zip(self._model.slots.values(), self._slots, strict=True):
            _recall(slot, memory)
        if self._model.care is not None:
            optimizer = self._model.care.optimizer
            optimizer.param_groups[:] = [{**group, "params": list(group["params"])} for group in self._groups]  # type: ignore[call-overload]
            optimizer.state.clear()
            optimizer.state.update({parameter: dict(state) for parameter, state in self._state.items()})
        for scheduler, name, values in self._schedules:
            getattr(scheduler, name)[:] = values
        _copy(self._sources, self._copies)
        for parameter in self._model.parameters():
            parameter.grad = None


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Each source into its target, all of one dtype in one multi-tensor call."""
    for dtype in {source.dtype for source in sources}:
        chosen = [index for index, source in enumerate(sources) if source.dtype == dtype]
        torch._foreach_copy_([targets[index] for index in chosen], [sources[index] for index in chosen])


def _remember(slot: Slot) -> _SlotMemory:
    seed = slot.seed
    return _SlotMemory(
        life=replace(slot.life, ramp=deepcopy(slot.life.ramp)),
        seed=seed,
        trainable=() if seed is None else tuple(parameter.requires_grad for parameter in seed.parameters()),
        contribution=slot.contribution,
        probe=slot.probe,
        gradient_norm=slot.gradient_norm,
        gradient_health=slot.gradient_health,
        reported_gradients_finite=slot.reported_gradients_finite,
        # .grad is dropped on the way back, what it showed is not
        remembered_gradients_finite=slot.gradients_finite() if slot.stage.is_live else None,
    )


def _recall(slot: Slot, memory: _SlotMemory) -> None:
    slot.life = replace(memory.life, ramp=deepcopy(memory.life.ramp))
    slot.seed = memory.seed
    if memory.seed is not None:
        for parameter, trainable in zip(memory.seed.parameters(), memory.trainable, strict=True):
            parameter.requires_grad_(trainable)
    slot.contribution, slot.probe = memory.contribution, memory.probe
    slot.gradient_norm, slot.gradient_health = memory.gradient_norm, memory.gradient_health
    slot.reported_gradients_finite = memory.reported_gradients_finite
    slot.remembered_gradients_finite = memory.remembered_gradients_finite
