"""Summaries of scores, the paired bootstrap over hosts, and what a comparison could have detected.

An arm's scores are (member, instance, seed): `member` is a controller trained from another rng seed (rules have one),
`instance` a task instance, `seed` the number of a host of that instance. Arms that met the same hosts are compared in
pairs: one set of bootstrap draws serves all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, isnan, nan, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Scores = Floats
"""(member, instance, seed)"""
Statistic = Callable[..., Floats]
"""Maps one array per arm, scores (..., member, instance, seed) or means (...), to (...)."""

LEAST = 6
"""Values from which an interval is made: of five, not even equal signs of all would be a difference at 5 % (2 / 2^5),
and drawing from two takes noise for a difference every other time."""
DRAWS = 4000
ENOUGH_FOR = 80
"""Comparisons that DRAWS serve: the smallest p value they give is 4 % when it is adjusted for all of them."""
DRAWS_EACH = 400
"""Draws for each comparison where there are more: the smallest p value, adjusted for all, is 2 / DRAWS_EACH."""
LEVEL = 0.95
_MEAN_DRAWS = 2000


# Summaries


def interquartile_mean(scores: ArrayLike) -> Floats:
    """(..., score) -> (...): the mean of the middle half of the scores. (Agarwal et al., 2021.)

    A quarter of them, rounded down, is left out at each end.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    if ordered.size == 0:
        raise ValueError("scores is empty: there is nothing to average")
    cut = ordered.shape[-1] // 4
    means: Floats = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return means


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """(threshold,): the share of all scores that reach each threshold."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    if ordered.size == 0:
        raise ValueError("scores is empty: it has no profile")
    below = np.searchsorted(ordered, np.asarray(thresholds, dtype=np.float64), side="left")
    shares: Floats = 1.0 - below / ordered.size
    return shares


def mean_interval(values: ArrayLike) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the mean of (value,); the draws are always the same. None of too few."""
    drawn_from = np.asarray(values, dtype=np.float64)
    if drawn_from.ndim != 1 or drawn_from.size == 0:
        raise ValueError(f"values has shape {drawn_from.shape}; expected one dimension, not empty")
    if drawn_from.size < LEAST:
        return None
    picks = np.random.default_rng(0).integers(drawn_from.size, size=(_MEAN_DRAWS, drawn_from.size))
    low, high = np.quantile(drawn_from[picks].mean(axis=1), (0.025, 0.975)).tolist()
    return low, high


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; its ends are NaN where there is too little to make one from."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies wholly above or below 0; else 0."""
        return 1 if self.low > 0.0 else -1 if self.high < 0.0 else 0

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return not isnan(self.low)

    def __str__(self) -> str:
        if not self.bounded:
            return f"{self.value:+.4f}"
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


# The bootstrap


def enough(instances: int, seeds: int, *, new_instances: bool = False) -> bool:
    """Whether so many hosts make an interval.

    Drawn within instances, hosts vary around the mean of theirs: there are to be LEAST - 1 more hosts than instances.
    Of members nothing is asked: over a few that differ, an interval says less of others than its level.
    """
    return (instances if new_instances else instances * (seeds - 1) + 1) >= LEAST


def least_seeds(instances: int) -> int:
    """Hosts of each of so many instances that make an interval."""
    return 1 + ceil((LEAST - 1) / instances)


def draws_for(comparisons: int) -> int:
    """Draws that a p value is to come from, so that it can be small enough once it is adjusted for so many."""
    return DRAWS if comparisons <= ENOUGH_FOR else DRAWS_EACH * comparisons


class Resamples:
    """Bootstrap draws of members and hosts, the same for every arm of one design.

    Seeds are drawn within each instance, members as a whole, both with replacement. Of n, n - 1 are drawn. Where one
    level is drawn, the variance of a drawn mean is then that of the mean, not (n - 1) / n of it (Rao and Wu, 1988);
    where several are, noise that is each episode's own comes in at every level, and intervals are too wide for it.
    An interval over two to five members that differ is too short: `benchmarks/study_intervals.py` measures both.

    new_instances  draw the instances too: what to expect of others like them, a wider interval

    A few hosts say nothing of others, and a few instances nothing of others: what is drawn of them has no interval.
    """

    def __init__(
        self, instances: int, seeds: int, *, draws: int = DRAWS, seed: int = 0, new_instances: bool = False
    ) -> None:
        if instances < 1 or seeds < 1:
            raise ValueError(
                f"a design needs at least one instance and one seed, not {instances} and {seeds}"
            )
        self.shape, self.draws = (instances, seeds), draws
        self.enough = enough(instances, seeds, new_instances=new_instances)
        """Whether there are so many that draws of them make an interval."""
        self._seed = seed
        rng = np.random.default_rng((0xB007, seed))
        everything = np.broadcast_to(np.arange(instances), (draws, instances))
        taken = _drawn_of(instances) if new_instances else instances
        self._instance = rng.integers(instances, size=(draws, taken)) if new_instances else everything
        self._picked = rng.integers(seeds, size=(draws, taken, _drawn_of(seeds)))

    def of(self, scores: Scores) -> Floats:
        """(draw, member, instance, seed): one arm's scores as drawn."""
        member = self._members(self._checked(scores))
        drawn: Floats = scores[
            member[:, :, None, None], self._instance[:, None, :, None], self._picked[:, None, :, :]
        ]
        return drawn

    def estimate(self, statistic: Statistic, *scores: Scores) -> Estimate:
        """A statistic of the arms' scores, with its interval over the draws."""
        value = float(statistic(*scores))
        if not self.enough:
            return Estimate(value, nan, nan)
        return interval(value, statistic(*(self.of(each) for each in scores)))

    # Means are linear in the scores: counting how often each was drawn is enough, and much faster.

    def means(self, scores: Scores) -> Floats:
        """(draw,): the mean of one arm's scores."""
        member = self._members(self._checked(scores))  # (draw, member)
        counts = np.stack([(member == each).mean(axis=1) for each in range(len(scores))])  # (member, draw)
        by_member = scores.reshape(len(scores), -1) @ self._weights.T  # (member, draw)
        drawn: Floats = (counts * by_member).sum(axis=0)
        return drawn

    def distribution(self, combine: Statistic, *scores: Scores) -> Floats:
        """(draw,): a statistic of the arms' means; NaN where there are too few to draw from."""
        if not self.enough:
            return np.full(self.draws, nan)
        return combine(*(self.means(each) for each in scores))

    def estimate_of_means(self, combine: Statistic, *scores: Scores) -> Estimate:
        """A statistic of the arms' means, with its interval over the draws."""
        value = float(combine(*(self._checked(each).mean() for each in scores)))
        return interval(value, self.distribution(combine, *scores))

    @cached_property
    def _weights(self) -> Floats:
        """(draw, instance x seed): the share of a draw that each host is."""
        instances, seeds = self.shape
        hosts = (self._instance[..., None] * seeds + self._picked).reshape(self.draws, -1)
        hosts = hosts + np.arange(self.draws)[:, None] * instances * seeds
        counts = np.bincount(hosts.ravel(), minlength=self.draws * instances * seeds)
        weights: Floats = counts.reshape(self.draws, -1) / (hosts.shape[1])
        return weights

    def _members(self, scores: Scores) -> NDArray[np.int64]:
        """(draw, member). Arms with equally many members draw the same ones: copies of a controller stay paired.

        Where there are two, a draw takes one of them: an interval then reaches from the one to the other.
        """
        rng = np.random.default_rng((0x3E3B, self._seed, len(scores)))
        return rng.integers(len(scores), size=(self.draws, _drawn_of(len(scores))))

    def _checked(self, scores: Scores) -> Scores:
        if scores.ndim != 3 or scores.shape[1:] != self.shape:
            raise ValueError(
                f"scores have shape {scores.shape}; expected (member, {self.shape[0]}, {self.shape[1]})"
            )
        return scores


def _drawn_of(count: int) -> int:
    """How many a draw takes where there are `count`."""
    return max(count - 1, 1)


def interval(value: float, drawn: Floats) -> Estimate:
    """The middle 95 % of the draws; those in which the statistic is not defined do not count."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return Estimate(value, nan, nan)
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return Estimate(value, low, high)


class TwoSidedP:
    """The p values of differences from 0, from draws that come a batch at a time and are not kept."""

    def __init__(self) -> None:
        self._draws, self._counts = 0, np.zeros((2, 0), dtype=np.int64)
        self._unknown: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def add(self, drawn: Floats) -> None:
        """(difference, draw), the same differences each time; NaN where they are not defined."""
        counts = np.stack([(drawn <= 0.0).sum(axis=1), (drawn >= 0.0).sum(axis=1)])  # (side, difference)
        self._counts = self._counts + counts if self._draws else counts
        self._draws += drawn.shape[1]
        self._unknown = np.asarray(np.isnan(drawn).all(axis=1))

    def values(self) -> list[float]:
        """(difference,): never quite 0, and NaN where no draw is defined."""
        found = np.minimum(1.0, 2.0 * (self._counts.min(axis=0) + 1) / (self._draws + 1))
        pairs = zip(found.tolist(), self._unknown.tolist(), strict=True)
        return [nan if unknown else value for value, unknown in pairs]  # one nan: tables of it are then equal


# Comparisons


def paired_difference(treatment: Floats, control: Floats) -> Floats:
    """Treatment minus control, of means over the same hosts (...)."""
    difference: Floats = treatment - control
    return difference


def share_of_gap(treatment: Floats, low: Floats, high: Floats) -> Floats:
    """(treatment - low) / (high - low), of means (...); NaN where there is no gap."""
    gap = np.asarray(high - low)
    share: Floats = np.full(gap.shape, np.nan)
    np.divide(treatment - low, gap, out=share, where=gap > 0.0)
    return share


def wins(treatment: Floats, control: Floats) -> Floats:
    """(member, instance, seed): 1 where treatment beats control on the same host, 0.5 where they tie, 0 elsewhere.

    With equally many members, member meets member; otherwise every member meets the mean of the others.
    """
    if len(treatment) != len(control):
        control = control.mean(axis=0, keepdims=True)
    won: Floats = 0.5 + 0.5 * np.sign(treatment - control)
    return won


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for the number of comparisons: step down from the smallest, never falling. (Holm, 1979.)

    Where none is known, as with too few hosts, none is adjusted.
    """
    if all(map(isnan, p_values)):
        return list(p_values)
    for p_value in p_values:
        if not 0.0 <= p_value <= 1.0:
            raise ValueError(f"p_values has {p_value}; expected numbers from 0 to 1")
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, reached = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def within_deviation(difference: Floats) -> float:
    """The standard deviation of paired differences (instance, seed) within an instance, pooled over instances."""
    if difference.ndim != 2 or difference.shape[1] < 2:
        raise ValueError(
            f"difference has shape {difference.shape}; expected (instance, seed) with 2 or more seeds"
        )
    return float(np.sqrt(difference.var(axis=1, ddof=1).mean()))


def detectable_difference(deviation: float, pairs: int, *, power: float = 0.8, level: float = 0.05) -> float:
    """The smallest mean difference that a two-sided test over so many pairs finds with this chance."""
    normal = NormalDist()
    return (normal.inv_cdf(1 - level / 2) + normal.inv_cdf(power)) * deviation / sqrt(pairs)
