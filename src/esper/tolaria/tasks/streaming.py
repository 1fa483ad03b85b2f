"""How the plans of streams are drawn: so many changes of some kinds, at random times."""

from collections.abc import Sequence

import numpy as np

from esper.tolaria.tasks.changes import Change, parse_plan
from esper.tolaria.tasks.parameters import Parameter, ParameterError
from esper.tolaria.tasks.stream import CAP, EPOCHS, phases_of

DRAWN_KINDS = ("shuffle", "labels", "classes", "noise", "return", "alarm")
"""What suites train on; `corrupt` is held out."""
DRAWN_COUNTS = range(3, 8)
"""How many changes; 8 to 10 are held out."""
_CAPS = (0.5, 1.0, CAP, 2.0)
_FIRST, _APART = 5, 5
"""Epochs before the first change, and from one to the next, at least."""


def streaming(
    parameters: dict[str, Parameter], count: int, kinds: Sequence[str], rng: np.random.Generator
) -> dict[str, Parameter]:
    """The same case with `count` changes of these kinds and a cap; every change changes something."""
    stream = {**parameters, "classes": 10, "cap": float(rng.choice(_CAPS))}
    plan: list[Change] = []
    for epoch in change_epochs(count, rng):
        while True:
            change = _drawn(epoch, str(rng.choice(kinds)), len(plan), rng)
            try:
                stream["plan"] = "/".join(map(str, [*plan, change]))
                phases_of(stream)
            except ParameterError:  # it would change nothing
                continue
            break
        plan.append(change)
    return stream


def change_epochs(count: int, rng: np.random.Generator) -> list[int]:
    """Uniform over all ways to place so many changes with room before, between and after them."""
    free = EPOCHS - _FIRST - count * _APART
    if free < 0:
        raise ValueError(
            f"count is {count}; {EPOCHS} epochs have room for {(EPOCHS - _FIRST) // _APART} changes"
        )
    gaps = np.sort(rng.choice(free + count, size=count, replace=False)) - np.arange(count)
    return [_FIRST + _APART * place + int(gap) for place, gap in enumerate(gaps)]


def _drawn(epoch: int, kind: str, before: int, rng: np.random.Generator) -> Change:
    amounts = {
        "shuffle": 0 if rng.random() < 0.5 else int(rng.integers(50, 101)),
        "classes": int(rng.integers(4, 11)),
        "noise": 0 if rng.random() < 0.5 else int(rng.integers(10, 41)),
        "corrupt": 0 if rng.random() < 0.3 else int(rng.integers(20, 61)),
        "return": int(rng.integers(0, before + 1)),
    }
    (drawn,) = parse_plan(str(Change(epoch, kind, amounts.get(kind, 0))))
    return drawn
