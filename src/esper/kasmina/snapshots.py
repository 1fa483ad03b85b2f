"""A model and its optimiser as they were, in memory: to go back to the last good epoch, or to before a decision."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import PARAMETERS
from esper.kasmina.replicas import local
from esper.kasmina.seed import Seed
from esper.kasmina.slot import SlotRecord


class Standing:
    """What grows in a model and what its optimiser holds, without numbers: seeds and tensors are the ones they are.

    It costs no copy, and to go back to it is enough where nothing was trained since.

    options  whether those of the optimiser's groups (learning rates, momenta) are brought back too; else they stay as
             they are by then, but for what the optimiser's step moves: schedules go on in time, by whatever hand
    epoch_begins  as `Slot.record` has it
    """

    def __init__(self, model: GrowingModel, *, options: bool = False, epoch_begins: bool = False) -> None:
        self._model, care = model, model.care
        self._moved = None if options or care is None else care.begun_anew
        self._slots: list[tuple[SlotRecord, Seed | None, list[bool]]] = [
            (
                slot.record(epoch_begins=epoch_begins),
                slot.seed,
                [p.requires_grad for p in slot.seed.parameters()] if slot.seed else [],
            )
            for slot in model.slots.values()
        ]
        self._homes = {} if care is None else dict(care.homes)
        self._groups = [] if care is None else [_own(group) for group in care.optimizer.param_groups]
        self._state = {} if care is None else {p: _own(state) for p, state in care.optimizer.state.items()}

    def tensors(self) -> list[Tensor]:
        """Of the optimiser those that change between a model and its return to it."""
        groups = [
            {key: value for key, value in group.items() if self._moved is None or key in self._moved}
            for group in self._groups
        ]
        held = (value for values in (*groups, *self._state.values()) for value in values.values())
        return [value for value in held if isinstance(value, Tensor)]

    def restore(self) -> None:
        """Bring back the seeds, and of the optimiser what belongs to them and to the host.

        A group that was added meanwhile for other parameters than seeds' stays, and its state begins anew.
        """
        newborn = {id(p) for slot in self._model.slots.values() if slot.seed for p in slot.seed.parameters()}
        for slot, (record, seed, trainable) in zip(self._model.slots.values(), self._slots, strict=True):
            slot.restore(record, self._model.rules)
            slot.seed = seed
            slot.sync_seed()
            for parameter, trained in zip(seed.parameters() if seed else (), trainable, strict=True):
                parameter.requires_grad_(trained)
        care = self._model.care
        if care is None:
            return
        optimizer, care.homes = care.optimizer, dict(self._homes)
        now = {_first(group): group for group in optimizer.param_groups if group["params"]}
        then = {_first(group) for group in self._groups}
        added = [group for first, group in now.items() if first not in then | newborn]
        optimizer.param_groups[:] = [
            *(_own(group) | _options(now.get(_first(group), {}), self._moved) for group in self._groups),
            *added,
        ]
        optimizer.state.clear()
        optimizer.state.update({parameter: _own(state) for parameter, state in self._state.items()})


class ModelSnapshot:
    """A model and its attached optimiser as they were. Taking it again reuses the memory while nothing grows.

    Seeds are kept as the modules they are and tensors by value, so restoring brings back the same parameters. A
    buffer that its module assigned anew since is again the tensor that it was. Nothing here waits for a device.

    options, epoch_begins  as `Standing` has them
    """

    def __init__(self, model: GrowingModel, *, options: bool = False, epoch_begins: bool = False) -> None:
        self._model, self._options, self._epoch_begins = model, options, epoch_begins
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.take()

    @torch.no_grad()  # not inference_mode: what is restored is trained on
    def take(self) -> None:
        """Remember the model as it is now."""
        self._standing = Standing(self._model, options=self._options, epoch_begins=self._epoch_begins)
        self._buffers = [(module._buffers, dict(module._buffers)) for module in self._model.modules()]
        sources = [*self._model.parameters(), *self._model.buffers()]
        sources += [slot.non_finite for slot in self._model.slots.values()]
        sources += self._standing.tensors()
        if list(map(_form, sources)) == list(map(_form, self._copies)):
            _copy(self._copies, sources)
        else:
            self._copies = [local(source).detach().clone() for source in sources]
        self._sources = sources

    @torch.no_grad()  # not inference_mode: what is restored is trained on
    def restore(self) -> None:
        """Bring the model and its optimiser back to what `take` saw last."""
        self._standing.restore()
        for buffers, then in self._buffers:
            buffers.update(then)
        _copy(self._sources, self._copies)
        for parameter in self._model.parameters():
            parameter.grad = None


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device, torch.layout]:
    """What a copy of the tensor, of shards of the local part, has to be like."""
    part = local(tensor)
    return part.shape, part.dtype, part.device, part.layout


def _own(values: Mapping[str, object]) -> dict[str, object]:
    """The same with lists of its own, so that none changes with the optimiser's. Tensors stay the ones they are."""
    return {
        name: list(value)
        if name in PARAMETERS and isinstance(value, list)
        else copy.deepcopy(value)
        if isinstance(value, list | dict)
        else value
        for name, value in values.items()
    }


def _first(group: Mapping[str, object]) -> int | None:
    """The identity of a group's first parameter, by which it is known: others come and go behind it."""
    parameters = group["params"]
    return id(parameters[0]) if isinstance(parameters, list) and parameters else None


def _options(group: Mapping[str, object], moved: frozenset[str] | None) -> dict[str, object]:
    """The options of a group that stay as they are: all but those that the optimiser's step moved; of None, none."""
    if moved is None:
        return {}
    return _own({key: value for key, value in group.items() if key not in PARAMETERS | moved})


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Each source into its target, all of one dtype in one multi-tensor call; of shards the local part."""
    targets, sources = list(map(local, targets)), list(map(local, sources))
    for dtype in {source.dtype for source in sources}:
        chosen = [index for index, source in enumerate(sources) if source.dtype == dtype]
        torch._foreach_copy_([targets[index] for index in chosen], [sources[index] for index in chosen])
