"""A model and its optimiser as they were, in memory: to go back to the last good epoch, or to before a decision."""

import copy
from collections.abc import Collection, Iterable, Mapping
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from esper.kasmina.model import GrowingModel
from esper.kasmina.optimisers import PARAMETERS, OptimiserCare
from esper.kasmina.replicas import is_sharded, local
from esper.kasmina.schedules import Group
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
        self.slots: list[tuple[SlotRecord, Seed | None]] = [
            (slot.record(epoch_begins=epoch_begins), slot.seed) for slot in model.slots.values()
        ]
        self._trainable = [
            [p.requires_grad for p in seed.parameters()] if seed else [] for _, seed in self.slots
        ]
        self.homes = {} if care is None else dict(care.homes)
        """As `OptimiserCare.homes`."""
        seeds = _parameters_of(slot.seed for slot in model.slots.values())
        self._groups = (
            [
                _Remembered(_key(care, group, seeds), group, _own(group))
                for group in care.optimizer.param_groups
            ]
            if care is not None
            else []
        )
        self.state = {} if care is None else {p: _own(state) for p, state in care.optimizer.state.items()}
        """What the optimiser keeps of each parameter."""

    def tensors(self) -> list[Tensor]:
        """Of the optimiser those that change between a model and its return to it."""
        groups = [
            {key: value for key, value in group.content.items() if self._moved is None or key in self._moved}
            for group in self._groups
        ]
        held = (value for values in (*groups, *self.state.values()) for value in values.values())
        return [value for value in held if isinstance(value, Tensor)]

    def groups(self) -> list[tuple[Group, Group]]:
        """The optimiser's groups as `restore` leaves them: the dict of each, and what will be in it.

        One that is there still stays the dict that it is, which a loop may hold. One that was added meanwhile for
        other parameters than seeds' stays.
        """
        care = self._model.care
        if care is None:
            return []
        seeds = _parameters_of(slot.seed for slot in self._model.slots.values())
        seeds |= _parameters_of(seed for _, seed in self.slots)
        present = [(_key(care, group, seeds), group) for group in care.optimizer.param_groups]
        found: list[tuple[Group, Group]] = []
        for then in self._groups:
            index = next((i for i, (key, _) in enumerate(present) if key == then.key), None)
            group = then.group if index is None else present.pop(index)[1]
            kept = {} if index is None else _options(group, self._moved)
            found.append((group, _own(then.content) | kept))
        placed = seeds | {id(p) for then in self._groups for p in then.content["params"]}
        added = [group for _, group in present if not care.is_seeds(group)]
        return found + [(group, _without(group, placed)) for group in added]

    def restore(self) -> None:
        """Bring back the seeds, and of the optimiser what belongs to them and to the host."""
        groups = self.groups()
        for slot, (record, seed), trainable in zip(
            self._model.slots.values(), self.slots, self._trainable, strict=True
        ):
            slot.restore(record, self._model.rules)
            slot.seed = seed
            slot.sync_seed()
            for parameter, trained in zip(seed.parameters() if seed else (), trainable, strict=True):
                parameter.requires_grad_(trained)
        care = self._model.care
        if care is None:
            return
        care.homes = dict(self.homes)
        for group, content in groups:
            group.clear()
            group.update(content)
        care.optimizer.param_groups[:] = [group for group, _ in groups]
        care.optimizer.state.clear()
        care.optimizer.state.update({parameter: _own(state) for parameter, state in self.state.items()})


class _Remembered(NamedTuple):
    """A group of the optimiser: by what it is known, the dict that it is, and a copy of what was in it."""

    key: int | None
    group: Group
    content: Group


class ModelSnapshot:
    """A model and its attached optimiser as they were. Taking it again reuses the memory while nothing grows.

    Seeds are kept as the modules they are and tensors by value, so restoring brings back the same parameters. A
    buffer that its module assigned anew since is again the tensor that it was, or a copy where that cannot be written
    in place. Nothing here waits for a device.

    options, epoch_begins  as `Standing` has them
    """

    def __init__(self, model: GrowingModel, *, options: bool = False, epoch_begins: bool = False) -> None:
        self.model, self._options, self._epoch_begins = model, options, epoch_begins
        self._sources: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.take()

    @torch.no_grad()  # not inference_mode: what is restored is trained on
    def take(self) -> None:
        """Remember the model as it is now."""
        self.standing = Standing(self.model, options=self._options, epoch_begins=self._epoch_begins)
        self._buffers = [(module._buffers, dict(module._buffers)) for module in self.model.modules()]
        self.flags = [slot.non_finite for slot in self.model.slots.values()]
        """Of each slot."""
        sources = [*self.model.parameters(), *self.model.buffers(), *self.flags, *self.standing.tensors()]
        if list(map(_form, sources)) == list(map(_form, self._copies)):
            _copy(self._copies, sources)
        else:
            self._copies = [local(source).detach().clone() for source in sources]
        self._sources = sources

    @torch.no_grad()  # not inference_mode: what is restored is trained on
    def restore(self) -> None:
        """Bring the model and its optimiser back to what `take` saw last."""
        self.standing.restore()
        sources, copies = self._sources, self._copies
        held = {id(buffer) for _, then in self._buffers for buffer in then.values()}
        instead = {
            id(source): kept.clone()
            for source, kept in zip(sources, copies, strict=True)
            if id(source) in held and not _is_writable(source)
        }
        for buffers, then in self._buffers:
            buffers.update({name: instead.get(id(buffer), buffer) for name, buffer in then.items()})
        written = [index for index, source in enumerate(sources) if id(source) not in instead]
        _copy([sources[index] for index in written], [copies[index] for index in written])
        for parameter in self.model.parameters():
            parameter.grad = None

    def copies(self) -> dict[int, Tensor]:
        """The identity of each tensor that `take` saw, and of what stands for a buffer of then now -> its copy."""
        pairs = zip(self._sources, self._copies, strict=True)
        copies = {id(source): _sharded_like(source, copy) for source, copy in pairs}
        instead = {
            id(now): copies[id(then[name])]
            for buffers, then in self._buffers
            for name, now in buffers.items()
            if now is not None and id(then.get(name)) in copies
        }
        return copies | instead


def _sharded_like(source: Tensor, part: Tensor) -> Tensor:
    """A copy of the local part as a shard of the whole, where the source is one."""
    if not is_sharded(source):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = source.device_mesh, source.placements
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=source.shape, stride=source.stride()
    )


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


def _parameters_of(seeds: Iterable[Seed | None]) -> set[int]:
    """The identities of their parameters."""
    return {id(parameter) for seed in seeds if seed is not None for parameter in seed.parameters()}


def _key(care: OptimiserCare, group: Group, seeds: Collection[int]) -> int | None:
    """By what a group is known while seeds come and go: its first parameter that is the host's; a seed's own first.

    None of one of the host's that has none; such are known by their order.
    """
    own = group["params"] if care.is_seeds(group) else (p for p in group["params"] if id(p) not in seeds)
    return next(map(id, own), None)


def _without(group: Group, parameters: Collection[int]) -> Group:
    """What is in a group, but for these parameters."""
    stays = [id(parameter) not in parameters for parameter in group["params"]]
    return _own(group) | {key: list(compress(group[key], stays)) for key in PARAMETERS & group.keys()}


def _options(group: Mapping[str, object], moved: frozenset[str] | None) -> dict[str, object]:
    """The options of a group that stay as they are: all but those that the optimiser's step moved; of None, none."""
    if moved is None:
        return {}
    return _own({key: value for key, value in group.items() if key not in PARAMETERS | moved})


def _is_writable(tensor: Tensor) -> bool:
    """Whether it can be written in place: what was made in inference mode, or is expanded, cannot."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    expanded = any(step == 0 and size > 1 for step, size in zip(strides, tensor.shape, strict=False))
    return not expanded and not tensor.is_inference()


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Each source into its target, all of one dtype in one multi-tensor call; of shards the local part."""
    targets, sources = list(map(local, targets)), list(map(local, sources))
    for dtype in {source.dtype for source in sources}:
        chosen = [index for index, source in enumerate(sources) if source.dtype == dtype]
        torch._foreach_copy_([targets[index] for index in chosen], [sources[index] for index in chosen])
