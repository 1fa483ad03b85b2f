"""Stratified bootstrap intervals over (member, instance, seed).

An arm's scores are (member, instance, seed): `member` is a controller trained from another training seed (rules have
one), `instance` a task instance, `seed` a host seed of it. Seeds are drawn anew within each instance, members as a
whole, both with replacement: two levels where there are several members. One draw serves every arm, so that arms
which met the same hosts stay paired.

Of n, n - 1 are drawn: the variance of a drawn mean is then that of the mean, not (n - 1) / n of it (Rao and Wu,
1988).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from esper.simic.statistics.summaries import Floats

Scores = Floats
"""(member, instance, seed)"""
Statistic = Callable[..., Floats]
"""Of scores (..., member, instance, seed), or of means (...), one array per arm, to (...)."""
DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies wholly above or below 0; else 0."""
        return 1 if self.low > 0.0 else -1 if self.high < 0.0 else 0

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


class Resamples:
    """Draws of instances and seeds, the same for every arm of one design.

    new_instances  also draw the instances anew: what to expect of others like them, a wider interval
    """

    def __init__(
        self, instances: int, seeds: int, *, draws: int = DRAWS, seed: int = 0, new_instances: bool = False
    ) -> None:
        if instances < 1 or seeds < 1:
            raise ValueError(
                f"a design needs at least one instance and one seed, not {instances} and {seeds}"
            )
        self.shape, self.draws = (instances, seeds), draws
        self._seed = seed
        rng = np.random.default_rng((0xB007, seed))
        everything = np.broadcast_to(np.arange(instances), (draws, instances))
        taken = fewer(instances) if new_instances else instances
        self._instance = rng.integers(instances, size=(draws, taken)) if new_instances else everything
        self._picked = rng.integers(seeds, size=(draws, taken, fewer(seeds)))

    def of(self, scores: Scores) -> Floats:
        """(draw, member, instance, seed) of one arm's scores."""
        member = self._members(self._checked(scores))
        drawn: Floats = scores[
            member[:, :, None, None], self._instance[:, None, :, None], self._picked[:, None, :, :]
        ]
        return drawn

    def estimate(self, statistic: Statistic, *scores: Scores) -> Estimate:
        """What a statistic of scores is, with the middle 95 % of what it is over the draws."""
        return interval(float(statistic(*scores)), statistic(*(self.of(each) for each in scores)))

    # Means are linear in the scores: counting how often each was drawn is enough, and much faster.

    def means(self, scores: Scores) -> Floats:
        """(draw,): the mean of one arm's scores."""
        member = self._members(self._checked(scores))  # (draw, member)
        counts = np.stack([(member == each).mean(axis=1) for each in range(len(scores))])  # (member, draw)
        by_member = scores.reshape(len(scores), -1) @ self._weights.T  # (member, draw)
        drawn: Floats = (counts * by_member).sum(axis=0)
        return drawn

    def distribution(self, combine: Statistic, *scores: Scores) -> Floats:
        """(draw,): of a statistic of the arms' means."""
        return combine(*(self.means(each) for each in scores))

    def estimate_of_means(self, combine: Statistic, *scores: Scores) -> Estimate:
        """What a statistic of the arms' means is, with the middle 95 % of what it is over the draws."""
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
        """(draw, member). Arms with as many members draw the same ones: a copy of a controller stays beside it."""
        rng = np.random.default_rng((0x3E3B, self._seed, len(scores)))
        return rng.integers(len(scores), size=(self.draws, fewer(len(scores))))

    def _checked(self, scores: Scores) -> Scores:
        if scores.ndim != 3 or scores.shape[1:] != self.shape:
            raise ValueError(
                f"scores have shape {scores.shape}; expected (member, {self.shape[0]}, {self.shape[1]})"
            )
        return scores


def interval(value: float, drawn: Floats) -> Estimate:
    """Draws in which the statistic is not defined do not count."""
    known = drawn[np.isfinite(drawn)]
    if not len(known):
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return Estimate(value, low, high)


def two_sided_p(drawn: Floats) -> float:
    """How likely a difference this far from 0 is if there is none, from its draws; never quite 0."""
    count = len(drawn)
    beyond = min(int((drawn <= 0.0).sum()), int((drawn >= 0.0).sum()))
    return min(1.0, 2.0 * (beyond + 1) / (count + 1))


def fewer(count: int) -> int:
    return max(count - 1, 1)
