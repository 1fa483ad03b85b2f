"""Rounds summed up in as many points as a screen can show, each made once."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from esper.karn.watch.lines import EpisodeRow, whole
from esper.leyline import HEAD_NAMES, RoundFinished

# Means and their intervals, from sums that can be added up.


_Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


@dataclass(slots=True)
class Moments:
    """Of finite numbers; others are not counted."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float | None) -> None:
        if value is not None and abs(value) < 1e100:  # squares of more would overflow
            self.count += 1
            self.total += value
            self.squares += value * value

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, by Student's t; None of fewer than two."""
        if self.count < 2:
            return None
        mean = self.total / self.count
        variance = max(self.squares - self.count * mean * mean, 0.0) / (self.count - 1)
        half = t_quantile(self.count - 1) * math.sqrt(variance / self.count)
        return mean - half, mean + half


def pooled(parts: Iterable[Moments]) -> Moments:
    whole = Moments()
    for part in parts:
        whole.count += part.count
        whole.total += part.total
        whole.squares += part.squares
    return whole


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t; an expansion in 1 / freedom (Abramowitz and Stegun 26.7.5), within 1 %."""
    if freedom == 1:
        return 12.706204736
    if freedom == 2:
        return 4.302652730
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


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
