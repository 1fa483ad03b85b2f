"""Rules of a few lines: never grow, grow at random, and grow by the clock, on a plateau or by the fit."""

from collections.abc import Mapping, Sequence
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
from esper.tamiyo.rules.policy import (
    Remembering,
    affordable,
    cheapest_first,
    comparison,
    has_live_seed,
    pays,
    refusal,
)

_Choice = TypeVar("_Choice")


@dataclass
class _Nothing:
    """A memory without content."""


class WaitPolicy(Remembering[_Nothing]):
    """Never grows: the baseline that growth is measured against."""

    def __init__(self) -> None:
        super().__init__(_Nothing)

    def act(self, situation: Situation) -> ActionSpec:  # noqa: ARG002 - nothing could change its mind
        """Return WAIT."""
        return ActionSpec()


class RandomLegalPolicy:
    """Uniform over the legal operations, then over the slots that allow it, then over each head's choices."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def reset(self) -> None:
        """Go on with the same generator."""

    def act(self, situation: Situation) -> ActionSpec:
        """Draw a legal action."""
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

    def state_dict(self) -> dict[str, object]:
        """Return the generator's state."""
        return {"generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue the stream of random numbers."""
        generator = state.get("generator")
        if not isinstance(generator, dict):
            raise ValueError(f"{state!r} is not the state of a RandomLegalPolicy, which has generator")
        self._rng.bit_generator.state = generator

    def _one_of(self, choices: Sequence[_Choice]) -> _Choice:
        return choices[int(self._rng.integers(len(choices)))]


@dataclass
class _Tried:
    """What the rules below remember of an episode."""

    tried: set[tuple[str, str]] = field(default_factory=set)
    """(slot, blueprint) of every germination."""
    due: int = 0
    """The first epoch of the next germination, by the clock."""


@dataclass(kw_only=True)
class _CheapestFirst(Remembering[_Tried]):
    """Germinates the cheapest seed not tried yet, advances it when ready, and keeps it if it pays."""

    margin: float = 0.0
    """A seed is kept if its contribution exceeds this and its rent."""
    rent: float = 0.01
    """Utility per host's worth of added parameters."""

    def __post_init__(self) -> None:
        super().__init__(_Tried)

    def _tend_or_grow(self, situation: Situation, grow: bool) -> ActionSpec:
        self.reason = None
        for slot in situation.slots:
            legal = situation.legal[slot.name].operations
            if LifecycleOp.ADVANCE in legal:
                return ActionSpec(LifecycleOp.ADVANCE, slot.name)
            if LifecycleOp.FOSSILIZE in legal and LifecycleOp.PRUNE in legal:
                worth = pays(slot, situation.signals, margin=self.margin, rent=self.rent)
                if worth is not None:
                    self.reason = comparison(slot, situation.signals, margin=self.margin, rent=self.rent)
                    return ActionSpec(LifecycleOp.FOSSILIZE if worth else LifecycleOp.PRUNE, slot.name)
        return self._germination(situation) if grow else ActionSpec()

    def _germination(self, situation: Situation) -> ActionSpec:
        """The cheapest legal and affordable seed that was not tried yet; WAIT without one."""
        for name, card in cheapest_first(situation):
            action = ActionSpec(LifecycleOp.GERMINATE, name, card.name)
            fresh = (name, card.name) not in self.memory.tried
            if fresh and affordable(card, situation.signals) and refusal(action, situation) is None:
                self.memory.tried.add((name, card.name))
                return action
        return ActionSpec()


@dataclass(kw_only=True)
class PeriodicPolicy(_CheapestFirst):
    """Tries the next cheapest seed every few epochs, whatever the host does."""

    every: int = 5
    """Epochs from one germination to the next, at least."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}; expected >= 1 epoch")
        super().__post_init__()

    def act(self, situation: Situation) -> ActionSpec:
        """Care for the seeds there are, or germinate when it is time."""
        now = situation.signals.epoch
        action = self._tend_or_grow(situation, now >= self.memory.due)
        if action.op is LifecycleOp.GERMINATE:
            self.memory.due = now + self.every
        return action


@dataclass(kw_only=True)
class PlateauPolicy(_CheapestFirst):
    """Tries the next cheapest seed when validation has stopped improving and no seed is live."""

    patience: int = 3
    """Epochs without improvement."""

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected >= 1 epoch")
        super().__post_init__()

    def act(self, situation: Situation) -> ActionSpec:
        """Care for the seeds there are, or germinate on a plateau."""
        stuck = situation.signals.plateau_epochs >= self.patience and not has_live_seed(situation)
        return self._tend_or_grow(situation, stuck)


@dataclass(kw_only=True)
class FitRatioPolicy(_CheapestFirst):
    """Grows a host that underfits, and takes a live seed from one that overfits.

    The fit ratio is training over validation accuracy; where there is no accuracy, validation over training loss.
    """

    grow_below: float = 1.05
    """A smaller ratio is underfitting."""
    prune_above: float = 1.3
    """A larger ratio is overfitting."""
    start: int = 2
    """The first epoch at which the ratio is judged."""

    def __post_init__(self) -> None:
        if not 0 < self.grow_below <= self.prune_above:
            raise ValueError(
                f"grow_below is {self.grow_below}, prune_above {self.prune_above}; expected 0 < grow_below <= it"
            )
        super().__post_init__()

    def act(self, situation: Situation) -> ActionSpec:
        """Prune where training is far ahead of validation, germinate where it is not ahead."""
        ratio = fit_ratio(situation.signals)
        if situation.signals.epoch < self.start or ratio is None:
            return self._tend_or_grow(situation, False)
        if ratio > self.prune_above:
            for slot in reversed(situation.slots):
                if LifecycleOp.PRUNE in situation.legal[slot.name].operations:
                    return ActionSpec(LifecycleOp.PRUNE, slot.name)
        return self._tend_or_grow(situation, ratio < self.grow_below and not has_live_seed(situation))


def fit_ratio(signals: HostSignals) -> float | None:
    """Over 1: training is ahead of validation. None where either is unknown or not positive."""
    over, under = signals.train_accuracy, signals.validation_accuracy
    if over is None or under is None:
        over, under = signals.validation_loss, signals.train_loss
    if over is None or under is None or over < 0 or under <= 0:
        return None
    return over / under
