"""Heuristics: never grow, grow at random, by the clock, on a plateau or by the fit, and by probing candidates."""

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
    SlotSnapshot,
    Stage,
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

    tried: list[tuple[str, str]] = field(default_factory=list)
    """(slot, blueprint) of every germination, in their order."""
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
                self.memory.tried.append((name, card.name))
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


# One candidate after another, each judged by what it contributes, and kept or pruned


CANDIDATES = ("mixer@2", "conv_small@2", "mixer@1", "mixer@0")
"""blueprint@position of the slot, in the order they are tried."""


@dataclass
class _Trials:
    """What probing has come to in an episode."""

    queue: list[tuple[str, str]] | None = None
    """(slot, blueprint) still to be tried; None before the first decision."""
    trial: str | None = None
    """The slot of the candidate on trial."""
    verdict: bool | None = None
    """Whether it is to be kept; None while that is not known."""
    best: float | None = None
    """The best validation so far, while watching for a fall."""
    probing: bool = False
    """Whether validation fell."""


@dataclass(kw_only=True)
class ProbeAndKeepPolicy(Remembering[_Trials]):
    """Tries candidates one after another, cheap ones first; the rule to beat.

    Each is germinated, advanced as soon as that is legal, and judged once, when it is `judge_age` epochs old and
    its contribution is known: kept if that exceeds `margin` + `rent` x its parameters / the host's, else pruned; so
    is one that could not even be advanced by then.
    A candidate that the host does not offer is replaced by the cheapest offer that is not yet on the list. None is
    begun that could not be judged before the end, or that the parameter budget has no room for.
    """

    candidates: Sequence[str] = CANDIDATES
    start: int = 4
    """The first epoch at which one is germinated."""
    judge_age: int = 4
    margin: float = 0.02
    rent: float = 0.01

    def __post_init__(self) -> None:
        self._offers = [_candidate(text) for text in self.candidates]
        if self.judge_age < 1:
            raise ValueError(f"judge_age is {self.judge_age}; expected >= 1 epoch")
        super().__init__(_Trials)

    def act(self, situation: Situation) -> ActionSpec:
        """Go on with the candidate on trial, or begin the next one."""
        memory, self.reason = self.memory, None
        if memory.queue is None:
            memory.queue = resolve_candidates(self._offers, situation)
        if memory.trial is not None:
            seed = next((slot for slot in situation.slots if slot.name == memory.trial), None)
            if seed is not None and seed.stage.is_live and not seed.fading:
                return self._continue(seed, situation)
            memory.trial = None
        signals = situation.signals
        in_time = signals.epoch in self.may_begin(signals.horizon)
        return self._begin(situation) if in_time else ActionSpec()

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""
        return range(self.start, horizon - self.judge_age)

    def _continue(self, seed: SlotSnapshot, situation: Situation) -> ActionSpec:
        """See a trial through to its verdict, and the verdict through to its execution."""
        memory, advance = self.memory, ActionSpec(LifecycleOp.ADVANCE, seed.name)
        if refusal(advance, situation) is None:
            return advance
        if memory.verdict is None and seed.age >= self.judge_age:
            stuck = seed.stage is Stage.TRAINING
            signals, compared = situation.signals, {"margin": self.margin, "rent": self.rent}
            memory.verdict = False if stuck else pays(seed, signals, **compared)
            waited = f"it could not be advanced in {seed.age} epochs"
            self.reason = waited if stuck else comparison(seed, signals, **compared)
        if memory.verdict is None:
            return ActionSpec()
        end = ActionSpec(LifecycleOp.FOSSILIZE if memory.verdict else LifecycleOp.PRUNE, seed.name)
        return end if refusal(end, situation) is None else ActionSpec()

    def _begin(self, situation: Situation) -> ActionSpec:
        """Germinate the next candidate, once its slot is free; drop those whose slot never will be."""
        signals, memory = situation.signals, self.memory
        assert memory.queue is not None
        stages = {slot.name: slot.stage for slot in situation.slots}
        while memory.queue:
            slot, blueprint = memory.queue[0]
            card = next(card for card in situation.cards[slot] if card.name == blueprint)
            if stages[slot] is Stage.FOSSILIZED or not affordable(card, signals):
                memory.queue.pop(0)
                continue
            action = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
            if refusal(action, situation) is not None:
                return ActionSpec()  # an embargo, or no live place: both pass
            memory.queue.pop(0)
            memory.trial, memory.verdict = slot, None
            return action
        return ActionSpec()


@dataclass(kw_only=True)
class DetectThenProbePolicy(ProbeAndKeepPolicy):
    """Waits for validation to fall, as it does when the data have changed, and then probes.

    When every candidate was tried it watches again.
    """

    drop: float = 0.15
    """How far the score (validation accuracy; without one, minus the loss) must fall below its best."""
    start: int = 0

    def __post_init__(self) -> None:
        if not self.drop > 0:
            raise ValueError(f"drop is {self.drop}; expected > 0")
        super().__post_init__()

    def act(self, situation: Situation) -> ActionSpec:
        """Wait until validation falls, then probe until every candidate was tried."""
        memory = self.memory
        memory.probing = memory.probing or self._fell(situation.signals.score)
        if not memory.probing:
            return ActionSpec()
        action = super().act(situation)
        if action.op is LifecycleOp.WAIT and self.memory.queue == [] and self.memory.trial is None:
            self.reset()
        return action

    def _fell(self, now: float | None) -> bool:
        if now is None:
            return False
        best = self.memory.best
        best = self.memory.best = now if best is None else max(best, now)
        return best - now > self.drop


def resolve_candidates(candidates: Sequence[tuple[str, int]], situation: Situation) -> list[tuple[str, str]]:
    """(slot, blueprint) for each (blueprint, position): as asked where offered, else the cheapest one left."""
    names = [slot.name for slot in situation.slots]
    asked: list[tuple[str, str] | None] = []
    for blueprint, position in candidates:
        slot = names[position] if position < len(names) else None
        offered = slot is not None and blueprint in (card.name for card in situation.cards[slot])
        asked.append((slot, blueprint) if slot is not None and offered else None)
    others = iter(
        offer
        for offer in ((slot, card.name) for slot, card in cheapest_first(situation))
        if offer not in asked
    )
    chosen = [offer if offer is not None else next(others, None) for offer in asked]
    return [offer for offer in chosen if offer is not None]


def _candidate(text: str) -> tuple[str, int]:
    blueprint, at, position = text.partition("@")
    if not blueprint or not at or not position.isdecimal():
        raise ValueError(f"candidate is {text!r}; expected blueprint@position, such as 'mixer@2'")
    return blueprint, int(position)
