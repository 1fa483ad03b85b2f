"""From names and glob patterns to the host's submodules."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from esper.kasmina.errors import WrapError


def resolve_slots(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Name -> submodule for every pattern.

    `*` stays inside one part of a dotted name (`layer*` is layer1 and layer2, not layer1.0); `**` crosses dots.
    """
    if isinstance(patterns, str):
        raise WrapError(
            f"slots must be a list of names, not the string {patterns!r}: write slots=[{patterns!r}]"
        )
    if not patterns:
        raise WrapError("slots is empty: name at least one submodule, for instance one of " + _some(model))
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        parts = pattern.split(".")
        names = [name for name in modules if _matches(parts, name.split("."))]
        if not names:
            raise WrapError(_unknown(pattern, list(modules)))
        found.update({name: modules[name] for name in names})
    by_identity: dict[int, str] = {}
    for name, module in found.items():
        twin = by_identity.setdefault(id(module), name)
        if twin != name:
            raise WrapError(f"slots {twin!r} and {name!r} are one and the same submodule: name it once")
    return found


def _matches(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Part by part; a part `**` stands for any number of parts."""
    if not pattern:
        return not name
    head, *rest = pattern
    if head == "**":
        return any(_matches(rest, name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and fnmatchcase(name[0], head) and _matches(rest, name[1:])


def _unknown(pattern: str, names: list[str]) -> str:
    near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.5)
    last = pattern.split(".")[-1]
    near += [name for name in names if last and last in name.split(".") and name not in near][: 5 - len(near)]
    hint = "near matches: " + ", ".join(near) if near else "the model has " + ", ".join(names[:12])
    return f"no submodule matches slot {pattern!r}; {hint}"


def _some(model: nn.Module) -> str:
    return (
        ", ".join(name for name, _ in model.named_modules() if name)[:300] or "(the model has no submodules)"
    )
