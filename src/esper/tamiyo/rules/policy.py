"""What a policy without learning is."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from esper.leyline import ActionSpec, Situation
from esper.tamiyo.rules.schedule import Clause, Schedule


class RulePolicy(Protocol):
    """Decides for one host, once an epoch, and only ever what is legal. One instance per env."""

    def reset(self) -> None:
        """A new episode begins."""
        ...

    def act(self, situation: Situation) -> ActionSpec: ...


# What a rule remembers between epochs, as plain data that can be saved and taken up again.
#
# By convention a rule keeps its options in public fields and what it has lived through in fields that begin with an
# underscore. Only the latter are remembered.


Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def remember(rule: RulePolicy) -> Plain:
    """Everything that `recall` needs to have an equal rule go on."""
    return {name: _packed(name, getattr(rule, name)) for name in _memories(rule)}


def recall(rule: RulePolicy, memory: object) -> None:
    """Take up what `remember` gave for a rule of the same kind."""
    names = _memories(rule)
    if not isinstance(memory, dict) or set(memory) != set(names):
        raise ValueError(f"the memory {memory!r} is not that of a {type(rule).__name__} ({', '.join(names)})")
    for name in names:
        _restore(rule, name, memory[name])


def _memories(rule: object) -> list[str]:
    slots = getattr(type(rule), "__slots__", None)
    names: Iterable[str] = vars(rule) if slots is None else slots
    return sorted(name for name in names if name.startswith("_"))


def _restore(rule: object, name: str, packed: Plain) -> None:
    if isinstance(packed, dict) and "rule" in packed:  # a rule within a rule goes on itself
        recall(getattr(rule, name), packed["rule"])
    elif isinstance(packed, dict) and "generator" in packed:
        getattr(rule, name).bit_generator.state = packed["generator"]
    else:
        setattr(rule, name, _unpacked(packed))


def _packed(name: str, value: object) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Clause):
        return {"clause": str(value)}
    if isinstance(value, set):
        return {"set": sorted((_packed(name, each) for each in value), key=repr)}
    if isinstance(value, tuple):
        return {"tuple": [_packed(name, each) for each in value]}
    if isinstance(value, list):
        return [_packed(name, each) for each in value]
    if isinstance(value, np.random.Generator):
        return {"generator": value.bit_generator.state}  # type: ignore[dict-item] # plain numbers, nested
    if hasattr(value, "act") and hasattr(value, "reset"):
        return {"rule": remember(value)}
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be saved: keep plain data in it")


def _unpacked(packed: Plain) -> object:
    if isinstance(packed, list):
        return [_unpacked(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "clause":
        return Schedule.parse(str(content)).clauses[0]
    assert isinstance(content, list)
    members = [_unpacked(each) for each in content]
    return set(members) if kind == "set" else tuple(members)
