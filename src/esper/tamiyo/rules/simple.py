"""Rules that grow when a signal says so and keep what pays: by the clock, on a plateau, by the fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    STYLES,
    TEMPOS,
    ActionSpec,
    HostSignals,
    LifecycleOp,
    Situation,
)
from esper.tamiyo.rules.reading import has_live_seed, next_germination, tend

# The two policies that know nothing: never grow, and grow at random.


_Choice = TypeVar("_Choice")


class WaitPolicy:
    """Never grows: the control that growth is measured against."""

    __slots__ = ()

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:  # noqa: ARG002 - nothing could change its mind
        return ActionSpec()


class RandomLegalPolicy:
    """Uniform over the legal operations, then over the slots that allow it, then over each head's choices."""

    __slots__ = ("_rng",)

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        legal = situation.legal
        operations = sorted(frozenset().union(*(here.operations for here in legal.values())))
        op = self._one_of(operations)
        if op is LifecycleOp.WAIT:
            return ActionSpec()
        slot = self._one_of([name for name, here in legal.items() if op in here.operations])
        here = legal[slot]
        return ActionSpec(
            op=op,
            slot=slot,
            blueprint=self._one_of(here.blueprints) if here.blueprints else None,
            style=self._one_of(here.styles or STYLES),
            tempo=self._one_of(TEMPOS),
            alpha_target=self._one_of(here.alpha_targets or ALPHA_TARGETS),
            alpha_speed=self._one_of(ALPHA_SPEEDS),
            alpha_curve=self._one_of(ALPHA_CURVES),
        )

    def _one_of(self, choices: Sequence[_Choice]) -> _Choice:
        return choices[int(self._rng.integers(len(choices)))]


_Tried = set[tuple[str, str]]


@dataclass(slots=True, kw_only=True)
class PeriodicPolicy:
    """Tries the next cheapest seed every few epochs, whatever the host does."""

    every: int = 5
    """Epochs from one germination to the next, at least."""
    margin: float = 0.0
    """A seed is kept if its contribution exceeds this and its rent."""
    rent: float = 0.01
    _tried: _Tried = field(default_factory=set, init=False)
    _due: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}; expected >= 1 epoch")

    def reset(self) -> None:
        self._tried.clear()
        self._due = 0

    def act(self, situation: Situation) -> ActionSpec:
        now = situation.signals.epoch
        action = _tend_or_grow(situation, self._tried, now >= self._due, self.margin, self.rent)
        if action.op is LifecycleOp.GERMINATE:
            self._due = now + self.every
        return action


@dataclass(slots=True, kw_only=True)
class PlateauPolicy:
    """Tries the next cheapest seed when validation has stopped improving and no seed is on its way."""

    patience: int = 3
    """Epochs without improvement."""
    margin: float = 0.0
    rent: float = 0.01
    _tried: _Tried = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected >= 1 epoch")

    def reset(self) -> None:
        self._tried.clear()

    def act(self, situation: Situation) -> ActionSpec:
        stuck = situation.signals.plateau_epochs >= self.patience and not has_live_seed(situation)
        return _tend_or_grow(situation, self._tried, stuck, self.margin, self.rent)


@dataclass(slots=True, kw_only=True)
class FitRatioPolicy:
    """Grows a host that underfits, and takes a live seed from one that overfits.

    The fit ratio is training over validation accuracy; where there is no accuracy, validation over training loss.
    """

    grow_below: float = 1.05
    prune_above: float = 1.3
    start: int = 2
    """The first epoch it is judged at: before that, nothing fits anything."""
    margin: float = 0.0
    rent: float = 0.01
    _tried: _Tried = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.grow_below <= self.prune_above:
            raise ValueError(
                f"grow_below is {self.grow_below}, prune_above {self.prune_above}; expected 0 < grow_below <= it"
            )

    def reset(self) -> None:
        self._tried.clear()

    def act(self, situation: Situation) -> ActionSpec:
        ratio = fit_ratio(situation.signals)
        if situation.signals.epoch < self.start or ratio is None:
            return _tend_or_grow(situation, self._tried, False, self.margin, self.rent)
        if ratio > self.prune_above:
            for slot in reversed(situation.slots):
                if LifecycleOp.PRUNE in situation.legal[slot.name].operations:
                    return ActionSpec(LifecycleOp.PRUNE, slot.name)
        underfits = ratio < self.grow_below and not has_live_seed(situation)
        return _tend_or_grow(situation, self._tried, underfits, self.margin, self.rent)


def fit_ratio(signals: HostSignals) -> float | None:
    """Over 1: training is ahead of validation. None where either is unknown or not positive."""
    over, under = signals.train_accuracy, signals.validation_accuracy
    if over is None or under is None:
        over, under = signals.validation_loss, signals.train_loss
    if over is None or under is None or over < 0 or under <= 0:
        return None
    return over / under


def _tend_or_grow(situation: Situation, tried: _Tried, grow: bool, margin: float, rent: float) -> ActionSpec:
    care = tend(situation, margin=margin, rent=rent)
    if care is not None:
        return care
    planted = next_germination(situation, tried) if grow else None
    if planted is None:
        return ActionSpec()
    assert planted.slot is not None
    assert planted.blueprint is not None
    tried.add((planted.slot, planted.blueprint))
    return planted
