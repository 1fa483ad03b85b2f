"""What a user would try before a learned controller, fitted on the outcomes of schedules on drawn cases.

    look_up              the schedule that was best for hosts of the same layout
    look_once            a linear rule on what is seen at one early epoch: play one schedule, or wait
    try_2, try_3, try_5  so many whole runs from a list of schedules; the better one on validation is kept
    successive_halving   the whole list for a quarter of the epochs, the better part for half of them, two to the end

The list has waiting first, then the single best schedule, then greedily what adds most to the best of each case. What
ran is charged: `training_flops` of a kept episode holds the others' too.

Rivals on a base are last: train its head alone, fine-tune all of it, or add LoRA at every layer. Each is an instance
of the same task that trains something else and grows nothing. `benchmarks/study_adapt.py` tunes their learning rates
on small bases; those on published networks are a first choice, not tuned.
"""

import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from esper.benchmark.arms import WAIT, Arm, Group, Hosts, ScheduleArm, Staging
from esper.benchmark.outcomes import WAITING, Outcomes
from esper.benchmark.rows import BenchRow, RowsError
from esper.leyline import ActionSpec, Beginning, Layout, Situation
from esper.simic.env.making import make_world
from esper.simic.evaluation import RulePlayer
from esper.statistics import Floats
from esper.tamiyo.rules import Schedule, SchedulePolicy, rule_policy
from esper.tamiyo.rules.policy import Remembering
from esper.tolaria.tasks import Instance, Parameter
from esper.tolaria.tasks.adapt import BASES
from esper.tolaria.tasks.backbone import BACKBONES

LOOK_UP, LOOK_ONCE, HALVING = "look_up", "look_once", "successive_halving"
TRIES = {"try_2": 2, "try_3": 3, "try_5": 5}
LISTED = max(TRIES.values())
"""Schedules on the list, waiting among them."""
LISTED_PREFIX = "schedule_"
"""Of the names of arms that play one of them."""
RIVALS = (LOOK_UP, LOOK_ONCE, *TRIES, HALVING)
PENALTIES = (0.1, 1.0, 10.0, 100.0)
_RUNGS = ((1 / 4, 3), (1 / 2, 2))
"""(share of the epochs, how many go on): with five on the list, three whole runs in all, as many as try_3 has."""


def met_hosts(cases: Sequence[str], suite: str) -> tuple[dict[str, int], dict[str, Layout]]:
    """case -> training samples that a host has in its first epoch, case -> layout of its first slot"""
    world, samples, layouts = make_world(suite, 1).world, {}, {}
    for case in cases:
        world.begin_many([Beginning(0, case, 0)])
        host = world.host(0)
        samples[case], layouts[case] = host.training_samples, host.snapshots()[0].layout
    return samples, layouts


# Looking up


def fit_look_up(outcomes: Outcomes, layouts: Mapping[str, Layout]) -> dict[Layout, str]:
    """Layout -> the schedule with the highest mean utility, on validation, over the cases of that layout.

    outcomes  on drawn cases
    layouts   case -> layout of its host's first slot
    """
    return {
        layout: Outcomes(row for row in outcomes.rows if layouts[row.case] is layout).single_best()
        for layout in dict.fromkeys(layouts[case] for case in outcomes.cases)
    }


class LookUpPolicy:
    """Plays the schedule that is on the list for its host's layout, and another one where none is."""

    def __init__(self, schedules: Mapping[Layout, str], otherwise: str) -> None:
        self._schedules = {layout: SchedulePolicy(text) for layout, text in schedules.items()}
        self._otherwise = SchedulePolicy(otherwise)

    def reset(self) -> None:
        """Begin a new episode."""
        for policy in (*self._schedules.values(), self._otherwise):
            policy.reset()

    def act(self, situation: Situation) -> ActionSpec:
        """Do what the schedule says for this epoch."""
        return self._schedules.get(situation.slots[0].layout, self._otherwise).act(situation)


@dataclass(frozen=True, slots=True)
class LookUpArm(Arm):
    """Looks its schedule up by the host's layout."""

    schedules: Mapping[Layout, str]
    otherwise: str
    """For layouts that no drawn case has."""
    name: str = LOOK_UP

    @property
    def identity(self) -> str:
        return f"looks up {zlib.crc32(repr((sorted(self.schedules.items()), self.otherwise)).encode()):08x}"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del hosts, context
        return Staging(RulePlayer(lambda _: LookUpPolicy(self.schedules, self.otherwise)))


# Looking once


@dataclass(frozen=True, slots=True)
class Look:
    """Play `schedule` where a linear rule on what is seen after `epoch` epochs expects it to gain over waiting."""

    epoch: int
    schedule: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    """The constant, then one for each standardised feature."""

    def expected(self, features: Sequence[float]) -> float:
        """The gain in utility that the rule expects."""
        standard = (np.array(features) - self.mean) / self.scale
        return float(self.weights[0] + standard @ np.array(self.weights[1:]))


def look_features(
    samples: int, validation: Sequence[float], train_accuracy: float
) -> tuple[float, float, float, float]:
    """Training samples (log2), validation accuracy, its lead over training accuracy, and its last step.

    validation  accuracies after 0, 1, ... epochs, up to the epoch of the look
    """
    now = validation[-1]
    return float(np.log2(samples)), now, now - train_accuracy, now - validation[-2]


def fit_look(outcomes: Outcomes, samples: Mapping[str, int]) -> Look:
    """The epoch, schedule and penalty whose decisions, each taken with its case left out, have the highest utility.

    Where there is one case, each of its hosts is left out. A case whose waiting host was given up has nothing to look
    at, and is not learned from.

    outcomes  on drawn cases
    samples   case -> training samples
    """
    given_up = {
        row.case for row in outcomes.rows if row.schedule == WAITING and row.validation_accuracy is None
    }
    outcomes = Outcomes(row for row in outcomes.rows if row.case not in given_up)
    gains = outcomes.utility - outcomes.utility[:, [outcomes.schedules.index(WAITING)]]
    flat = gains.transpose(0, 2, 1).reshape(-1, gains.shape[1])  # (host, schedule)
    cases = np.repeat(np.arange(len(outcomes.cases)), len(outcomes.seeds))
    left_out = cases if len(outcomes.cases) > 1 else np.arange(len(flat))
    births = [first_birth(schedule) for schedule in outcomes.schedules]
    best, chosen = -np.inf, Look(1, WAITING, (0.0,) * 4, (1.0,) * 4, (0.0,) * 5)
    for epoch in range(1, max((birth for birth in births if birth is not None), default=0) + 1):
        seen = _seen(outcomes, samples, epoch)
        playable = [place for place, birth in enumerate(births) if birth is not None and birth >= epoch]
        for penalty in PENALTIES:
            guesses = guesses_left_out(seen, flat[:, playable], left_out, penalty)
            values = np.where(guesses > 0.0, flat[:, playable], 0.0).mean(axis=0)
            if values.max() > best:
                best, place = float(values.max()), playable[int(values.argmax())]
                mean, scale, weights = ridge(seen, flat[:, [place]], penalty)
                found = (tuple(map(float, each)) for each in (mean, scale, weights[:, 0]))
                chosen = Look(epoch, outcomes.schedules[place], *found)
    return chosen


def first_birth(schedule: str) -> int | None:
    """The epoch of a schedule's first clause; None if it only waits."""
    return min((clause.epoch for clause in Schedule.parse(schedule).clauses), default=None)


def _seen(outcomes: Outcomes, samples: Mapping[str, int], epoch: int) -> Floats:
    """(host, feature) of waiting hosts.

    By the curves in the outcomes, which are not of the half of validation that the rule sees as it plays; what that
    costs is in docs/benchmark.md.
    """
    rows = []
    for case in outcomes.cases:
        for seed in outcomes.seeds:
            waited = outcomes.by_key[case, WAITING, seed]
            curve, trained = (
                waited.validation_accuracies[: epoch + 1],
                waited.train_accuracies[epoch : epoch + 1],
            )
            if len(curve) <= epoch or trained in ((), (None,)):
                raise RowsError(
                    f"waiting on {case}, seed {seed}, has no accuracies after epoch {epoch} to look at"
                )
            rows.append(look_features(samples[case], curve, float(trained[0] or 0.0)))
    return np.array(rows)


def ridge(seen: Floats, gains: Floats, penalty: float) -> tuple[Floats, Floats, Floats]:
    """Mean and scale of the features, and the weights (1 + feature, schedule); the constant is not penalised."""
    mean, scale = seen.mean(axis=0), seen.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    design = np.column_stack([np.ones(len(seen)), (seen - mean) / scale])
    shrink = penalty * np.diag([0.0, *[1.0] * seen.shape[1]])
    return mean, scale, np.linalg.solve(design.T @ design + shrink, design.T @ gains)


def guesses_left_out(seen: Floats, gains: Floats, folds: NDArray[np.int64], penalty: float) -> Floats:
    """(host, schedule): the gain expected of each by the rule fitted without its fold."""
    guesses = np.empty_like(gains)
    for fold in np.unique(folds):
        out = folds == fold
        mean, scale, weights = ridge(seen[~out], gains[~out], penalty)
        guesses[out] = np.column_stack([np.ones(out.sum()), (seen[out] - mean) / scale]) @ weights
    return guesses


@dataclass
class _Looked:
    """What was seen so far, and what was made of it."""

    validation: list[float] = field(default_factory=list)
    plays: bool = False


class LookPolicy(Remembering[_Looked]):
    """Waits, looks once, and then plays a schedule or waits on."""

    def __init__(self, look: Look) -> None:
        self.look, self._schedule = look, SchedulePolicy(look.schedule)
        super().__init__(_Looked)

    def reset(self) -> None:
        """Begin a new episode."""
        super().reset()
        self._schedule.reset()

    def act(self, situation: Situation) -> ActionSpec:
        """Decide at the epoch of the look; before and otherwise wait."""
        signals, memory = situation.signals, self.memory
        if signals.epoch <= self.look.epoch and signals.validation_accuracy is not None:
            memory.validation.append(signals.validation_accuracy)
        if signals.epoch == self.look.epoch and signals.train_accuracy is not None:
            assert signals.training_samples is not None  # an environment's host knows it
            seen = look_features(signals.training_samples, memory.validation, signals.train_accuracy)
            memory.plays = self.look.expected(seen) > 0.0
        return self._schedule.act(situation) if memory.plays else ActionSpec()


@dataclass(frozen=True, slots=True)
class LookArm(Arm):
    """Looks once, with what was fitted on drawn cases."""

    look: Look
    name: str = LOOK_ONCE

    @property
    def identity(self) -> str:
        return f"looks {zlib.crc32(repr(self.look).encode()):08x}"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del hosts, context
        return Staging(RulePlayer(lambda _: LookPolicy(self.look)))


# Running several, and keeping one


def listed_arms(schedules: Sequence[str], instances: Sequence[str]) -> list[ScheduleArm]:
    """The list as arms of their own, but for waiting, which is one already."""
    arms = enumerate(schedules)
    return [ScheduleArm(_listed(place), dict.fromkeys(instances, text)) for place, text in arms if text]


def _listed(place: int) -> str:
    """The arm that plays a place of the list; the first is waiting."""
    return f"{LISTED_PREFIX}{place}" if place else WAIT


@dataclass(frozen=True, slots=True)
class KeepBestArm(Arm):
    """Runs the first `runs` schedules of the list, to the end or as far as halving lets them, and keeps the best."""

    name: str
    runs: int
    schedules: tuple[str, ...]
    halving: bool = False
    trains: ClassVar[bool] = False

    @property
    def identity(self) -> str:
        return f"keeps the best of {zlib.crc32(repr(self.schedules[: self.runs]).encode()):08x}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del instances
        return tuple((_listed(place), 0, instance) for place in range(self.runs))

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        """Every episode is the best one's, charged with all that ran."""
        keep = race if self.halving else keep_best
        return {
            seed: keep([hosts.row(_listed(place), 0, seed) for place in range(self.runs)])
            for seed in hosts.seeds
        }

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del hosts, context
        raise AssertionError(f"{self.name} has nothing to play: all of its episodes are other arms'")


def keep_best(rows: Sequence[BenchRow]) -> BenchRow:
    """The row with the highest utility on validation, charged with the training and the time of all."""
    best = max(rows, key=lambda row: 0.0 if row.utility is None else row.utility)
    flops = [row.training_flops for row in rows]
    return replace(
        best,
        training_flops=None if None in flops else float(sum(each or 0.0 for each in flops)),
        wall_seconds=sum(row.wall_seconds for row in rows),
    )


def race(rows: Sequence[BenchRow]) -> BenchRow:
    """Rows in competition: at each rung the lower ones in validation accuracy stop, and are charged until there."""
    running, stopped = list(rows), list[BenchRow]()
    epochs = max(row.epochs for row in rows)
    for share, go_on in _RUNGS:
        rung = round(share * epochs)
        ranked = sorted(running, key=lambda row: _accuracy_after(row, rung), reverse=True)
        running, dropped = ranked[:go_on], ranked[go_on:]
        stopped += [_until(row, rung) for row in dropped]
    finished = keep_best(running)
    flops = [finished.training_flops, *(row.training_flops for row in stopped)]
    return replace(
        finished,
        training_flops=None if None in flops else float(sum(each or 0.0 for each in flops)),
        wall_seconds=finished.wall_seconds + sum(row.wall_seconds for row in stopped),
    )


def _accuracy_after(row: BenchRow, epoch: int) -> float:
    """An episode that the governor ended before has lost."""
    accuracy = row.validation_accuracies[epoch] if epoch < len(row.validation_accuracies) else None
    return -1.0 if accuracy is None else accuracy


def _until(row: BenchRow, epoch: int) -> BenchRow:
    """The cost of a row that is stopped after so many epochs."""
    trained = min(epoch, row.epochs)
    flops = row.training_flops if trained == row.epochs else None
    if row.epoch_flops:
        flops = float(sum(row.epoch_flops[:trained]))
    return replace(row, training_flops=flops, wall_seconds=row.wall_seconds * trained / max(row.epochs, 1))


# What others do with a base on a target


BASED = ("adapt", "adapt_stream", "backbone")
"""The tasks whose hosts are bases."""
RATES = {"fine_tuning": (0.0005, 0.002, 0.005), "lora": (0.002, 0.005, 0.01, 0.015)}
"""Learning rates that are tried."""


@dataclass(frozen=True, slots=True)
class AdaptRival:
    """One way to train, with its settings."""

    name: str
    trains: str
    statistics: str = "target"
    lr: float | None = None
    """None is the task's own, which the head of a growing host has, too."""
    backbone_lr: float | None = None
    """The same on published networks, which bear less: a first choice, not tuned. None is `lr`."""

    def __str__(self) -> str:
        return self.name if self.lr is None else f"{self.name}, lr {self.lr:g}"

    def case(self, case: str) -> str:
        """The same target, with a host that is trained this way; a base without BatchNorm has no statistics."""
        instance = Instance.parse(case)
        given = dict(instance.parameters)
        known = instance.row.complete(given)
        changes: dict[str, Parameter] = {"trains": self.trains}
        if _normalises_batches(known):
            changes["statistics"] = self.statistics
        lr = self.backbone_lr if instance.task == "backbone" and self.backbone_lr is not None else self.lr
        if lr is not None:
            changes["lr"] = lr
        return str(Instance.of(instance.task, given | changes))


def _normalises_batches(parameters: Mapping[str, Parameter]) -> bool:
    """Whether the network of an instance has BatchNorm layers, and so statistics of what it has learned."""
    if "backbone" in parameters:
        return not BACKBONES[str(parameters["backbone"])].reads_texts
    return BASES[str(parameters["base"])].normalises_batches


def adapt_rivals() -> list[AdaptRival]:
    """Every rival in every setting; what has one name is to be tuned."""
    rivals = [AdaptRival("head, source statistics", "head", "source")]
    for statistics in ("target", "moving", "source"):
        name = f"fine-tuning, {statistics} statistics"
        rivals += [AdaptRival(name, "all", statistics, rate) for rate in RATES["fine_tuning"]]
    for rank in (4, 16):
        rivals += [AdaptRival(f"lora {rank}", f"lora{rank}", lr=rate) for rate in RATES["lora"]]
    return rivals


ADAPT_ARMS: Mapping[str, AdaptRival] = {
    "fine_tuning": AdaptRival("fine_tuning", "all", "moving", lr=0.002, backbone_lr=0.0003),
    "lora4": AdaptRival("lora4", "lora4", lr=0.005, backbone_lr=0.001),
    "lora16": AdaptRival("lora16", "lora16", lr=0.002, backbone_lr=0.001),
}
"""The arms that a benchmark of bases has besides; `lr` as `benchmarks/study_adapt.py` tuned it on other draws."""


@dataclass(frozen=True, slots=True)
class AdaptArm(Arm):
    """A rival as an arm of a benchmark: hosts that are trained its way, and wait."""

    name: str
    rival: AdaptRival

    @property
    def identity(self) -> str:
        return f"rival on targets: {self.rival}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[tuple[str, int, str], ...]:
        """Waiting: added parameters are counted over its host's."""
        del instances
        return ((WAIT, 0, instance),)

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        case = self.rival.case(hosts.instance)
        return Staging(RulePlayer(lambda _: rule_policy(WAIT)), tuple(case for _ in hosts.seeds))
