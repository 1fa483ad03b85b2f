"""Rounds summed up in as many points as a screen can show, each made once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from esper.karn.watch.moments import Moments, pooled
from esper.karn.watch.rows import EpisodeRow, whole
from esper.leyline import HEAD_NAMES, RoundFinished

POINTS = 240


@dataclass(slots=True)
class RoundSums:
    """Over the episodes that ended in a round, or in several, and were not lost."""

    gain: Moments = field(default_factory=Moments)
    utility: Moments = field(default_factory=Moments)
    control_utility: Moments = field(default_factory=Moments)
    accuracy: Moments = field(default_factory=Moments)
    control_accuracy: Moments = field(default_factory=Moments)

    def add(self, row: EpisodeRow) -> None:
        self.gain.add(row.gain)
        self.utility.add(row.utility)
        self.control_utility.add(row.control_utility)
        self.accuracy.add(row.accuracy)
        self.control_accuracy.add(row.control_accuracy)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over episodes and its 95 % interval, as far as they are known."""

    mean: float | None
    low: float | None
    high: float | None

    @staticmethod
    def of(moments: Moments) -> "Estimate":
        low, high = moments.interval or (None, None)
        return Estimate(moments.mean, low, high)


MEASURES: Mapping[str, Callable[[RoundFinished], float | None]] = {
    "explained_variance": lambda row: row.explained_variance,
    "approx_kl": lambda row: row.approx_kl,
    "grad_norm": lambda row: row.grad_norm,
    "env_epochs_per_second": lambda row: row.env_epochs_per_second,
    "seconds": lambda row: row.seconds,
    "peak_memory": lambda row: _mebibytes(whole(row.peak_memory_bytes)),
}
"""What is drawn of a round, by name; memory in MiB."""


@dataclass(frozen=True, slots=True)
class Point:
    """Neighbouring rounds together."""

    round: int
    """The last of them."""
    measured: Mapping[str, float | None]
    """Means of what is known, by the names of MEASURES; of entropies by head."""
    operations: Mapping[str, int]
    """How often each was executed."""
    episodes: Mapping[str, Estimate]
    """By the names of RoundSums."""

    @staticmethod
    def of(rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> "Point":
        measured = {name: _mean([pick(row) for row in rounds]) for name, pick in MEASURES.items()}
        measured |= {head: _mean([row.entropy_by_head.get(head) for row in rounds]) for head in HEAD_NAMES}
        operations: dict[str, int] = {}
        for row in rounds:
            for name, times in row.operations.items():
                operations[name] = operations.get(name, 0) + times
        parts = [sums[row.round] for row in rounds if row.round in sums]
        episodes = {
            each.name: Estimate.of(pooled(getattr(part, each.name) for part in parts))
            for each in fields(RoundSums)
        }
        return Point(rounds[-1].round, measured, operations, episodes)


class Points:
    """The points of a run that only grows. One that is full is not made again until there are too many of them."""

    __slots__ = ("_all", "_full", "_rounds", "_size")

    def __init__(self) -> None:
        self._full: list[Point] = []
        self._size = 1
        """Rounds of a point; it doubles."""
        self._all: list[Point] = []
        self._rounds = 0
        """That `_all` was made of."""

    def of(self, rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> list[Point]:
        rounds = rounds[:]  # another visitor's look may add to them meanwhile
        if len(rounds) == self._rounds:
            return self._all
        while len(rounds) > self._size * POINTS:
            self._size *= 2
            self._full.clear()
        while len(rounds) - len(self._full) * self._size >= self._size:
            start = len(self._full) * self._size
            self._full.append(Point.of(rounds[start : start + self._size], sums))
        rest = rounds[len(self._full) * self._size :]
        self._all = [*self._full, Point.of(rest, sums)] if rest else list(self._full)
        self._rounds = len(rounds)
        return self._all


def _mean(values: Sequence[float | None]) -> float | None:
    """Of what is known and finite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(value / len(known) for value in known) if known else None  # the sum of all might overflow


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / 2**20
