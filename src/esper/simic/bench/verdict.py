"""The verdict in words, computed: paired treatment-minus-control intervals on the test split, and nothing else."""

from collections.abc import Iterable

from esper.simic.bench.arms import BLIND, MATCHED, RULES, SBS, VBS, WAIT
from esper.simic.bench.comparison import BenchTable, Comparison, TreatmentNotes
from esper.simic.statistics import Estimate


def gate(table: BenchTable) -> str:
    """What the suite can show at all; said before anything else."""
    if table.headroom is None:
        return "Headroom: not measured; the arms sbs and vbs are not both in this table."
    gap = _points(table.headroom.gap)
    told = f"Headroom: the best schedule of each instance scores {gap} over the single best one"
    if table.headroom.open:
        return f"{told}, so there is something to decide."
    return f"{told}, within noise: this table cannot show that deciding by instance pays."


def verdict(table: BenchTable) -> list[str]:
    """A few sentences for each treatment."""
    return [sentence for notes in table.notes for sentence in _of_treatment(table, notes)]


def _of_treatment(table: BenchTable, notes: TreatmentNotes) -> Iterable[str]:
    name = notes.treatment
    compared = {each.control: each for each in table.comparisons if each.treatment == name}
    members = next(arm.members for arm in table.arms if arm.arm == name)
    trained = f" ({members} training seeds)" if members > 1 else ""
    where = f"{len(table.instances)} instances of {table.suite} with {table.seeds} hosts each"
    if WAIT in compared:
        yield f"{name}{trained} is {_against(compared[WAIT])} on {where}."
    if notes.share is not None:
        low, high = (f"{100 * each:.0f}" for each in (notes.share.low, notes.share.high))
        yield (
            f"It closes {100 * notes.share.value:.0f} % [{low}, {high}] of the gap between the single best schedule "
            "and the best of each instance."
        )
    groups = {
        "schedules": (SBS, VBS),
        "rules": RULES,
        "equal-size controls": (*MATCHED, BLIND),
        "other treatments": tuple(
            control for control in compared if control not in (WAIT, SBS, VBS, BLIND, *RULES, *MATCHED)
        ),
    }
    for title, controls in groups.items():
        told = [_against(compared[control]) for control in controls if control in compared]
        if told:
            yield f"Against {title} it is {'; '.join(told)}."
    if notes.where_growth_hurts is not None:
        kept = notes.where_growth_hurts
        word = {1: "better than", 0: "no different from", -1: "worse than"}[kept.sign]
        count = f"{notes.hurt_instances} instance{'s' if notes.hurt_instances > 1 else ''}"
        yield f"On the {count} where the best schedule is to wait it is {word} waiting, {_points(kept)}."


def _against(comparison: Comparison) -> str:
    words = {"better": "better than", "worse": "worse than", "no difference": "no different from"}
    return f"{words[comparison.finding]} {comparison.control}, {_points(comparison.difference)}"


def _points(estimate: Estimate) -> str:
    """In percentage points."""
    value, low, high = (100 * each for each in (estimate.value, estimate.low, estimate.high))
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}] points"
