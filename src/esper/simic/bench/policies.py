"""Policies that only a benchmark needs: growth at random but of the same size, and another episode's decisions."""

import math
from collections.abc import Sequence

import numpy as np

from esper.leyline import ActionSpec, BlueprintCard, LifecycleOp, Situation, Style
from esper.simic.bench.rows import SeedRow
from esper.tamiyo.rules import Clause, Schedule, SchedulePolicy
from esper.tamiyo.rules.reading import refusal

_NEAREST = 3
"""A random seed is one of so many that are nearest in size."""


def grown_at(
    seed: SeedRow, epoch: int, *, slot: str | None = None, blueprint: str | None = None
) -> list[Clause]:
    """Grow a seed like this one from `epoch` on: as soon as each step is legal, and kept as it was kept."""
    place = slot or seed.slot
    germinate = ActionSpec(
        LifecycleOp.GERMINATE,
        place,
        blueprint or seed.blueprint,
        style=Style(seed.style),
        alpha_target=seed.alpha_target,
    )
    clauses = [Clause(epoch, germinate), Clause(epoch + 1, ActionSpec(LifecycleOp.ADVANCE, place))]
    if seed.fossilized:
        clauses.append(Clause(epoch + 2, ActionSpec(LifecycleOp.FOSSILIZE, place)))
    return clauses


def from_birth(seeds: Sequence[SeedRow]) -> Schedule:
    """All of them from the first epoch on. Those that become fossils come first: they make room for the others."""
    ordered = sorted(seeds, key=lambda seed: not seed.fossilized)
    return Schedule(tuple(clause for seed in ordered for clause in grown_at(seed, 0)))


class RandomMatchedPolicy:
    """As many seeds as another episode kept, of about the same sizes: where, when and of which kind is random."""

    __slots__ = ("_inner", "_rng_seed", "_seeds")

    def __init__(self, seeds: Sequence[SeedRow], rng_seed: int) -> None:
        self._seeds, self._rng_seed = tuple(seeds), rng_seed
        self.reset()

    def reset(self) -> None:
        self._inner: SchedulePolicy | None = None

    def act(self, situation: Situation) -> ActionSpec:
        if self._inner is None:
            self._inner = SchedulePolicy(self._drawn(situation))
        return self._inner.act(situation)

    def _drawn(self, situation: Situation) -> Schedule:
        rng = np.random.default_rng((0x4A7D, self._rng_seed))
        slots = [situation.slots[place].name for place in rng.permutation(len(situation.slots))]
        last = max(
            situation.signals.horizon - 6, 1
        )  # late enough for anything, early enough to be blended in
        clauses: list[Clause] = []
        for seed, slot in zip(self._seeds, slots, strict=False):
            near = nearest_in_size(situation.cards[slot], seed.parameters)
            card = near[int(rng.integers(len(near)))]
            clauses += grown_at(seed, int(rng.integers(last)), slot=slot, blueprint=card.name)
        return Schedule(tuple(clauses))


def nearest_in_size(cards: Sequence[BlueprintCard], parameters: int) -> list[BlueprintCard]:
    """By the ratio of their parameters."""
    return sorted(cards, key=lambda card: abs(math.log((card.parameters + 1) / (parameters + 1))))[:_NEAREST]


class BlindPolicy:
    """What was done in another episode, at the same epochs; what is illegal here is skipped."""

    __slots__ = ("_by_epoch",)

    def __init__(self, decisions: str) -> None:
        self._by_epoch = {clause.epoch: clause.action for clause in Schedule.parse(decisions).clauses}

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        action = self._by_epoch.get(situation.signals.epoch, ActionSpec())
        return action if refusal(action, situation) is None else ActionSpec()
