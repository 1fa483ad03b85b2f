"""Curves over rounds; an unknown value is a gap."""

import math
from dataclasses import dataclass

from esper.karn.watch.state import RunState

Value = float | None


@dataclass(frozen=True, slots=True)
class Curve:
    rounds: list[int]
    values: list[Value]
    low: list[Value]
    """Of the 95 % interval."""
    high: list[Value]


def measured(state: RunState, name: str) -> Curve:
    """What rounds measured, by the names of a point."""
    points = state.points()
    nothing: list[Value] = [None] * len(points)
    return Curve(
        [point.round for point in points], [point.measured[name] for point in points], nothing, nothing
    )


def over_episodes(state: RunState, name: str) -> Curve:
    """The mean over the episodes of a point with its interval, by the names of RoundSums."""
    points = state.points()
    estimates = [point.episodes[name] for point in points]
    return Curve(
        [point.round for point in points],
        [each.mean for each in estimates],
        [each.low for each in estimates],
        [each.high for each in estimates],
    )


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
