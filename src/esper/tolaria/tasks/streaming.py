"""How the plans of streams are drawn: data move between two regimes, and other changes are sprinkled in.

In one regime growth pays (positions shuffled, labels clean), in the other it harms (positions in order, labels
noisy). What is right for a host therefore changes while it lives, more than once, and no number that it is told shows
which it is: the training samples change too, but on their own.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from esper.tolaria.tasks.plans import Change, written
from esper.tolaria.tasks.stream import CAP, EPOCHS, phases_of
from esper.tolaria.tasks.task import Parameter, ParameterError

SPRINKLED_KINDS = ("shuffle", "labels", "classes", "samples", "return", "alarm")
"""What happens within a regime, of what suites train on; `corrupt` is held out."""
DRAWN_SWITCHES = range(2, 5)
"""How often the regime changes; 5 and 6 times are held out."""
SPRINKLED = range(1, 4)
"""How many changes there are beside."""
REGIME_EPOCHS = 12
"""Epochs of a regime, at least."""
_APART = 5
"""Epochs from a sprinkled change to any other, to the start and to the end, at least."""
_CAPS = (0.5, 1.0, CAP, 2.0)
_SAMPLES = (900, 3000)
"""The fewest and the most samples; any size between is as likely as half or twice it."""
_RETURNS = 0.3
"""How often a switch goes back to a state that was there, where it can."""


def streaming(
    base: Mapping[str, Parameter], switches: int, kinds: Sequence[str], rng: np.random.Generator
) -> dict[str, Parameter]:
    """A stream with so many switches, changes of these kinds beside them, and a cap.

    base  `permutation` and `data`
    """
    pays = bool(rng.integers(2))
    shuffle, noise = _regime(pays, rng)
    stream: dict[str, Parameter] = {
        **base,
        "size": _samples(rng),
        "noise": noise / 100,
        "shuffled": shuffle / 100,
        "classes": 10,
        "cap": float(rng.choice(_CAPS)),
    }
    switched = switch_epochs(switches, EPOCHS, rng)
    plan: list[Change] = []
    paying: list[bool | None] = [pays]  # after so many changes; None amid a switch
    for epoch in sorted([*switched, *_sprinkled_epochs(switched, rng)]):
        if epoch in switched:
            pays = not pays
            plan += _switch(epoch, pays, paying, rng)
            paying += [None] * (len(plan) - len(paying)) + [pays]
            stream["plan"] = written(plan)
            phases_of(stream)  # a switch changes something: an error here is one of the draws
            continue
        while True:
            change = _drawn(epoch, str(rng.choice(kinds)), paying, rng)
            try:
                phases_of(stream | {"plan": written([*plan, change])})
            except ParameterError:  # it would change nothing
                continue
            break
        plan.append(change)
        paying.append(pays)
        stream["plan"] = written(plan)
    return stream


def switch_epochs(count: int, epochs: int, rng: np.random.Generator) -> list[int]:
    """Uniform over all ways to cut a life of so many epochs into `count` and one regimes that last."""
    free = epochs - (count + 1) * REGIME_EPOCHS
    if free < 0:
        raise ValueError(
            f"count is {count}; {epochs} epochs have room for {epochs // REGIME_EPOCHS - 1} switches"
        )
    gaps = np.sort(rng.choice(free + count, size=count, replace=False)) - np.arange(count)
    return [REGIME_EPOCHS * place + int(gap) for place, gap in enumerate(gaps, start=1)]


def _sprinkled_epochs(taken: Sequence[int], rng: np.random.Generator) -> list[int]:
    chosen: list[int] = []
    for _ in range(int(rng.integers(SPRINKLED.start, SPRINKLED.stop))):
        others = [0, *taken, *chosen, EPOCHS]
        free = [epoch for epoch in range(EPOCHS) if all(abs(epoch - other) >= _APART for other in others)]
        if free:
            chosen.append(int(rng.choice(free)))
    return chosen


def _regime(pays: bool, rng: np.random.Generator) -> tuple[int, int]:
    """Percent of the positions that are shuffled, percent of the labels that are wrong."""
    if pays:
        return int(rng.integers(80, 101)), int(rng.integers(0, 9))
    return 0, int(rng.integers(25, 41))


def _samples(rng: np.random.Generator) -> int:
    return round(float(np.exp(rng.uniform(*np.log(_SAMPLES)))))


def _switch(epoch: int, pays: bool, paying: Sequence[bool | None], rng: np.random.Generator) -> list[Change]:
    """Into the other regime: a new state of it, or one that was there."""
    known = [number for number, paid in enumerate(paying) if paid is pays]
    if known and rng.random() < _RETURNS:
        return [Change(epoch, "return", int(rng.choice(known)))]
    amounts = zip(("shuffle", "noise"), _regime(pays, rng), strict=True)
    return [Change(epoch, kind, amount) for kind, amount in amounts]


def _drawn(epoch: int, kind: str, paying: Sequence[bool | None], rng: np.random.Generator) -> Change:
    """A change that leaves the regime as it is; it may be one that changes nothing."""
    now = paying[-1]
    amounts = {
        "shuffle": int(rng.integers(80, 101)) if now else 0,
        "classes": int(rng.integers(4, 11)),
        "samples": _samples(rng),
        "corrupt": 0 if rng.random() < 0.3 else int(rng.integers(20, 61)),
        "return": int(rng.choice([number for number, paid in enumerate(paying) if paid is now])),
    }
    return Change(epoch, kind, amounts.get(kind))
