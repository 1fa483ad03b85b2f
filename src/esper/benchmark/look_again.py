"""`look_once` for data that keep changing: it looks anew some epochs after each jump of validation, and gives back.

The look is the same linear rule on four numbers. It is fitted on the outcomes of schedules on drawn streams, where
the curve of a host that has had a seed from its birth is compared with that of its waiting twin, from one jump to
the next.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from esper.benchmark.outcomes import WAITING, Outcome, Outcomes
from esper.benchmark.rivals import PENALTIES, Look, first_birth, guesses_left_out, look_features, ridge
from esper.benchmark.rows import RowsError
from esper.leyline import ActionSpec, LifecycleOp, Situation
from esper.leyline.utility import rent_due
from esper.statistics import Floats
from esper.tamiyo.rules import Clause, Schedule, SchedulePolicy
from esper.tamiyo.rules.policy import Remembering
from esper.tamiyo.tracker import JumpDetector

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
