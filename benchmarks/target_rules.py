"""Deciders for targets that change (suite `adapt_stream`) that go by what each seed is expected to be worth.

    teacher   knows the target, which no controller is shown; its expectations are fitted on `target_lives.py`
    linear    guesses what the teacher expects from what a host shows after each epoch

Both do the same with what they expect: one seed at a time, given back when it is expected to harm.
"""

import json
import math
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from adapt_choices import KINDS
from adapt_stream_choices import ANEW, NEVER, Life, fits, lived_targets
from esper.benchmark.outcomes import grown
from esper.benchmark.rivals import ridge
from esper.benchmark.stream_rules import signs
from esper.leyline import ActionSpec, DecisionSettings, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.simic.evaluation import Player, RulePlayer
from esper.statistics import Floats
from esper.tamiyo.rules import Clause
from esper.tamiyo.rules.policy import Remembering, affordable, refusal
from esper.tamiyo.rules.schedule import resolved
from esper.tamiyo.tracker import JumpDetector
from esper.tolaria.tasks import Instance, task
from esper.tolaria.tasks.adapt_stream import Target
from target_lives import CHOICES, HOST, read_lives

PENALTY = 3.0
PLANTS, KEEPS = 0.01, 0.02
"""What a seed must be expected to gain to be planted, and by how much another must be better to take its place."""
HEAD_START = 2
"""Epochs that the head trains on a target before anything is planted for it."""
SEE_IT_THROUGH = 8
"""Nothing is planted in so many last epochs of a life."""

Worths = Mapping[str, float]
"""kind@place -> what it is expected to gain over the head alone on a target; of those that the cap has room for."""


# Doing what is expected to be worth most


class WorthPolicy(Remembering[object]):
    """Has the seed that is expected to be worth most, and nothing where none is.

    What lives stays while it is expected to help and no other is much better. A decider that is not sure of the
    target plants now and then what a better one would not; one that is told to take it out again, whatever it is
    worth, learns to try one seed after another, and each costs epochs.
    """

    @property
    def decisions(self) -> DecisionSettings:
        """It may give back what was fossilised, too."""
        return DecisionSettings(retire=True)

    @abstractmethod
    def worths(self, situation: Situation) -> Worths:
        """What each seed is expected to gain now."""

    def plants(self, situation: Situation) -> bool:
        """Whether it is time to."""
        return situation.signals.epoch <= situation.signals.horizon - SEE_IT_THROUGH

    def act(self, situation: Situation) -> ActionSpec:
        """The first of: give back what harms or is in the way, go on with what lives, plant the best."""
        worths = self.worths(situation)
        best = max(worths, key=lambda choice: worths[choice], default=NEVER)
        most = worths.get(best, 0.0)
        kept = most > PLANTS and self.plants(situation)
        steps = list[ActionSpec]()
        for place, slot in enumerate(situation.slots):
            if slot.blueprint is None:
                continue
            own = worths.get(choice_of(slot, place), 0.0)
            harms = own <= 0.0 or (kept and most - own > KEEPS)
            steps += _give_back(slot) if harms else [ActionSpec(LifecycleOp.ADVANCE, slot.name)]
        if kept and not steps:
            steps.append(planted(best, situation))
        return next((step for step in steps if _may(step, situation)), ActionSpec())


def planted(choice: str, situation: Situation) -> ActionSpec:
    """The germination of a choice in this host."""
    kind, _, place = choice.partition("@")
    return resolved(Clause(0, ActionSpec(LifecycleOp.GERMINATE, place, KINDS[kind])), situation)


def choice_of(slot: SlotSnapshot, place: int) -> str:
    """What was measured that is most like the seed of a slot: its kind, at the nearest place."""
    kinds = [kind for kind, names in KINDS.items() if slot.blueprint in names.split("|")]
    known = [choice for choice in CHOICES if choice.partition("@")[0] in kinds]
    return min(known, key=lambda choice: abs(int(choice.partition("@")[2]) - place), default=NEVER)


def _give_back(slot: SlotSnapshot) -> list[ActionSpec]:
    op = LifecycleOp.RETIRE if slot.stage is Stage.FOSSILIZED else LifecycleOp.PRUNE
    return [ActionSpec(op, slot.name)]


def _may(step: ActionSpec, situation: Situation) -> bool:
    if step.op is LifecycleOp.GERMINATE and step.slot is not None:
        cards = [card for card in situation.cards.get(step.slot, ()) if card.name == step.blueprint]
        if not cards or not affordable(cards[0], situation.signals):
            return False
    return refusal(step, situation) is None


# The teacher


def knowledge(case: str, target: Target) -> dict[str, float]:
    """What is known of a target: words as 1, numbers as what they are over the usual, alone and by one another."""
    known, base = task("adapt_stream").complete(dict(Instance.parse(case).parameters)), base_of(case)
    family, _, norm = base.partition("_")
    words = [f"{own}:{what}" for own in (base, family, norm) for what in ("", target.group, target.shift)]
    numbers = {
        "size": math.log2(float(known["size"]) / 200),
        "noise": 10 * (float(known["noise"]) - 0.25),
        "amount": target.amount - 1.0,
    }
    told = dict.fromkeys((*words, target.group, target.shift), 1.0) | numbers
    return told | {
        f"{own}:{name}": value for own in (target.group, family) for name, value in numbers.items()
    }


@dataclass(frozen=True, slots=True)
class TargetTeacher:
    """Expects of each choice a gain over the head alone on a target, mean over its epochs."""

    names: tuple[str, ...]
    """Of what is known."""
    constants: Floats
    """(choice,)"""
    weights: Floats
    """(name, choice)"""

    def expected(self, case: str, target: Target) -> Floats:
        """(choice,)"""
        known = knowledge(case, target)
        gains: Floats = (
            self.constants + np.array([known.get(name, 0.0) for name in self.names]) @ self.weights
        )
        return gains

    def worths(self, case: str, target: Target) -> Worths:
        """Of the choices there is room for."""
        gains = zip(CHOICES, self.expected(case, target), strict=True)
        return {choice: float(gain) for choice, gain in gains if fits(choice, case)}


@dataclass(frozen=True, slots=True)
class TargetTable:
    """What choices gained on the targets of drawn streams."""

    cases: tuple[str, ...]
    targets: tuple[Target, ...]
    epochs: Floats
    """(target,): how many it was lived for."""
    gains: Floats
    """(target, choice): over the head alone; NaN where there was no room."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """From what `target_lives.py` wrote."""
        lives, streams = read_lives(path)
        horizon = task("adapt_stream").epochs
        cases, targets, epochs, gains = [], [], [], []
        for case in streams:
            head = lives[NEVER, case, HOST]
            arms = [lives.get((f"{choice} {ANEW}", case, HOST)) for choice in CHOICES]
            for place, (start, end, target) in enumerate(lived_targets(case, horizon)):
                cases.append(case)
                targets.append(target)
                epochs.append(end - start)
                gains.append([_worth(life, place) - _worth(head, place) for life in arms])
        return cls(tuple(cases), tuple(targets), np.array(epochs, float), np.array(gains))

    def without(self, case: str) -> Self:
        """The targets of all other streams."""
        kept = [place for place, own in enumerate(self.cases) if own != case]
        cases = tuple(self.cases[place] for place in kept)
        targets = tuple(self.targets[place] for place in kept)
        return type(self)(cases, targets, self.epochs[kept], self.gains[kept])


def _worth(life: Life | None, place: int) -> float:
    """During a target; NaN where there was no room, and from the target on in which the governor took the host away:
    that says what its rules were, and nothing of the seed."""
    worths = () if life is None else life.targets
    lived = [number for number, worth in enumerate(worths) if worth is not None]
    last = max(lived, default=-1) - (life is not None and life.condemned)
    worth = worths[place] if place <= last else None
    return math.nan if worth is None else worth


def fit_target_teacher(table: TargetTable, penalty: float = PENALTY) -> TargetTeacher:
    """By ridge regression of gains on what is known; targets count by their epochs."""
    known = [knowledge(case, target) for case, target in zip(table.cases, table.targets, strict=True)]
    names = tuple(dict.fromkeys(name for each in known for name in each))
    seen = np.array([[each.get(name, 0.0) for name in names] for each in known])
    fitted = [_shrunk(seen, gains, table.epochs, penalty) for gains in table.gains.T]
    return TargetTeacher(
        names, np.array([each for each, _ in fitted]), np.column_stack([each for _, each in fitted])
    )


def _shrunk(seen: Floats, gains: Floats, counts: Floats, penalty: float) -> tuple[float, Floats]:
    """A constant that is not penalised, and weights (name,)."""
    lived = np.isfinite(gains)
    if not lived.any():
        return 0.0, np.zeros(seen.shape[1])
    seen, gains, share = seen[lived], gains[lived], counts[lived] / counts[lived].mean()
    middle, mean = np.average(seen, axis=0, weights=share), float(np.average(gains, weights=share))
    centred = seen - middle
    squares = centred.T @ (centred * share[:, None]) + penalty * np.eye(seen.shape[1])
    weights = np.linalg.solve(squares, centred.T @ (share * (gains - mean)))
    return mean - float(middle @ weights), weights


def worth_left_out(table: TargetTable, penalty: float = PENALTY) -> dict[str, float]:
    """case -> what a teacher that was fitted without it adds to its life, each choice as it was grown anew."""
    horizon, lives = task("adapt_stream").epochs, dict.fromkeys(table.cases, 0.0)
    for left_out in lives:
        teacher = fit_target_teacher(table.without(left_out), penalty)
        for place, case in enumerate(table.cases):
            if case != left_out:
                continue
            worths = teacher.worths(case, table.targets[place])
            best = max(worths, key=lambda choice: worths[choice])
            gained = float(table.gains[place, CHOICES.index(best)])
            if worths[best] > PLANTS and not math.isnan(gained):
                lives[case] += gained * float(table.epochs[place]) / horizon
    return lives


def for_life(table: TargetTable, cases: Sequence[str]) -> dict[str, str]:
    """case -> the seed that gained most on the same base, as a schedule that plants it once; else waiting."""
    chosen = {}
    for case in cases:
        own = [place for place, other in enumerate(table.cases) if base_of(other) == base_of(case)]
        lived = np.isfinite(table.gains[own]) * table.epochs[own, None]
        sums = np.nansum(table.gains[own] * table.epochs[own, None], axis=0)
        means = sums / np.maximum(lived.sum(axis=0), 1.0)
        worths = {choice: mean for choice, mean in zip(CHOICES, means, strict=True) if fits(choice, case)}
        best = max(worths, key=lambda choice: worths[choice], default=NEVER)
        kind, _, place = best.partition("@")
        chosen[case] = grown(KINDS[kind], place, HEAD_START) if worths.get(best, 0.0) > 0.0 else ""
    return chosen


def base_of(case: str) -> str:
    """The name of its base."""
    return str(task("adapt_stream").complete(dict(Instance.parse(case).parameters))["base"])


class TeacherPolicy(WorthPolicy):
    """Goes by the target that was trained on last, as one who looks could."""

    def __init__(self, teacher: TargetTeacher, case: str) -> None:
        super().__init__(object)
        lived = lived_targets(case, task("adapt_stream").epochs)
        self._targets = [(start, teacher.worths(case, target)) for start, _, target in lived]
        self._expected = {start: tuple(teacher.expected(case, target)) for start, _, target in lived}

    def worths(self, situation: Situation) -> Worths:
        """Of the target of the last epoch."""
        return self._now(situation.signals.epoch)[1]

    def plants(self, situation: Situation) -> bool:
        """Once the head has met the target."""
        epoch = situation.signals.epoch
        return super().plants(situation) and epoch - self._now(epoch)[0] >= HEAD_START

    def expected(self, situation: Situation) -> tuple[float, ...]:
        """(choice,): of the target of the last epoch, whether there is room or not."""
        return self._expected[self._now(situation.signals.epoch)[0]]

    def _now(self, epoch: int) -> tuple[int, Worths]:
        return max((each for each in self._targets if each[0] < max(epoch, 1)), key=lambda each: each[0])


def target_teacher(cases: Sequence[str], teacher: TargetTeacher) -> Player:
    """The teacher of envs whose cases are these."""
    return RulePlayer(lambda env_idx: TeacherPolicy(teacher, cases[env_idx]))


# A linear rule


@dataclass(frozen=True, slots=True)
class LinearGuess:
    """Guesses the teacher's expectations of one base: constants and weighted sums of what is seen."""

    constants: tuple[float, ...]
    """(choice,)"""
    weights: tuple[tuple[float, ...], ...]
    """(choice, number)"""

    def gains(self, seen: Sequence[float]) -> Floats:
        """(choice,)"""
        gains: Floats = np.array(self.constants) + np.array(self.weights) @ np.array(seen)
        return gains


@dataclass(frozen=True, slots=True)
class LinearRule:
    """A guess for each base, told apart by its size."""

    guesses: Mapping[int, LinearGuess]
    """Parameters of the base -> its own."""

    def __str__(self) -> str:
        return f"linear rule {zlib.crc32(self.written().encode()):08x}"

    def written(self) -> str:
        """As JSON."""
        return json.dumps({str(size): asdict(guess) for size, guess in sorted(self.guesses.items())})

    @classmethod
    def read(cls, text: str) -> Self:
        """From what was `written`."""
        return cls(
            {
                int(size): LinearGuess(tuple(own["constants"]), tuple(map(tuple, own["weights"])))
                for size, own in json.loads(text).items()
            }
        )


@dataclass
class Noticed:
    """What the linear rule remembers: the epoch before, and the last jump."""

    validation: float | None = None
    train: float | None = None
    best: float | None = None
    fell: float = 0.0
    """By how much validation fell (or rose) when the data changed last."""
    level: float = 0.0
    """Where it was then."""
    since: int = 0
    """Epochs ago."""


JUMP, LATEST = 0.1, 10
"""What counts as a jump, and from when on it does not matter how long ago it was."""


class LinearPolicy(WorthPolicy):
    """Asks the rule after every epoch; `seen` is what it was asked about last."""

    def __init__(self, rule: LinearRule | None) -> None:
        self.rule, self.noticed = rule, Noticed()
        self.seen: tuple[float, ...] | None = None
        super().__init__(object)

    def reset(self) -> None:
        """Begin a new episode."""
        super().reset()
        self.noticed, self.seen = Noticed(), None

    def worths(self, situation: Situation) -> Worths:
        """What it guesses; nothing where it has no guess."""
        self._look(situation)
        guess = None if self.rule is None else self.rule.guesses.get(situation.signals.host_parameters)
        if guess is None or self.seen is None:
            return {}
        gains = guess.gains(self.seen)
        return {
            choice: float(gain)
            for choice, gain in zip(CHOICES, gains, strict=True)
            if _has_room(planted(choice, situation), situation)
        }

    def _look(self, situation: Situation) -> None:
        signals, before = situation.signals, self.noticed
        accuracy = signals.validation_accuracy
        detector = JumpDetector(JUMP, before.best, before.validation)
        jumped = detector.noticed(accuracy)
        before.best = detector.best
        before.since = 0 if jumped else before.since + 1
        if jumped and accuracy is not None:
            before.fell, before.level = accuracy - (before.validation or 0.0), accuracy
        grown = any(slot.blueprint is not None for slot in situation.slots)
        shown = signs(signals, before.validation, before.train, grown=grown)
        late = min(before.since, LATEST) / LATEST
        own = (before.fell, before.level, late, late * before.fell)
        self.seen = None if shown is None else (*shown, *own, *(number * grown for number in own))
        before.validation, before.train = accuracy, signals.train_accuracy


def _has_room(step: ActionSpec, situation: Situation) -> bool:
    """Whether a seed of this kind is offered there, and the cap would allow it in an empty host."""
    cards = [card for card in situation.cards.get(str(step.slot), ()) if card.name == step.blueprint]
    budget = situation.signals.parameter_budget
    return bool(cards) and (budget is None or cards[0].parameters <= budget)


def fit_linear(notes: Sequence["Note"], penalty: float = 10.0) -> LinearRule:
    """By ridge regression of what the teacher expects on what is seen, base by base."""
    guesses = {}
    for size in sorted({note.size for note in notes}):
        own = [note for note in notes if note.size == size]
        seen = np.array([note.seen for note in own])
        wanted = np.array([note.worths for note in own])
        mean, scale, fitted = ridge(seen, wanted, penalty)
        weights = fitted[1:] / scale[:, None]  # (number, choice)
        constants = fitted[0] - mean @ weights
        guesses[size] = LinearGuess(
            tuple(map(float, constants)), tuple(tuple(map(float, own)) for own in weights.T)
        )
    return LinearRule(guesses)


@dataclass(frozen=True, slots=True)
class Note:
    """One epoch: what was seen, and what the teacher expects."""

    size: int
    """Parameters of the base."""
    seen: tuple[float, ...]
    worths: tuple[float, ...]
    """(choice,); whether there is room or not."""


def read_rule(path: Path) -> LinearRule:
    """Of a file."""
    return LinearRule.read(path.read_text())
