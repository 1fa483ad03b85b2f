"""What FSDP2 spreads over processes: a tensor's local part, the whole of it, and a model put together again.

Nothing here waits for another process but `whole` and `whole_copy`, which all processes must call together.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

_Module = TypeVar("_Module", bound=nn.Module)


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
