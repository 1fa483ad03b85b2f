"""What the pictures show, as plain arrays: made from rows, and tested without drawing anything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.leyline import LifecycleOp
from esper.simic.bench import BenchRow
from esper.simic.bench.arms import WAIT
from esper.simic.bench.scores import ScoreTable
from esper.simic.statistics import Resamples, paired_difference
from esper.simic.statistics.summaries import Floats
from esper.tamiyo.rules import Schedule


@dataclass(frozen=True, slots=True)
class Band:
    """A curve with its 95 % interval, epoch by epoch."""

    middle: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Dependence:
    """One seed: how far the host depends on it at the end, and what it gained."""

    arm: str
    instance: str
    label: str
    leave_one_out: float
    true_gain: float


@dataclass(frozen=True, slots=True)
class Mark:
    """One decision of one episode."""

    instance: str
    seed: int
    epoch: int
    op: LifecycleOp
    label: str


def accuracy_curve(table: ScoreTable, arm: str) -> Floats:
    """(member, instance, seed, epoch) of validation; an episode that ended early keeps its last value."""
    rows = table.rows[arm]
    epochs = max(len(row.validation_accuracies) for row in rows)
    curves = [
        table.values(arm, lambda row, epoch=epoch: _at(row, epoch))  # type: ignore[misc]
        for epoch in range(epochs)
    ]
    return np.stack(curves, axis=-1)


def gain_band(table: ScoreTable, arm: str, *, draws: int = 400) -> Band:
    """Over waiting, on the same hosts."""
    ours, waited = accuracy_curve(table, arm), accuracy_curve(table, WAIT)
    resamples = Resamples(len(table.instances), len(table.seeds), draws=draws)
    estimates = [
        resamples.estimate_of_means(paired_difference, ours[..., epoch], waited[..., epoch])
        for epoch in range(min(ours.shape[-1], waited.shape[-1]))
    ]
    values, lows, highs = zip(*((each.value, each.low, each.high) for each in estimates), strict=True)
    return Band(np.array(values), np.array(lows), np.array(highs))


def dependence(table: ScoreTable) -> list[Dependence]:
    """Of every episode that ended with exactly one seed: before settling, on validation, paired with waiting."""
    waited = {(row.instance, row.seed): _last(row) for row in table.rows[WAIT]}
    found = []
    for arm, rows in table.rows.items():
        for row in rows:
            control, ours = waited[row.instance, row.seed], _last(row)
            if len(row.seeds) != 1 or row.seeds[0].contribution is None or control is None or ours is None:
                continue
            label = f"{row.seeds[0].blueprint}@{row.seeds[0].slot}"
            found.append(Dependence(arm, row.instance, label, row.seeds[0].contribution, ours - control))
    return found


def correlation(points: Sequence[Dependence]) -> float | None:
    """None of too few, or where either does not vary."""
    if len(points) < 3:
        return None
    x, y = np.array([(each.leave_one_out, each.true_gain) for each in points]).T
    return None if not x.std() or not y.std() else float(np.corrcoef(x, y)[0, 1])


def decisions(rows: Sequence[BenchRow]) -> list[Mark]:
    """Everything but waiting."""
    return [
        Mark(row.instance, row.seed, clause.epoch, clause.action.op, str(clause))
        for row in rows
        for clause in Schedule.parse(row.decisions).clauses
    ]


def typical_episode(table: ScoreTable, arm: str) -> BenchRow | None:
    """Of the episodes that kept something, the one with the median gain: a picture, not a boast."""
    waited = {(row.instance, row.seed): row.score or 0.0 for row in table.rows[WAIT]}
    grown = [row for row in table.rows[arm] if row.kept and row.score is not None]
    ordered = sorted(grown, key=lambda row: (row.score or 0.0) - waited[row.instance, row.seed])
    return ordered[len(ordered) // 2] if ordered else None


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Of (cost, worth): those that nothing cheaper or as cheap is better than, by cost."""
    order = sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1]))
    front: list[int] = []
    for place in order:
        if not front or points[place][1] > points[front[-1]][1]:
            front.append(place)
    return front


def slots_seen(rows: Sequence[BenchRow]) -> list[str]:
    """Slots that anybody has used."""
    named = {seed.slot for row in rows for seed in row.seeds}
    named |= {str(clause.action.slot) for row in rows for clause in Schedule.parse(row.decisions).clauses}
    return sorted(named)


def _at(row: BenchRow, epoch: int) -> float | None:
    curve = row.validation_accuracies
    return curve[min(epoch, len(curve) - 1)]


def _last(row: BenchRow) -> float | None:
    return None if row.rolled_back is not None else row.validation_accuracies[-1]
