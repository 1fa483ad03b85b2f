"""Teach controllers which schedule suits a case, by a teacher that knows what no controller is shown.

The teacher is fitted on outcomes of schedules on drawn cases (`make_outcomes.py`). What each schedule gains over
waiting, on validation, is a constant and a weighted sum of what a case is drawn with: its shift or kind of host, its
base, how many samples, all of these by the layout of the host. The weights w minimise

    sum over hosts of (gain - c - w x)^2 + penalty |w|^2,

so a word that n hosts have counts n / (n + penalty) of what they say, as far as no other word says the same. The
penalty is the one whose choices gain most, on validation, on cases that were left out.

For a case the teacher wants the seeds of the schedule that is expected to gain most, or none, and in any state it
says what leads to them. In the first round it plays; then the student plays, and the teacher says what it would do
(`esper.simic.teaching`). Each rng seed has draws, hosts and a network of its own, in a process of its own. What is
written are networks that `esper train --warm-start` takes, and controllers that `esper bench --controller` takes:

    python benchmarks/teach_schedules.py --preset adapt --outcomes adapt.parquet --seeds 0 1 2 --out runs/taught
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from esper.benchmark.outcomes import WAITING, Outcomes
from esper.benchmark.rivals import met_hosts
from esper.leyline import ActionSpec, Layout, LifecycleOp, Situation, Stage
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import Player, RulePlayer
from esper.statistics import Floats
from esper.tamiyo.rules import Schedule
from esper.tamiyo.rules.by_layout import EPOCHS_TO_FULL_STRENGTH
from esper.tamiyo.rules.policy import refusal
from esper.tamiyo.rules.schedule import resolved
from esper.tolaria.tasks import Instance, task
from harness import report
from lessons import add_options, teach_seeds

Indices = npt.NDArray[np.intp]
TEACHER = "best_schedule"
PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
"""Of equals the first is taken."""
DRAWN_SEEDS = ("data", "permutation")
"""Parameters of a case that say nothing about it."""


# The teacher


def knowledge(case: str, layout: Layout) -> dict[str, float]:
    """What is known of a drawn case: words as 1, numbers as logarithms, each alone and by layout."""
    instance = Instance.parse(case)
    known = {f"task={instance.task}": 1.0}
    for name, value in task(instance.task).complete(dict(instance.parameters)).items():
        if isinstance(value, str):
            known[f"{name}={value}"] = 1.0
        elif name not in DRAWN_SEEDS:
            known[name] = float(np.log2(1.0 + float(value)))
    return {f"layout={layout}": 1.0} | known | {f"{layout}: {name}": value for name, value in known.items()}


@dataclass(frozen=True, slots=True)
class Teacher:
    """Expects of each schedule a gain over waiting, from what is known of a case."""

    schedules: tuple[str, ...]
    names: tuple[str, ...]
    """Of what is known."""
    constants: Floats
    """(schedule,)"""
    weights: Floats
    """(name, schedule)"""

    def schedule(self, case: str, layout: Layout) -> str:
        """The one that is expected to gain most."""
        known = knowledge(case, layout)
        seen = np.array([known.get(name, 0.0) for name in self.names])
        return self.schedules[int((self.constants + seen @ self.weights).argmax())]


@dataclass(frozen=True, slots=True)
class Worth:
    """What choices gain over waiting, on test, mean over hosts; none is made with the case that it is scored on."""

    taught: float
    single_best: float
    """Of the schedule that is best for all the other cases."""
    penalty: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is chosen for each host from the outcomes of the other cases; indices of schedules, (host,)."""

    taught: Indices
    single_best: Indices
    penalty: float


def left_out_choices(outcomes: Outcomes, layouts: Mapping[str, Layout]) -> LeftOut:
    """Hosts are in the order of `gains_of`.

    layouts  case -> layout of its host's first slot
    """
    _, seen = _seen(outcomes, layouts)
    folds = np.repeat(np.arange(len(outcomes.cases)), len(outcomes.seeds))
    validation, hosts = gains_of(outcomes, outcomes.utility), np.arange(len(folds))
    left_out = [folds == fold for fold in range(len(outcomes.cases))]
    choices = {}
    for penalty in PENALTIES:
        fits = [(out, *shrunk(seen[~out], validation[~out], penalty)) for out in left_out]
        guesses = [constants + seen[out] @ weights for out, constants, weights in fits]
        choices[penalty] = np.concatenate(guesses).argmax(axis=1)
    penalty = max(PENALTIES, key=lambda each: float(validation[hosts, choices[each]].mean()))
    single = np.array([int(validation[folds != fold].mean(axis=0).argmax()) for fold in folds])
    return LeftOut(choices[penalty], single, penalty)


def fit_teacher(outcomes: Outcomes, layouts: Mapping[str, Layout]) -> tuple[Teacher, Worth]:
    """Fit on drawn cases; what its choices are worth is asked of cases that were left out."""
    names, seen = _seen(outcomes, layouts)
    chosen = left_out_choices(outcomes, layouts)
    validation, test = (gains_of(outcomes, table) for table in (outcomes.utility, outcomes.score))
    hosts = np.arange(len(test))
    taught, same = (float(test[hosts, some].mean()) for some in (chosen.taught, chosen.single_best))
    teacher = Teacher(outcomes.schedules, names, *shrunk(seen, validation, chosen.penalty))
    return teacher, Worth(taught, same, chosen.penalty)


def _seen(outcomes: Outcomes, layouts: Mapping[str, Layout]) -> tuple[tuple[str, ...], Floats]:
    """Names of what is known, and what is known of each host, (host, name)."""
    rows = [knowledge(case, layouts[case]) for case in outcomes.cases for _ in outcomes.seeds]
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return names, np.array([[row.get(name, 0.0) for name in names] for row in rows])


def shrunk(seen: Floats, gains: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Constants (schedule,) and weights (name, schedule) of the regression of gains on what is known."""
    mean, centred = seen.mean(axis=0), seen - seen.mean(axis=0)
    squares = centred.T @ centred + penalty * np.eye(seen.shape[1])
    weights = np.linalg.solve(squares, centred.T @ gains)
    return gains.mean(axis=0) - mean @ weights, weights


def gains_of(outcomes: Outcomes, table: Floats) -> Floats:
    """(host, schedule): over waiting on the same host."""
    gains = table - table[:, [outcomes.schedules.index(WAITING)]]
    flat: Floats = gains.transpose(0, 2, 1).reshape(-1, gains.shape[1])
    return flat


def choosable(outcomes: Outcomes, size: int, rent: float | None = None) -> Outcomes:
    """Those of waiting, of the single best schedule, and of what adds most to the best of each case.

    size  schedules at most
    rent  what growing a host by its own size costs; None leaves the suite's. A higher one wants fewer parameters
    """
    rows = outcomes.rows if rent is None else tuple(replace(row, rent=rent) for row in outcomes.rows)
    kept = Outcomes(rows).portfolio(size)
    return Outcomes(row for row in rows if row.schedule in kept)


class WantedPolicy:
    """Leads to the seeds of the schedule that the teacher chooses for a case, and keeps what was planted otherwise.

    A student that is not sure plants what the teacher would not have. A teacher that then has it taken out, and
    the right seed planted, teaches one that is never sure to try one after another, and each costs epochs.
    """

    def __init__(self, choose: Callable[[str, Layout], str], case: str) -> None:
        self._choose, self._case = choose, case

    def reset(self) -> None:
        """It remembers nothing of an episode."""

    def act(self, situation: Situation) -> ActionSpec:
        """The first of: plant what is due, if nothing else was planted; go on with what lives; make room."""
        chosen = Schedule.parse(self._choose(self._case, situation.slots[0].layout))
        clauses = [clause for clause in chosen.clauses if clause.action.op is LifecycleOp.GERMINATE]
        wanted = [(clause.epoch, resolved(clause, situation)) for clause in clauses]
        stages = {slot.name: slot.stage for slot in situation.slots}
        now, last = situation.signals.epoch, situation.signals.horizon - EPOCHS_TO_FULL_STRENGTH
        missing = [
            action
            for due, action in wanted
            if due <= now <= last and stages.get(str(action.slot)) is Stage.DORMANT
        ]
        seeds = {action.slot: action.blueprint for _, action in wanted}
        live = [slot for slot in situation.slots if slot.stage.is_live]
        if any(seeds.get(slot.name) != slot.blueprint for slot in live):
            missing = []
        steps = [*missing, *(ActionSpec(LifecycleOp.ADVANCE, slot.name) for slot in live)]
        if missing:
            steps += [ActionSpec(LifecycleOp.FOSSILIZE, slot.name) for slot in live]
        return next((step for step in steps if refusal(step, situation) is None), ActionSpec())


# Teaching


def players(cases: Sequence[str], teacher: Teacher) -> Player:
    """The teacher of envs whose cases are these."""
    return RulePlayer(lambda env_idx: WantedPolicy(teacher.schedule, cases[env_idx]))


def main() -> None:
    options = _options()
    suite = TrainingConfig.preset(options.preset).suite
    drawn = Outcomes.read(options.outcomes).part(held_out=False)
    _, layouts = met_hosts(drawn.cases, suite)
    teacher, worth = fit_teacher(choosable(drawn, options.schedules, options.rent), layouts)
    chosen = {case: teacher.schedule(case, layouts[case]) for case in drawn.cases}
    for schedule, cases in Counter(chosen.values()).most_common():
        print(f"for {cases} of {len(chosen)} cases: {schedule or 'wait'}")
    added = [row.added_parameters for row in drawn.rows if row.schedule == chosen[row.case]]
    lived = statistics.fmean(each for each in added if each is not None)
    print(f"parameters that these add, mean over hosts: {lived:,.0f}")
    gains = f"{100 * worth.taught:+.2f} points over waiting, the single best {100 * worth.single_best:+.2f}"
    print(f"on test, each case left out, its choices gain {gains} (penalty {worth.penalty:g})", flush=True)
    rows = teach_seeds(options.preset, partial(players, teacher=teacher), TEACHER, options)
    report("teach_schedules", f"Lessons on {suite}", rows, out=options.out / "teach_schedules.json")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="adapt", help="adapt or hosts (%(default)s)")
    parser.add_argument("--outcomes", type=Path, required=True, help="what make_outcomes.py wrote")
    parser.add_argument("--schedules", type=int, default=8, help="that it chooses from (%(default)s)")
    rent = (
        "what growing a host by its own size costs the teacher; a higher one grows less (that of the suite)"
    )
    parser.add_argument("--rent", type=float, default=None, help=rent)
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
