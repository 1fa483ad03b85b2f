"""Curves over rounds, in as many points as a screen can show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.karn.watch.moments import Moments, pooled
from esper.karn.watch.state import RoundSums, RunState
from esper.leyline import RoundFinished

POINTS = 240
Value = float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Points by round; an unknown value is a gap."""

    rounds: list[int]
    values: list[Value]
    low: list[Value]
    """Of the 95 % interval."""
    high: list[Value]


def measured(state: RunState, pick: Callable[[RoundFinished], float | None]) -> Curve:
    """What each round measured, averaged where rounds share a point."""
    ends: list[int] = []
    values: list[Value] = []
    for group in groups(state.rounds):
        known = [value for value in map(finite, map(pick, group)) if value is not None]
        ends.append(group[-1].round)
        values.append(sum(known) / len(known) if known else None)
    nothing: list[Value] = [None] * len(ends)
    return Curve(ends, values, nothing, nothing)


def over_episodes(state: RunState, pick: Callable[[RoundSums], Moments]) -> Curve:
    """The mean over the episodes of the rounds of a point, with its interval."""
    curve = Curve([], [], [], [])
    for group in groups(state.rounds):
        sums = [state.sums[row.round] for row in group if row.round in state.sums]
        whole = pooled(map(pick, sums))
        low, high = whole.interval or (None, None)
        curve.rounds.append(group[-1].round)
        curve.values.append(whole.mean)
        curve.low.append(low)
        curve.high.append(high)
    return curve


def groups(rounds: Sequence[RoundFinished], points: int = POINTS) -> list[Sequence[RoundFinished]]:
    """Neighbours together, the same number in each, so that at most `points` groups remain."""
    size = max(1, math.ceil(len(rounds) / points))
    return [rounds[start : start + size] for start in range(0, len(rounds), size)]


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
