"""Several processes that train one model: what keeps their networks equal while they grow.

`DistributedDataParallel` reduces the gradients of the parameters it was made with, and FSDP2 (`fully_shard`) those it
was applied to. Seeds come later. Under the first their gradients are averaged here, at the end of every backward that
the wrapper synchronises, so that clipping and scaling see what all processes see; under the second each newborn seed
is sharded over the same mesh.

What FSDP2 spreads is read and written here too: a tensor's local part, the whole of it, and a model put together
again. Of that nothing waits for another process but `whole` and `whole_copy`, which all processes must call together.
"""

import copy
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from esper.kasmina.axes import WrapError
from esper.leyline.errors import EsperError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    from esper.kasmina.seed import Seed
    from esper.kasmina.slot import Slot

_Module = TypeVar("_Module", bound=nn.Module)

# Shards


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Whether a tensor is spread over processes."""
    tensors = sys.modules.get(
        "torch.distributed.tensor"
    )  # seconds to import, and without it nothing is spread
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def sharded_modules(model: nn.Module) -> "list[FSDPModule]":
    """The parts of a model that `fully_shard` was applied to, from the root."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return [] if fsdp is None else [part for part in model.modules() if isinstance(part, fsdp.FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory; all of it where nothing is sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from the processes that hold it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


@torch.no_grad()  # not inference_mode: writes parameters that are trained
def fill(target: Tensor, value: Tensor) -> None:
    """Write a whole tensor into one that may be sharded: every process takes its own part."""
    if is_sharded(target):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(
            value.to(target.device), target.device_mesh, target.placements, src_data_rank=None
        )
    target.copy_(value)


def whole_copy(model: _Module) -> _Module:
    """A deep copy on this process alone, with whole tensors and without anything of FSDP2."""
    if not sharded_modules(model):
        with _Detached():
            return copy.deepcopy(model)
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(whole(parameter.detach()).clone(), parameter.requires_grad)
        for parameter in model.parameters()
    }
    with _without_fsdp(model), _Detached():
        return copy.deepcopy(model, memo)


class _Detached(TorchFunctionMode):
    """Inside, a deep copy takes the values of results that a module keeps from its last forward, without their graph.

    Some keep a pyramid of features, weight_norm keeps the weight it made; torch refuses to copy such tensors.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        del types
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **(kwargs or {}))


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")


@contextmanager
def _without_fsdp(model: nn.Module) -> Iterator[None]:
    """The modules' own classes inside, and nothing that FSDP2 keeps in them; all of it is back afterwards."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    parts = list(model.modules())
    classes = {part: type(part) for part in sharded_modules(model)}
    hooks = [(held, dict(held)) for part in parts for name in _HOOKS if (held := getattr(part, name))]
    kept = {
        part: {key: vars(part)[key] for key in (STATE_KEY, REGISTRY_KEY, *_MARKS) if key in vars(part)}
        for part in parts
    }
    try:
        for shell, kind in classes.items():
            shell.__class__ = kind.__mro__[kind._orig_cls_mro_index]
        for held, every in hooks:
            for key in [key for key, hook in every.items() if _is_fsdp(hook)]:
                del held[key]
        for part, entries in kept.items():
            for key in entries:
                del vars(part)[key]
        yield
    finally:
        for shell, kind in classes.items():
            shell.__class__ = kind
        for held, every in hooks:
            held.clear()
            held.update(every)
        for part, entries in kept.items():
            vars(part).update(entries)


def _is_fsdp(hook: object) -> bool:
    function = getattr(hook, "hook", hook)  # torch wraps those of load_state_dict
    return str(function.__module__).startswith("torch.distributed.fsdp.")


_Value = TypeVar("_Value")


# Replicas


class ReplicaError(EsperError, RuntimeError):
    """The processes that train one model do not have the same model any more."""


class Replicas:
    """The processes that train a model: just this one, unless a subclass says otherwise."""

    rank = 0
    size = 1
    wrapper: nn.Module | None = None
    """What a training forward goes through instead of the bare host."""
    in_step = False
    """Whether a forward needs all processes, so that each must do as many."""

    # What the processes tell each other

    def agree(self, value: _Value) -> _Value:
        """What rank 0 has."""
        return value

    def gather(self, value: _Value) -> list[_Value]:
        """What each has, by rank."""
        return [value]

    # What keeps them equal

    def follow(self, model: nn.Module, slots: "Mapping[str, Slot]") -> None:
        """Begin to watch over a growing model and what grows at its slots."""

    def leave(self) -> None:
        """Take off what `follow` has put on the model."""

    def adopt(self, seed: "Seed") -> None:
        """Make a newborn seed the same everywhere, before it is planted and its parameters are given to anyone."""

    def rest(self) -> None:
        """After forwards that no backward follows: the parameters that the optimiser holds are the model's again."""

    def align(self) -> None:
        """Once an epoch: buffers become those of rank 0, and parameters that differ are a `ReplicaError`."""

    def share_flags(self) -> None:
        """A seed that was not finite in one process was not finite."""


ALONE = Replicas()


class _SeveralProcesses(Replicas):
    """What is common to all ways of training in several processes."""

    def __init__(self, group: "dist.ProcessGroup", buffers: Iterable[tuple[str, Tensor]]) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._buffers = [f"host.{name}" for name, _ in buffers]
        """Names of those that are rank 0's for all."""
        self._model: nn.Module = nn.Module()
        self._slots: Mapping[str, Slot] = {}
        self._handles: list[RemovableHandle] = []
        """Of what `follow` has hooked."""
        self._backward = -1
        """The backward whose end is being waited for."""

    def agree(self, value: _Value) -> _Value:
        box = [value]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]

    def gather(self, value: _Value) -> list[_Value]:
        found: list[_Value] = [value] * self.size
        dist.all_gather_object(found, value, group=self._group)
        return found

    def follow(self, model: nn.Module, slots: "Mapping[str, Slot]") -> None:
        self._model, self._slots = model, slots
        self._handles = self._notice_backwards(model)

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def adopt(self, seed: "Seed") -> None:
        self._spread((*seed.parameters(), *seed.buffers()))
        self._notice_backwards(seed)

    @torch.no_grad()  # not inference_mode: writes what autograd meets
    def _spread(self, tensors: Iterable[Tensor]) -> None:
        """The values of rank 0, to all."""
        for tensor in tensors:
            sent = tensor.contiguous()
            dist.broadcast(sent, group=self._group, group_src=0)
            if sent is not tensor:
                tensor.copy_(sent)

    def align(self) -> None:
        self.rest()
        self._spread(self._model.get_buffer(name) for name in self._buffers)
        self._refuse_drift()

    def _refuse_drift(self) -> None:
        """Compare one number for the bits of each parameter."""
        compared = {name: p for name, p in self._model.named_parameters() if not is_sharded(p)}
        if not compared:
            return
        device = next(iter(compared.values())).device
        sums = torch.stack([_sum_of_bits(parameter).to(device) for parameter in compared.values()])
        # The most of them, and (as ~x falls when x rises) the least.
        extremes = torch.stack((sums, ~sums))
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group)
        differ = (extremes[0] != ~extremes[1]).tolist()
        names = [
            name.removeprefix("host.") for name, differs in zip(compared, differ, strict=True) if differs
        ]
        if names:
            raise ReplicaError(
                f"the processes have drifted apart: {names[0]} is not the same in all of them ({len(names)} of "
                f"{len(compared)} parameters differ). Train through the wrapper and not the module inside, let the "
                "last backward before a step be one without no_sync(), and change parameters in all processes alike"
            )

    @torch.no_grad()  # not inference_mode: the flags are read in forwards that are trained
    def share_flags(self) -> None:
        records = [slot.non_finite for slot in self._slots.values() if slot.seed is not None]
        if records:
            flags = torch.stack([record.to(records[0].device, torch.uint8) for record in records])
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
            for record, flag in zip(records, flags, strict=True):
                record.copy_(flag)

    # The end of a backward

    def _notice_backwards(self, module: nn.Module) -> list[RemovableHandle]:
        return [
            parameter.register_post_accumulate_grad_hook(self._notice)
            for parameter in module.parameters()
            if parameter.requires_grad
        ]

    def _notice(self, _: Tensor) -> None:
        """A gradient has arrived. At the first of a backward, ask to be called at its end."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            _at_the_end(lambda: _at_the_end(self._end_of_backward))  # behind what the wrapper has asked for

    @abstractmethod
    def _end_of_backward(self) -> None:
        """Make the gradients of seeds the same everywhere."""

    def _learning(self) -> "list[tuple[Slot, list[nn.Parameter]]]":
        """The slots whose seeds have parameters that learn, with those."""
        found = (
            (slot, [p for p in slot.seed.parameters() if p.requires_grad])
            for slot in self._slots.values()
            if slot.seed is not None
        )
        return [(slot, parameters) for slot, parameters in found if parameters]


def _at_the_end(call: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _clean(parameters: Iterable[nn.Parameter], broken: Tensor) -> None:
    """No gradient for a seed that was not finite; the flag stays on the device."""
    for parameter in parameters:
        if parameter.grad is not None:
            local(parameter.grad).masked_fill_(broken, 0.0)


def _sum_of_bits(parameter: Tensor) -> Tensor:
    bits = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()]
    return bits.detach().contiguous().view(kind).sum(dtype=torch.int64)


class CopiedReplicas(_SeveralProcesses):
    """`DistributedDataParallel`: a copy of the network in each process."""

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        buffers = wrapper.module.named_buffers() if wrapper.broadcast_buffers else ()
        super().__init__(wrapper.process_group, buffers)
        self.wrapper = self._ddp = wrapper

    @torch.no_grad()  # not inference_mode: writes gradients that the optimiser reads
    def _end_of_backward(self) -> None:
        """Average the seeds' gradients, as DistributedDataParallel does the host's, and share what was not finite.

        What a wrapper made anew has reduced already keeps its value: the mean of means is the same mean.
        """
        learning = self._learning()
        if not learning or not self._ddp.require_backward_grad_sync:
            return
        slots = [slot for slot, _ in learning]
        parameters = [parameter for _, owned in learning for parameter in owned]
        by_kind: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        for number, alike in enumerate(by_kind.values()):
            marks = [slot.non_finite[0] for slot in slots] if number == 0 else []
            self._average(alike, marks)
        for slot, owned in learning:
            _clean(owned, slot.non_finite[0])

    def _average(self, parameters: Sequence[nn.Parameter], marks: Sequence[Tensor]) -> None:
        """One reduction: the gradients end to end, who has one of each, and the marks, which spread to all.

        Nothing is copied from the host, and just a process that has no gradient of something waits for the device: a
        parameter that none has used keeps none, as in one process.
        """
        first = parameters[0]
        gradients = [
            parameter.new_zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten()
            for parameter in parameters
        ]
        one, zero = first.new_ones(1), first.new_zeros(1)
        present = [zero if parameter.grad is None else one for parameter in parameters]
        flags = [mark.to(first).view(1) for mark in marks]
        flat = torch.cat((*gradients, *present, *flags)).div_(self.size)
        dist.all_reduce(flat, group=self._group)
        sizes = [parameter.numel() for parameter in parameters]
        *means, presence, flags_found = flat.split([*sizes, len(parameters), len(marks)])
        missing = any(parameter.grad is None for parameter in parameters)
        used = (presence > 0.0).tolist() if missing else [True] * len(parameters)
        for parameter, mean, used_somewhere in zip(parameters, means, used, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(mean.view_as(parameter))
            elif used_somewhere:
                parameter.grad = mean.view_as(parameter).clone()
        for mark, found in zip(marks, flags_found, strict=True):
            mark.logical_or_(found > 0.0)


class ShardedReplicas(_SeveralProcesses):
    """FSDP2: every process holds a shard of each parameter."""

    in_step = True

    def __init__(self, host: nn.Module, mesh: "DeviceMesh") -> None:
        group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
        assert group is not None
        super().__init__(group, host.named_buffers())
        self._mesh = mesh

    def adopt(self, seed: "Seed") -> None:
        from torch.distributed.fsdp import fully_shard

        self._spread((*seed.parameters(), *seed.buffers()))
        fully_shard(seed, mesh=self._mesh)
        self._notice_backwards(seed)

    def rest(self) -> None:
        for part in sharded_modules(self._model):
            part.reshard()

    @torch.no_grad()  # not inference_mode: writes gradients that the optimiser reads
    def _end_of_backward(self) -> None:
        """FSDP2 has averaged the gradients; what is not finite anywhere is kept out of them everywhere."""
        learning = self._learning()
        if not learning:
            return
        flags = []
        for slot, parameters in learning:
            sums = [local(p.grad).sum() for p in parameters if p.grad is not None]
            broken = ~torch.isfinite(torch.stack(sums)).all() if sums else slot.non_finite[0]
            flags.append(slot.non_finite[0] | broken)
        shared = torch.stack(flags).to(torch.uint8)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self._group)
        for (slot, parameters), flag in zip(learning, shared.bool(), strict=True):
            slot.non_finite[0].copy_(flag)
            _clean(parameters, flag)


def recognise(model: nn.Module) -> tuple[nn.Module, Replicas]:
    """The user's own module, and the processes that train it; what cannot grow is refused by name."""
    _refuse(model)
    if isinstance(model, DistributedDataParallel):
        return model.module, CopiedReplicas(model)
    return model, ShardedReplicas(model, _mesh_of(model)) if sharded_modules(model) else ALONE


def _refuse(model: nn.Module) -> None:
    if isinstance(model, DataParallel):
        raise WrapError(
            "the model is a DataParallel, which copies the network anew for every batch, so that what a seed notes "
            "in a forward is lost: use DistributedDataParallel with one process for each device"
        )
    if _of_package(model, "deepspeed"):
        raise WrapError(
            f"the model is DeepSpeed's {type(model).__name__}, which lays all parameters and their optimiser state "
            "out in flat partitions once: seeds could not join them. Use DistributedDataParallel or fully_shard"
        )
    for name, part in model.named_modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            where = f"{name} is" if name else "the model is"
            raise WrapError(
                f"{where} a FullyShardedDataParallel (FSDP1), which flattens parameters once when it is made: seeds "
                "could not join them. Use FSDP2, torch.distributed.fsdp.fully_shard"
            )


def _of_package(model: nn.Module, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(model).__mro__)


def _mesh_of(host: nn.Module) -> "DeviceMesh":
    """The mesh that all of a host is sharded over: shards, or replicas of shards."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import Replicate, Shard

    if not isinstance(host, FSDPModule):
        raise WrapError(
            "parts of the model are sharded by fully_shard, and the model itself is not: apply fully_shard to it "
            "too, last, so that all its gradients are reduced"
        )
    for part in sharded_modules(host):
        part.reshard()
    sharded = {name: parameter for name, parameter in host.named_parameters() if is_sharded(parameter)}
    if not sharded:
        raise WrapError("fully_shard was applied to the model, and none of its parameters are sharded")
    first = next(iter(sharded))
    mesh = sharded[first].device_mesh
    for name, parameter in sharded.items():
        if parameter.device_mesh != mesh:
            raise WrapError(f"{name} is sharded over another mesh than {first}: growing expects one for all")
        *outer, inner = parameter.placements
        if not isinstance(inner, Shard) or outer not in ([], [Replicate()]):
            raise WrapError(
                f"{name} is placed as {parameter.placements}: growing expects what fully_shard does alone, without "
                "tensor parallelism"
            )
    if mesh.ndim > 1 and mesh.size() != dist.get_world_size():
        raise WrapError(
            f"the mesh has {mesh.size()} of {dist.get_world_size()} processes: growing expects replicas of shards "
            "over all of them"
        )
    return mesh
