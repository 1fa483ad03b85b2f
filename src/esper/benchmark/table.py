"""From rows alone to a table: each arm's scores, paired comparisons, the headroom, the best rival."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import Literal

import numpy as np

from esper.benchmark.arms import BLIND, MATCHED, SBS, SBS_HINDSIGHT, VBS, WAIT
from esper.benchmark.rivals import HALVING, RIVALS, TRIES
from esper.benchmark.rows import BenchRow, RowsError
from esper.benchmark.stream_rivals import STREAM_RIVALS
from esper.statistics import (
    DRAWS,
    Estimate,
    Resamples,
    Scores,
    TwoSidedP,
    detectable_difference,
    draws_for,
    enough,
    holm,
    interquartile_mean,
    paired_difference,
    share_of_gap,
    wins,
    within_deviation,
)

LEVEL = 0.05
Finding = Literal["better", "worse", "unclear", "no difference", "too few"]
Value = Callable[[BenchRow], float | None]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Every arm on the same instances and seeds. Values that are not known are NaN."""

    instances: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: dict[str, Scores]
    """arm -> (member, instance, seed)"""
    rows: dict[str, list[BenchRow]]
    """arm -> its rows on these hosts"""
    left_out: tuple[str, ...]
    """Instances that not every arm has played with every seed."""

    def values(self, arm: str, value: Value) -> Scores:
        """(member, instance, seed) of a number in the rows other than the score."""
        return _array(self.rows[arm], self.instances, self.seeds, value)


def score_table(rows: Iterable[BenchRow]) -> ScoreTable:
    """Balanced: only instances that every arm, with all its members, has played with all seeds."""
    rows = list(rows)
    if not rows:
        raise RowsError("there are no rows to make a table of")
    seeds = tuple(sorted({row.seed for row in rows}))
    wanted = len(seeds) * len({(row.arm, row.member) for row in rows})
    counts = Counter(row.instance for row in rows)
    instances = tuple(instance for instance, count in counts.items() if count == wanted)
    if not instances:
        raise RowsError(
            f"no instance was played by every arm with every seed yet: {len(rows)} rows, {wanted} make one"
        )
    whole, by_arm = set(instances), dict[str, list[BenchRow]]()
    for row in rows:
        if row.instance in whole:
            by_arm.setdefault(row.arm, []).append(row)
    return ScoreTable(
        instances=instances,
        seeds=seeds,
        arms={arm: _array(by_arm[arm], instances, seeds, lambda row: row.score) for arm in by_arm},
        rows=by_arm,
        left_out=tuple(instance for instance in counts if instance not in whole),
    )


def _array(rows: Sequence[BenchRow], instances: Sequence[str], seeds: Sequence[int], value: Value) -> Scores:
    members = sorted({row.member for row in rows})
    array = np.full((len(members), len(instances), len(seeds)), np.nan)
    place = {instance: index for index, instance in enumerate(instances)}
    for row in rows:
        known = value(row)
        if known is not None:
            array[members.index(row.member), place[row.instance], seeds.index(row.seed)] = known
    return array


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One line of the table. Scores are test accuracy minus rent; the rest are means over episodes."""

    arm: str
    members: int
    episodes: int
    score: Estimate
    """Interquartile mean."""
    over_wait: Estimate
    """Mean paired difference to waiting."""
    over_wait_anew: Estimate
    """The same with the instances drawn anew too: what to expect of others like them."""
    test_accuracy: float | None
    parameters: float | None
    trained_parameters: float | None
    """Of those, the ones that require gradients: fewer where hosts are frozen."""
    training_flops: float | None
    wall_seconds: float
    operations: float
    """Decisions in an episode other than to wait."""
    condemned: int
    """Episodes that the governor ended."""


def some_are_frozen(arms: Sequence[ArmSummary]) -> bool:
    """Whether hosts of these arms have parameters that are not trained: then a table says how many are."""
    pairs = [(arm.trained_parameters, arm.parameters) for arm in arms]
    return any(trained is not None and trained != whole for trained, whole in pairs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Treatment minus control on the same hosts."""

    treatment: str
    control: str
    difference: Estimate
    on_new_instances: Estimate
    """The same difference with the instances drawn anew too: what to expect of others like them."""
    improvement: Estimate
    """How often the treatment is better on the same host."""
    p_value: float
    """NaN where there is no interval."""
    p_holm: float
    """Adjusted for all comparisons of the table."""
    detectable: float | None
    """The difference that this many hosts find four times out of five; None with one seed."""

    @property
    def finding(self) -> Finding:
        """An interval that excludes 0 is a difference; unclear while its adjusted p value is 0.05 or more."""
        if not self.difference.bounded:
            return "too few"
        if self.difference.sign == 0:
            return "no difference"
        if self.p_holm >= LEVEL:
            return "unclear"
        return "better" if self.difference.sign > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Headroom:
    """What there is to win by deciding for each instance."""

    sbs_over_wait: Estimate
    vbs_over_wait: Estimate
    gap: Estimate
    """VBS minus SBS."""
    gap_anew: Estimate
    """The same with the instances drawn anew too."""
    over_hindsight: Estimate | None
    """VBS minus the schedule that is the single best on these very instances; None where that was not played."""
    schedules: int | None
    """How many schedules VBS is the best of; None where that is not known."""

    @property
    def open(self) -> bool:
        """Whether the gap is above 0 beyond noise."""
        return self.gap.sign > 0


@dataclass(frozen=True, slots=True)
class TreatmentNotes:
    """What is only asked of a treatment."""

    treatment: str
    share: Estimate | None
    """Share of the gap between SBS and VBS that it closes; None if the gap is within noise."""
    share_anew: Estimate | None
    """The same with the instances drawn anew too."""
    where_growth_hurts: Estimate | None
    """Difference to waiting on the instances where the best schedule is to wait; None if there are none."""
    hurt_instances: int
    """How many those are."""
    training_runs: float | None
    """Whole runs of hosts that training one controller took; None where that is not known."""
    paid_back: dict[str, float]
    """Arm that runs every host several times -> hosts on which that costs as much more as the training did."""


@dataclass(frozen=True, slots=True)
class BenchTable:
    """Everything that a benchmark says of one set of instances."""

    suite: str
    subset: str
    """What the instances are of the suite's: `all`, or one of `esper.benchmark.suites.subsets`."""
    instances: tuple[str, ...]
    seeds: int
    arms: tuple[ArmSummary, ...]
    headroom: Headroom | None
    comparisons: tuple[Comparison, ...]
    notes: tuple[TreatmentNotes, ...]
    left_out: tuple[str, ...]
    """Instances that are not in it because some arm has not played them."""

    @property
    def too_few(self) -> bool:
        """Whether the hosts are so few that nothing follows for others."""
        return not enough(len(self.instances), self.seeds, new_instances=self.seeds == 1)


def bench_table(
    rows: Iterable[BenchRow],
    treatments: Sequence[str],
    *,
    instances: Sequence[str] | None = None,
    subset: str = "all",
    schedules: int | None = None,
    training_epochs: Mapping[str, float] = MappingProxyType({}),
) -> BenchTable:
    """The table of these rows, with the arms in their order.

    treatments       the arms that are compared with every other
    instances        only these; None is all
    schedules        how many schedules VBS was chosen from, where that is known
    training_epochs  arm -> epochs of hosts that training one of its controllers took, where that is known
    """
    chosen = None if instances is None else set(instances)
    table = score_table(row for row in rows if chosen is None or row.instance in chosen)
    if WAIT not in table.rows:
        raise RowsError(f"there are no rows of {WAIT}, which every other arm is compared with")
    resamples, anew = _resamples(table), _resamples(table, new_instances=True)
    known = [treatment for treatment in treatments if treatment in table.arms]
    headroom = _headroom(table, resamples, anew, schedules)
    return BenchTable(
        suite=table.rows[WAIT][0].suite,
        subset=subset,
        instances=table.instances,
        seeds=len(table.seeds),
        arms=tuple(_summary(table, arm, resamples, anew) for arm in table.arms),
        headroom=headroom,
        comparisons=_comparisons(table, known, resamples, anew),
        notes=tuple(
            _notes(table, treatment, headroom, resamples, anew, training_epochs.get(treatment))
            for treatment in known
        ),
        left_out=table.left_out,
    )


def _resamples(table: ScoreTable, *, new_instances: bool = False, seed: int = 0) -> Resamples:
    """With one host of each instance there is nothing to draw within it: then instances are drawn in any case."""
    hosts = len(table.seeds)
    new_instances = new_instances or hosts == 1
    return Resamples(len(table.instances), hosts, seed=seed, new_instances=new_instances)


def _summary(table: ScoreTable, arm: str, resamples: Resamples, anew: Resamples) -> ArmSummary:
    rows, scores = table.rows[arm], table.arms[arm]
    return ArmSummary(
        arm=arm,
        members=len(scores),
        episodes=len(rows),
        score=resamples.estimate(
            lambda drawn: interquartile_mean(drawn.reshape(*drawn.shape[:-3], -1)), scores
        ),
        over_wait=resamples.estimate_of_means(paired_difference, scores, table.arms[WAIT]),
        over_wait_anew=anew.estimate_of_means(paired_difference, scores, table.arms[WAIT]),
        test_accuracy=_mean(table, arm, lambda row: row.test_accuracy),
        parameters=_mean(table, arm, lambda row: row.parameters),
        trained_parameters=_mean(table, arm, lambda row: row.trained_parameters),
        training_flops=_mean(table, arm, lambda row: row.training_flops),
        wall_seconds=float(np.mean([row.wall_seconds for row in rows])),
        operations=float(np.mean([len(row.decisions.split(";")) if row.decisions else 0 for row in rows])),
        condemned=sum(row.rolled_back is not None for row in rows),
    )


def _mean(table: ScoreTable, arm: str, value: Value) -> float | None:
    values = table.values(arm, value)
    return None if np.isnan(values).all() else float(np.nanmean(values))


def _comparisons(
    table: ScoreTable, treatments: Sequence[str], resamples: Resamples, anew: Resamples
) -> tuple[Comparison, ...]:
    pairs = [
        (treatment, control)
        for treatment in treatments
        for control in table.arms
        if control != treatment and not (control in treatments and control < treatment)
    ]
    p_values = _p_values(table, pairs)
    compared = []
    for pair, p_value, adjusted in zip(pairs, p_values, holm(p_values), strict=True):
        treatment, control = (table.arms[name] for name in pair)
        detectable = None
        if len(table.seeds) > 1:
            deviation = within_deviation(treatment.mean(axis=0) - control.mean(axis=0))
            detectable = detectable_difference(deviation, len(table.instances) * len(table.seeds))
        compared.append(
            Comparison(
                treatment=pair[0],
                control=pair[1],
                difference=resamples.estimate_of_means(paired_difference, treatment, control),
                on_new_instances=anew.estimate_of_means(paired_difference, treatment, control),
                improvement=resamples.estimate_of_means(lambda mean: mean, wins(treatment, control)),
                p_value=p_value,
                p_holm=adjusted,
                detectable=detectable,
            )
        )
    return tuple(compared)


def _p_values(table: ScoreTable, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """(pair,): from as many draws as so many comparisons ask for, DRAWS of them at a time."""
    if not pairs:
        return []
    tails, compared = TwoSidedP(), dict.fromkeys(chain(*pairs))
    for seed in range(ceil(draws_for(len(pairs)) / DRAWS)):  # those of the intervals first
        resamples = _resamples(table, seed=seed)
        means = {arm: resamples.distribution(lambda mean: mean, table.arms[arm]) for arm in compared}
        tails.add(np.stack([paired_difference(means[one], means[other]) for one, other in pairs]))
    return tails.values()


def _headroom(
    table: ScoreTable, resamples: Resamples, anew: Resamples, schedules: int | None
) -> Headroom | None:
    if not {SBS, VBS} <= set(table.arms):
        return None
    wait, sbs, vbs = (table.arms[arm] for arm in (WAIT, SBS, VBS))
    return Headroom(
        sbs_over_wait=resamples.estimate_of_means(paired_difference, sbs, wait),
        vbs_over_wait=resamples.estimate_of_means(paired_difference, vbs, wait),
        gap=resamples.estimate_of_means(paired_difference, vbs, sbs),
        gap_anew=anew.estimate_of_means(paired_difference, vbs, sbs),
        over_hindsight=None
        if SBS_HINDSIGHT not in table.arms
        else resamples.estimate_of_means(paired_difference, vbs, table.arms[SBS_HINDSIGHT]),
        schedules=schedules,
    )


def _notes(
    table: ScoreTable,
    treatment: str,
    headroom: Headroom | None,
    resamples: Resamples,
    anew: Resamples,
    training_epochs: float | None,
) -> TreatmentNotes:
    runs = None if training_epochs is None else training_epochs / max(row.epochs for row in table.rows[WAIT])
    paid_back = {} if runs is None else _paid_back(table, treatment, runs)
    if headroom is None:
        return TreatmentNotes(treatment, None, None, None, 0, runs, paid_back)
    scores, wait, sbs, vbs = (table.arms[arm] for arm in (treatment, WAIT, SBS, VBS))
    hurt = [
        place
        for place, instance in enumerate(table.instances)
        if all(not row.decisions for row in table.rows[VBS] if row.instance == instance)
    ]
    harm = None
    if hurt:
        among = Resamples(len(hurt), len(table.seeds), new_instances=len(table.seeds) == 1)
        harm = among.estimate_of_means(paired_difference, scores[:, hurt], wait[:, hurt])
    share, share_anew = (
        draws.estimate_of_means(share_of_gap, scores, sbs, vbs) if headroom.open else None
        for draws in (resamples, anew)
    )
    return TreatmentNotes(treatment, share, share_anew, harm, len(hurt), runs, paid_back)


def _paid_back(table: ScoreTable, treatment: str, runs: float) -> dict[str, float]:
    """Hosts on which each arm that runs a host several times costs `runs` runs more than the treatment does."""
    ours = _mean(table, treatment, lambda row: row.training_flops)
    several = [arm for arm in (*TRIES, HALVING) if arm in table.arms]
    theirs = {arm: _mean(table, arm, lambda row: row.training_flops) for arm in several}
    if ours is None:
        return {}
    return {arm: runs * ours / (flops - ours) for arm, flops in theirs.items() if flops and flops > ours}


def best_rival(table: BenchTable, treatment: str) -> Comparison | None:
    """The comparison with the best arm that a user could play and that trains no more, but for 2 %.

    None where no rival that a user would try first was played. It leaves out what is chosen in hindsight, what is
    made from the treatment, and other treatments.
    """
    arms = {arm.arm: arm for arm in table.arms}
    if not arms.keys() & {*RIVALS, *STREAM_RIVALS}:
        return None
    unfair = {SBS_HINDSIGHT, VBS, *MATCHED, BLIND, *(notes.treatment for notes in table.notes)}
    ours = arms[treatment].training_flops

    def affordable(name: str) -> bool:
        theirs = arms[name].training_flops
        if ours is None or theirs is None:
            return name not in (*TRIES, HALVING)
        return theirs <= 1.02 * ours

    rivals = [
        each
        for each in table.comparisons
        if each.treatment == treatment and each.control not in unfair and affordable(each.control)
    ]
    return max(rivals, key=lambda each: arms[each.control].over_wait.value, default=None)
