"""Rounds summed up in as many points as a screen can show, each computed once."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from esper.karn.watch.lines import real, whole
from esper.leyline import HEAD_NAMES, EpisodeFinished, RoundFinished

POINTS = 240
"""Points of a curve, at most."""


@dataclass(slots=True)
class Moments:
    """Count, sum and sum of squares of finite numbers, from which mean and interval follow."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float | None) -> None:
        """Add a number; None, NaN, Inf and what is too large to square are not counted."""
        if value is not None and abs(value) < 1e100:
            self.count += 1
            self.total += value
            self.squares += value * value

    @property
    def mean(self) -> float | None:
        """None without numbers."""
        return self.total / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, by Student's t; None with fewer than two numbers."""
        if self.count < 2:
            return None
        mean = self.total / self.count
        variance = max(self.squares - self.count * mean * mean, 0.0) / (self.count - 1)
        half = float(stdtrit(self.count - 1, 0.975)) * math.sqrt(variance / self.count)
        return mean - half, mean + half


def pooled(parts: Iterable[Moments]) -> Moments:
    """The moments of all numbers together."""
    together = Moments()
    for part in parts:
        together.count += part.count
        together.total += part.total
        together.squares += part.squares
    return together


EPISODE_MEASURES: Mapping[str, Callable[[EpisodeFinished], float | None]] = {
    "gain": lambda row: row.gain,
    "utility": lambda row: row.utility,
    "baseline_utility": lambda row: (
        None if row.utility is None or row.gain is None else row.utility - row.gain
    ),
    "accuracy": lambda row: row.validation_accuracy,
    "baseline_accuracy": lambda row: row.control_accuracy,
}
"""Name -> what is averaged over the episodes of a round."""
ROUND_MEASURES: Mapping[str, Callable[[RoundFinished], float | None]] = {
    "explained_variance": lambda row: row.explained_variance,
    "approx_kl": lambda row: row.approx_kl,
    "grad_norm": lambda row: row.grad_norm,
    "env_epochs_per_second": lambda row: row.env_epochs_per_second,
    "seconds": lambda row: row.seconds,
    "peak_memory": lambda row: None if (size := whole(row.peak_memory_bytes)) is None else size / 2**20,
}
"""Name -> what is drawn of a round; memory in MiB. The entropies of the heads are drawn too, by the heads' names."""
RoundSums = defaultdict[str, Moments]
"""Name of an episode measure -> its moments over the episodes that ended in a round and were not lost."""


def add_episode(sums: RoundSums, row: EpisodeFinished) -> None:
    """Add the measures of one episode."""
    for name, pick in EPISODE_MEASURES.items():
        sums[name].add(pick(row))


@dataclass(frozen=True, slots=True)
class Point:
    """Neighbouring rounds together."""

    round: int
    """The last of them."""
    measured: Mapping[str, float | None]
    """Name of a round measure, or of a head for its entropy -> the mean over rounds where it is known."""
    operations: Mapping[str, int]
    """Operation -> times it was executed."""
    episodes: Mapping[str, Moments]
    """Name of an episode measure -> its moments over all their episodes."""

    @staticmethod
    def of(rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> "Point":
        """The point of these rounds; `sums` has the episodes by round."""
        measured = {name: _mean([pick(row) for row in rounds]) for name, pick in ROUND_MEASURES.items()}
        measured |= {head: _mean([row.entropy_by_head.get(head) for row in rounds]) for head in HEAD_NAMES}
        operations: Counter[str] = Counter()
        for row in rounds:
            operations.update(row.operations)
        parts = [sums[row.round] for row in rounds if row.round in sums]
        episodes = {name: pooled(part[name] for part in parts if name in part) for name in EPISODE_MEASURES}
        return Point(rounds[-1].round, measured, operations, episodes)


class Points:
    """The points of a run that only grows. A full point is not made again until there are too many points."""

    __slots__ = ("_all", "_full", "_rounds", "_size")

    def __init__(self) -> None:
        self._full: list[Point] = []
        self._size = 1
        """Rounds in a point; it doubles."""
        self._all: list[Point] = []
        self._rounds = 0
        """Rounds that `_all` was made of."""

    def of(self, rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> list[Point]:
        """The points of all rounds so far."""
        rounds = rounds[:]  # another thread may add to them meanwhile
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
    """The mean of what is known and finite."""
    known = [number for value in values if (number := real(value)) is not None]
    return sum(value / len(known) for value in known) if known else None  # the sum of all might overflow
