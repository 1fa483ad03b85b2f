"""Rules for data that keep changing, fitted or taught on drawn streams.

    look_again   `look_once`, which looks anew some epochs after each jump of validation, and gives back
    foresight    a teacher, which knows what the data are like, and has a mixer grown while that pays
    look_always  a rival as cheap as can be, which it taught: a linear rule on what a host shows after each epoch

The look of the first is the same linear rule on four numbers. It is fitted on the outcomes of schedules, where the
curve of a host that has had a seed from its birth is compared with that of its waiting twin, from one jump to the
next. What the teacher knows no controller is shown; it can teach a network too (`esper.simic.teaching`).
"""

import math
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from esper.benchmark.outcomes import WAITING, Outcome, Outcomes
from esper.benchmark.rivals import PENALTIES, Look, first_birth, guesses_left_out, look_features, ridge
from esper.benchmark.rows import RowsError
from esper.leyline import ActionSpec, HostSignals, LifecycleOp, Situation
from esper.leyline.utility import rent_due
from esper.simic.evaluation import Player, RulePlayer
from esper.statistics import Floats
from esper.tamiyo.rules import Clause, Schedule, SchedulePolicy
from esper.tamiyo.rules.policy import Remembering, affordable, refusal
from esper.tamiyo.tracker import JumpDetector
from esper.tolaria.tasks import Instance, task
from esper.tolaria.tasks.stream import phases_of

LOOK_AGAIN = "look_again"
DROPS, DELAYS = (0.1, 0.15, 0.25), (1, 2, 3, 4)
"""What counts as a jump, down from the best or up in one epoch, and epochs from it to the look: what a fit tries."""

Samples = Mapping[str, Sequence[tuple[int, int]]]
"""case -> (first epoch, training samples) of each of its phases"""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """What counts as a jump, and the look that follows it: `look.epoch` epochs later, and after the beginning."""

    look: Look
    drop: float

    def __str__(self) -> str:
        what = Schedule.parse(self.look.schedule).clauses[0].action
        fitted = f"{zlib.crc32(repr(self.look).encode()):08x}"
        when = f"{self.look.epoch} epochs after a jump of {self.drop:g}"
        return f"{what.blueprint}@{what.slot} by rule {fitted}, {when}"


@dataclass
class _Watched:
    """What was noticed of the data of now."""

    best: float | None = None
    since: int | None = 0
    """Epochs since they began; None after the look."""
    before: float | None = None
    """Validation accuracy an epoch ago."""
    grows: bool = False
    doing: str = ""
    """The schedule that carries out what was decided last."""
    done: dict[str, object] = field(default_factory=dict)
    """What that schedule remembers."""


class LookAgainPolicy(Remembering[_Watched]):
    """Grows what its look expects to gain, and prunes it when a later look expects it to lose."""

    def __init__(self, again: LookAgain) -> None:
        self.again = again
        super().__init__(_Watched)

    def act(self, situation: Situation) -> ActionSpec:
        """Look if it is time to, and carry out what was decided."""
        signals, memory = situation.signals, self.memory
        accuracy, look = signals.validation_accuracy, self.again.look
        detector = JumpDetector(self.again.drop, memory.best, memory.before)
        noticed = detector.noticed(accuracy)
        memory.best = detector.best
        if noticed:
            memory.since = 0
        elif memory.since is not None and signals.epoch > 0:
            memory.since += 1
        seen = accuracy is not None and memory.before is not None and signals.train_accuracy is not None
        if memory.since == look.epoch and seen:
            assert signals.training_samples is not None  # an environment's host knows it
            curve = [float(memory.before or 0.0), float(accuracy or 0.0)]
            features = look_features(signals.training_samples, curve, float(signals.train_accuracy or 0.0))
            self._decide(look.expected(features) > 0.0, signals.epoch)
        memory.before = accuracy
        schedule = SchedulePolicy(memory.doing)
        if memory.done:
            schedule.load_state_dict(memory.done)
        action = schedule.act(situation)
        memory.done = schedule.state_dict()
        return action

    def _decide(self, grows: bool, now: int) -> None:
        clauses, memory = Schedule.parse(self.again.look.schedule).clauses, self.memory
        memory.since = None
        if grows and not memory.grows:
            self._do(_from(clauses, now))
        elif memory.grows and not grows:
            births = [clause.action for clause in clauses if clause.action.op is LifecycleOp.GERMINATE]
            prunings = (Clause(now, ActionSpec(LifecycleOp.PRUNE, birth.slot)) for birth in births)
            self._do(Schedule(tuple(prunings)))
        memory.grows = grows

    def _do(self, schedule: Schedule) -> None:
        self.memory.doing, self.memory.done = str(schedule), {}


def _from(clauses: Sequence[Clause], epoch: int) -> Schedule:
    """The clauses as far from one another as they are, the first at this epoch."""
    first = min(clause.epoch for clause in clauses)
    return Schedule(tuple(replace(clause, epoch=clause.epoch - first + epoch) for clause in clauses))


# Fitting


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The epochs from a look to the next jump, or to the end."""

    case: str
    seed: int
    look: int
    """Epochs trained when it is looked."""
    end: int


def fit_look_again(outcomes: Outcomes, samples: Samples) -> LookAgain:
    """The drop, delay, schedule and penalty whose decisions, each with its stream left out, add most to a life.

    Where there is one stream, each of its stretches is left out.

    outcomes  on drawn streams, with the curves of every schedule
    """
    early = [schedule for schedule in outcomes.schedules if first_birth(schedule) == 0]
    if not early:
        raise RowsError(
            f"{LOOK_AGAIN} needs the outcomes of a schedule that begins at t=0, and there are none"
        )
    best, chosen = -np.inf, None
    for drop in DROPS:
        for delay in DELAYS:
            stretches = list(_stretches(outcomes, drop, delay))
            several = len(outcomes.cases) > 1
            folds = [
                outcomes.cases.index(stretch.case) if several else place
                for place, stretch in enumerate(stretches)
            ]
            for schedule in early:
                seen, gains = _table(outcomes, samples, schedule, stretches)
                for penalty in PENALTIES:
                    guesses = guesses_left_out(seen, gains, np.array(folds * 2), penalty)
                    value = float(np.where(guesses > 0.0, gains, 0.0).sum())
                    if value > best:
                        mean, scale, weights = ridge(seen, gains, penalty)
                        found = (tuple(map(float, each)) for each in (mean, scale, weights[:, 0]))
                        best, chosen = value, LookAgain(Look(delay, schedule, *found), drop)
    assert chosen is not None  # at least one value is a number
    return chosen


def _stretches(outcomes: Outcomes, drop: float, delay: int) -> Iterator[_Stretch]:
    for case in outcomes.cases:
        for seed in outcomes.seeds:
            curve = _whole(outcomes.by_key[case, WAITING, seed])
            detector = JumpDetector(drop)
            noticed = [epoch for epoch, accuracy in enumerate(curve) if detector.noticed(accuracy)]
            for start, end in pairwise([0, *noticed, len(curve) - 1]):
                if start + delay < end:
                    yield _Stretch(case, seed, start + delay, end)


def _whole(waited: Outcome) -> tuple[float, ...]:
    if len(waited.validation_accuracies) < 2 or len(waited.train_accuracies) < 2:
        raise RowsError(f"waiting on {waited.case}, seed {waited.seed}, has no accuracies to look at")
    return waited.validation_accuracies


def _table(
    outcomes: Outcomes, samples: Samples, schedule: str, stretches: Sequence[_Stretch]
) -> tuple[Floats, Floats]:
    """(2 x stretch, feature) seen on waiting hosts and then on grown ones; (2 x stretch, 1) what growth adds."""
    waiting, growing, gains = [], [], []
    for stretch in stretches:
        waited, other = (outcomes.by_key[stretch.case, text, stretch.seed] for text in (WAITING, schedule))
        if not other.validation_accuracies:
            raise RowsError(
                f"{LOOK_AGAIN} needs the curves of schedules, and {schedule!r} has none on {other.case}"
            )
        now = max(phase for phase in samples[stretch.case] if phase[0] < stretch.look)[1]
        waiting.append(_features(waited, stretch.look, now))
        # a host that the governor took away by then has nothing to show, and is worth nothing
        lived = stretch.look < len(other.validation_accuracies)
        growing.append(_features(other, stretch.look, now) if lived else waiting[-1])
        gains.append(_gain(waited, other, stretch))
    return np.array([*waiting, *growing]), np.array([*gains, *gains])[:, None]


def _features(outcome: Outcome, look: int, samples: int) -> tuple[float, ...]:
    """By the curve in the outcome, which is not of the half of validation that the rule sees as it plays."""
    train = outcome.train_accuracies[look]
    return look_features(samples, outcome.validation_accuracies[look - 1 : look + 1], float(train or 0.0))


def _gain(waited: Outcome, other: Outcome, stretch: _Stretch) -> float:
    """What having the seed adds to the sum of utilities between the look and the end of the stretch."""
    epochs = slice(stretch.look + 1, stretch.end + 1)
    scores = [sum(each.validation_accuracies[epochs]) for each in (other, waited)]
    lived = len(other.validation_accuracies[epochs])
    return (
        scores[0]
        - scores[1]
        - lived * rent_due(other.rent, other.added_parameters or 0, other.host_parameters)
    )


FORESIGHT, LOOK_ALWAYS = "foresight", "look_always"
SHUFFLED = 0.3
"""From here on positions count as shuffled, where a mixer pays."""
_BLUEPRINT, _PLACE = "mixer", 1
_KEEP, _GIVE_BACK = (LifecycleOp.ADVANCE,), (LifecycleOp.PRUNE, LifecycleOp.RETIRE)


@dataclass
class _Seen:
    """What a host showed an epoch ago; None before there was one."""

    validation: float | None = None
    train: float | None = None


class MixerPolicy(Remembering[_Seen]):
    """Has a mixer in the middle slot while it wants one, and nothing else at any time.

    In any state it says what leads to what it wants.
    """

    def __init__(self) -> None:
        super().__init__(_Seen)

    @abstractmethod
    def wants(self, situation: Situation) -> bool:
        """Whether a mixer is wanted now."""

    def act(self, situation: Situation) -> ActionSpec:
        """The first of: give back what is not wanted, go on with what is, plant it."""
        names = [slot.name for slot in situation.slots]
        wanted = names[_PLACE] if self.wants(situation) else None
        for slot in situation.slots:
            keeps = slot.name == wanted and slot.blueprint in (None, _BLUEPRINT)
            for op in _KEEP if keeps else _GIVE_BACK:
                if refusal(ActionSpec(op, slot.name), situation) is None:
                    return ActionSpec(op, slot.name)
        if wanted is not None:
            plant = ActionSpec(LifecycleOp.GERMINATE, wanted, _BLUEPRINT)
            cards = [card for card in situation.cards[wanted] if card.name == _BLUEPRINT]
            if cards and affordable(cards[0], situation.signals) and refusal(plant, situation) is None:
                return plant
        return ActionSpec()


class ForesightPolicy(MixerPolicy):
    """Goes by the data that were trained on last, as one who looks could.

    case  a stream, whose plan it reads
    """

    def __init__(self, case: str) -> None:
        super().__init__()
        phases = phases_of(task("stream").complete(dict(Instance.parse(case).parameters)))
        self._pays = [(start, state.shuffled >= SHUFFLED) for start, state in phases]

    def wants(self, situation: Situation) -> bool:
        """While positions are shuffled."""
        epoch = situation.signals.epoch
        return epoch > 0 and [pays for start, pays in self._pays if start < epoch][-1]


def foresight(cases: Sequence[str]) -> Player:
    """The teacher of envs whose cases are these."""
    return RulePlayer(lambda env_idx: ForesightPolicy(cases[env_idx]))


@dataclass(frozen=True, slots=True)
class LinearWish:
    """Wants a mixer where a constant and a weighted sum of what is seen come to more than 0."""

    constant: float
    weights: tuple[float, ...]

    def __str__(self) -> str:
        return f"{_BLUEPRINT}@{_PLACE} by rule {zlib.crc32(repr(self).encode()):08x}, each epoch"

    def wants(self, seen: Sequence[float]) -> bool:
        """Whether they do."""
        return (
            self.constant + sum(weight * each for weight, each in zip(self.weights, seen, strict=True)) > 0.0
        )


def fit_wish(seen: Floats, wanted: NDArray[np.bool_], penalty: float = 10.0) -> LinearWish:
    """By ridge regression of +1 and -1.

    seen    (epoch, number)
    wanted  (epoch,): whether the teacher wants a mixer there
    """
    mean, scale, fitted = ridge(seen, np.where(wanted, 1.0, -1.0)[:, None], penalty)
    weights = fitted[1:, 0] / scale
    return LinearWish(float(fitted[0, 0] - weights @ mean), tuple(map(float, weights)))


class LookAlwaysPolicy(MixerPolicy):
    """Asks a linear rule after every epoch what the data want. `seen` is what it was asked about last."""

    def __init__(self, wish: LinearWish | None) -> None:
        super().__init__()
        self.wish = wish
        self.seen: tuple[float, ...] | None = None

    def wants(self, situation: Situation) -> bool:
        """What the rule says; nothing where something it goes by is not known, or without a rule."""
        signals, before = situation.signals, self.memory
        grown = any(slot.stage.is_live for slot in situation.slots)
        self.seen = signs(signals, before.validation, before.train, grown=grown)
        self.memory = _Seen(signals.validation_accuracy, signals.train_accuracy)
        return self.wish is not None and self.seen is not None and self.wish.wants(self.seen)


def signs(
    signals: HostSignals, validation: float | None, train: float | None, *, grown: bool
) -> tuple[float, ...] | None:
    """What a linear rule goes by: levels, leads, last steps, and the same again where a seed is alive.

    validation, train  accuracies an epoch ago

    None where one of them was not measured.
    """
    samples, norm = signals.training_samples, signals.gradient_norm
    now, trained = signals.validation_accuracy, signals.train_accuracy
    loss, train_loss = signals.validation_loss, signals.train_loss
    if validation is None or train is None or now is None or trained is None:
        return None
    if samples is None or norm is None or loss is None or train_loss is None:
        return None
    numbers = (
        math.log2(samples),
        now,
        now - trained,
        now - validation,
        trained - train,
        loss,
        loss - train_loss,
        math.log(max(norm, 1e-6)),
    )
    return (*numbers, float(grown), *(number * grown for number in numbers))
