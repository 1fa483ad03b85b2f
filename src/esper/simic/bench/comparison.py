"""From rows alone to a table: what each arm scored, paired differences, the headroom gate, the share of it won."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from esper.simic.bench.arms import SBS, VBS, WAIT
from esper.simic.bench.rows import BenchRow
from esper.simic.bench.scores import ScoreTable, Value, score_table
from esper.simic.statistics import (
    Estimate,
    Resamples,
    detectable_difference,
    holm,
    interquartile_means,
    paired_difference,
    share_of_gap,
    the_mean,
    two_sided_p,
    wins,
    within_deviation,
)
from esper.simic.statistics.bootstrap import interval
from esper.simic.statistics.summaries import Floats

LEVEL = 0.05
Finding = Literal["better", "worse", "no difference"]


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One line of the table. Scores are test accuracy minus rent; the rest are means."""

    arm: str
    members: int
    episodes: int
    score: Estimate
    """Interquartile mean."""
    over_wait: Estimate
    """Mean paired difference to waiting."""
    test_accuracy: float | None
    parameters: float | None
    training_flops: float | None
    wall_seconds: float
    operations: float
    """Decisions an episode other than to wait."""
    condemned: int
    """Episodes that the governor ended."""


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
    p_holm: float
    """Adjusted for all comparisons of the table."""
    detectable: float | None
    """The difference that this many hosts find four times out of five; None with one seed."""

    @property
    def finding(self) -> Finding:
        if self.difference.sign == 0 or self.p_holm >= LEVEL:
            return "no difference"
        return "better" if self.difference.sign > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Headroom:
    """What there is to win by deciding for each instance."""

    sbs_over_wait: Estimate
    vbs_over_wait: Estimate
    gap: Estimate
    """VBS - SBS"""

    @property
    def open(self) -> bool:
        return self.gap.sign > 0


@dataclass(frozen=True, slots=True)
class TreatmentNotes:
    """What is only asked of a treatment."""

    treatment: str
    share: Estimate | None
    """Of the gap between SBS and VBS; None without a gap to speak of."""
    where_growth_hurts: Estimate | None
    """Over waiting, on the instances where the best schedule is to wait; None where there are none."""
    hurt_instances: int


@dataclass(frozen=True, slots=True)
class BenchTable:
    suite: str
    subset: str
    instances: tuple[str, ...]
    seeds: int
    arms: tuple[ArmSummary, ...]
    headroom: Headroom | None
    comparisons: tuple[Comparison, ...]
    notes: tuple[TreatmentNotes, ...]
    left_out: tuple[str, ...]
    """Instances that are not in it because not every arm has played them."""


def bench_table(
    rows: Iterable[BenchRow],
    treatments: Sequence[str],
    *,
    instances: Sequence[str] | None = None,
    subset: str = "all",
    order: Sequence[str] = (),
) -> BenchTable:
    """Of these rows, and of nothing else; `instances` restricts it to some, `order` says which arms come first."""
    rows = list(rows)
    table = score_table(
        rows if instances is None else [row for row in rows if row.instance in set(instances)]
    )
    resamples = Resamples(len(table.instances), len(table.seeds))
    known = [treatment for treatment in treatments if treatment in table.arms]
    headroom = _headroom(table, resamples)
    return BenchTable(
        suite=rows[0].suite,
        subset=subset,
        instances=table.instances,
        seeds=len(table.seeds),
        arms=tuple(_summary(table, arm, resamples) for arm in _ordered(table.arms, order)),
        headroom=headroom,
        comparisons=_comparisons(table, known, order, resamples),
        notes=tuple(_notes(table, treatment, headroom, resamples) for treatment in known),
        left_out=table.left_out,
    )


def _ordered(arms: Iterable[str], order: Sequence[str]) -> list[str]:
    given = list(arms)
    return [*(arm for arm in order if arm in given), *(arm for arm in given if arm not in order)]


def _summary(table: ScoreTable, arm: str, resamples: Resamples) -> ArmSummary:
    rows, scores = table.rows[arm], table.arms[arm]
    return ArmSummary(
        arm=arm,
        members=len(scores),
        episodes=len(rows),
        score=resamples.estimate(_middle, scores),
        over_wait=resamples.estimate_of_means(paired_difference, scores, table.arms[WAIT]),
        test_accuracy=_mean(table, arm, lambda row: row.test_accuracy),
        parameters=_mean(table, arm, lambda row: row.parameters),
        training_flops=_mean(table, arm, lambda row: row.training_flops),
        wall_seconds=float(np.mean([row.wall_seconds for row in rows])),
        operations=float(np.mean([_operations(row) for row in rows])),
        condemned=sum(row.rolled_back is not None for row in rows),
    )


def _middle(scores: Floats) -> Floats:
    return interquartile_means(scores.reshape(*scores.shape[:-3], -1))


def _mean(table: ScoreTable, arm: str, value: Value) -> float | None:
    values = table.values(arm, value)
    return None if np.isnan(values).all() else float(np.nanmean(values))


def _operations(row: BenchRow) -> int:
    return row.decisions.count(";") + 1 if row.decisions else 0


def _comparisons(
    table: ScoreTable, treatments: Sequence[str], order: Sequence[str], resamples: Resamples
) -> tuple[Comparison, ...]:
    pairs = [
        (treatment, control)
        for treatment in treatments
        for control in _ordered(table.arms, order)
        if control != treatment and not (control in treatments and control < treatment)
    ]
    drawn = {
        pair: resamples.distribution(paired_difference, table.arms[pair[0]], table.arms[pair[1]])
        for pair in pairs
    }
    p_values = [two_sided_p(drawn[pair]) for pair in pairs]
    anew = Resamples(len(table.instances), len(table.seeds), new_instances=True)
    compared = []
    for pair, p_value, adjusted in zip(pairs, p_values, holm(p_values), strict=True):
        treatment, control = (table.arms[name] for name in pair)
        compared.append(
            Comparison(
                treatment=pair[0],
                control=pair[1],
                difference=interval(float(treatment.mean() - control.mean()), drawn[pair]),
                on_new_instances=anew.estimate_of_means(paired_difference, treatment, control),
                improvement=resamples.estimate_of_means(the_mean, wins(treatment, control)),
                p_value=p_value,
                p_holm=adjusted,
                detectable=_detectable(treatment.mean(axis=0) - control.mean(axis=0)),
            )
        )
    return tuple(compared)


def _detectable(difference: Floats) -> float | None:
    """difference (instance, seed)"""
    if difference.shape[1] < 2:
        return None
    return detectable_difference(within_deviation(difference), difference.size)


def _headroom(table: ScoreTable, resamples: Resamples) -> Headroom | None:
    if not {SBS, VBS} <= set(table.arms):
        return None
    wait, sbs, vbs = (table.arms[arm] for arm in (WAIT, SBS, VBS))
    return Headroom(
        sbs_over_wait=resamples.estimate_of_means(paired_difference, sbs, wait),
        vbs_over_wait=resamples.estimate_of_means(paired_difference, vbs, wait),
        gap=resamples.estimate_of_means(paired_difference, vbs, sbs),
    )


def _notes(
    table: ScoreTable, treatment: str, headroom: Headroom | None, resamples: Resamples
) -> TreatmentNotes:
    if headroom is None:
        return TreatmentNotes(treatment, None, None, 0)
    scores, wait, sbs, vbs = (table.arms[arm] for arm in (treatment, WAIT, SBS, VBS))
    hurt = [
        place
        for place, instance in enumerate(table.instances)
        if all(not row.decisions for row in table.rows[VBS] if row.instance == instance)
    ]
    harm = None
    if hurt:
        among = Resamples(len(hurt), len(table.seeds))
        harm = among.estimate_of_means(paired_difference, scores[:, hurt], wait[:, hurt])
    share = resamples.estimate_of_means(share_of_gap, scores, sbs, vbs) if headroom.open else None
    return TreatmentNotes(treatment, share, harm, len(hurt))
