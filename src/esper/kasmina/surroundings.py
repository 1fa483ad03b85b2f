"""All that a module can reach in Python, so that a call which leaves something behind beside its output is seen."""

import contextlib
import enum
import functools
import logging
import random
import re
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

from esper.kasmina.tree import bare_modules, is_seed_name

MOST, MOST_A_MODULE = 2_000, 100
"""Things that are looked at, and how many more for each submodule; of a module that reaches more (a trainer, a
vocabulary), nothing is known. A walk should cost less than the forward that it may spare."""
_BYTES = 100
"""Of an array, that cost as much as a thing."""
_CLOSED = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, PurePath, re.Pattern),
    *(
        types.ModuleType,
        logging.Logger,
        type(threading.Lock()),
        type(threading.RLock()),
        functools.cached_property,
    ),
    *(
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.jit.ScriptFunction,
        np.dtype,
        np.generic,
        np.ufunc,
    ),
    *(RemovableHandle, fx.Graph, fx.Node),
)
"""What cannot change, or what no forward reads."""
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Attributes of every module that hold hooks and the like."""
_CONTAINERS = (list, tuple, set, frozenset, deque)
_CODE = (types.FunctionType, types.BuiltinFunctionType, type)


def surroundings(module: nn.Module, closed: tuple[type, ...] = ()) -> list[object] | None:
    """Everything that a module can reach but for seeds, in an order that stays while nothing changes.

    That is its attributes and submodules, and what these hold: containers, plain objects, tensors with how often they
    were changed in place, the classes' own attributes, and what the forwards take from around them. What helpers
    keep in globals of their own is not seen, nor what other methods than `forward` take from around them, nor what
    is written through a tensor's `.data`. None if there is too much, or something that cannot be looked into, such
    as a generator, an iterator or a handle of another library.

    closed  classes whose objects are not looked into
    """
    closed += _CLOSED
    found: list[object] = []
    seen: set[int] = set()
    waiting: list[object] = [module]
    try:
        left = MOST + MOST_A_MODULE * sum(1 for _ in bare_modules(module))
    except ReferenceError:  # a proxy of what is gone
        return None
    while waiting:
        each = waiting.pop()
        if issubclass(type(each), closed) or id(each) in seen:
            continue
        seen.add(id(each))
        try:
            members = _members(each, left)
        except Exception:  # of a class that answers for others, such as a proxy of what is gone
            return None
        if members is None or len(members) > left:
            return None
        left -= each.nbytes // _BYTES if type(each) is np.ndarray else len(members)
        found += members
        waiting += members
    return found


def are_same(before: list[object] | None, after: list[object] | None) -> bool:
    """Whether nothing was replaced, added or changed in place between two looks; False where one saw nothing."""
    if before is None or after is None or len(before) != len(after):
        return False
    return all(
        one is other or (type(one) is int and type(other) is int and one == other)
        for one, other in zip(before, after, strict=True)
    )


def _members(each: object, most: int) -> list[object] | None:
    """What a thing holds, and of what has no members the number that shows whether it has changed; None if there is
    more, of which no list is made."""
    if isinstance(each, Tensor):
        return None if each.is_inference() else [each._version, *vars(each).values()]
    if isinstance(each, nn.Module):
        own = [value for name, value in vars(each).items() if name not in _BOOKKEEPING]
        return [*own, type(each)]
    if isinstance(each, _CONTAINERS):
        return None if len(each) > most else [*each, *getattr(each, "__dict__", {}).values()]
    if isinstance(each, dict):
        if len(each) > most:
            return None
        pairs = [pair for pair in each.items() if not (isinstance(pair[0], str) and is_seed_name(pair[0]))]
        return [member for pair in pairs for member in pair] + [*getattr(each, "__dict__", {}).values()]
    if isinstance(each, type):
        return _of_class(each)
    if isinstance(each, np.ndarray):
        return None if each.dtype.hasobject or each.nbytes > most * _BYTES else [hash(each.tobytes())]
    if isinstance(each, random.Random):
        return [hash(each.getstate())]
    if isinstance(each, weakref.ref):
        return [each()]
    if callable(each) and (found := _of_callable(each)) is not None:
        return found
    return _of_object(each, most)


def _of_callable(each: object) -> list[object] | None:
    """What a function works on: what it closes over, the data it names in its file, what it is bound to."""
    if isinstance(each, types.FunctionType):
        around = [cell.cell_contents for cell in each.__closure__ or () if _is_filled(cell)]
        return [*around, *_named_data(each)]
    if isinstance(each, functools.partial):
        return [each.func, each.args, each.keywords]
    if isinstance(each, types.MethodType):
        return [each.__self__, each.__func__]
    if isinstance(each, types.BuiltinFunctionType | types.MethodWrapperType):
        return [each.__self__]
    descriptors = (types.MethodDescriptorType, types.WrapperDescriptorType, functools._lru_cache_wrapper)
    return [] if isinstance(each, descriptors) else None


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _named_data(function: types.FunctionType) -> list[object]:
    """The objects of its file that a function names, but for functions, classes, imported files and torch's own."""
    if _is_from_torch(function.__module__):
        return []
    named = [function.__globals__.get(name) for name in _names(function.__code__)]
    return [value for value in named if _is_data(type(value))]


def _names(code: types.CodeType) -> Iterator[str]:
    """All that a function names, and what is written inside it: lambdas, and comprehensions of older Pythons."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_data(kind: type) -> bool:
    if issubclass(kind, Tensor | nn.Module | torch.Generator):
        return True
    return not (issubclass(kind, _CODE) or _is_from_torch(kind.__module__))


def _of_class(kind: type) -> list[object]:
    """The data that all objects of a class share, and their forward."""
    if kind.__module__ == "builtins" or _is_from_torch(kind.__module__):
        return []
    data = [
        value
        for name, value in vars(kind).items()
        if name == "forward"
        or not (
            name.startswith(("__", "_abc_"))
            or hasattr(type(value), "__get__")
            or (callable(value) and not _is_data(type(value)))
        )
    ]
    return [*data, *kind.__bases__]


def _is_from_torch(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"


def _of_object(each: object, most: int) -> list[object] | None:
    """The attributes of a plain object; None if its class keeps what it has elsewhere. Runs no code of its class."""
    slots = [
        member
        for kind in type(each).__mro__
        if "__slots__" in vars(kind)
        for member in vars(kind).values()
        if type(member) is types.MemberDescriptorType
    ]
    try:
        own = object.__getattribute__(each, "__dict__")
    except AttributeError:
        if not slots:  # a sentinel holds nothing
            return [] if type(each).__basicsize__ == object.__basicsize__ else None
        own = {}
    if isinstance(own, Mapping) and len(own) > most:
        return None
    values = []
    for member in slots:
        with contextlib.suppress(AttributeError):  # it is not set
            values.append(member.__get__(each))
    return [*(own if isinstance(own, Mapping) else {}).values(), *values, type(each)]
