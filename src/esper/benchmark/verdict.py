"""What a benchmark's table says, in sentences: whether there is anything to decide, and who is ahead of whom."""

from collections.abc import Iterable, Mapping

from esper.benchmark.arms import BLIND, MATCHED, RULES, SBS, SBS_HINDSIGHT, VBS, WAIT
from esper.benchmark.rivals import LISTED_PREFIX, RIVALS
from esper.benchmark.stream_rivals import STREAM_RIVALS
from esper.benchmark.table import BenchTable, Comparison, TreatmentNotes, best_rival
from esper.statistics import Estimate, least_seeds


def gate(table: BenchTable) -> str:
    """A sentence on what the table can show at all; it comes before anything else where that was measured."""
    if table.headroom is None:
        return (
            "Not measured: the headroom, which is what deciding for each instance could win. "
            "It takes the arms sbs and vbs, and they are not both in this table."
        )
    headroom = table.headroom
    which = "some schedules" if headroom.schedules is None else f"{headroom.schedules} schedules"
    text = (
        f"Headroom: the best of {which} for each instance, chosen on other hosts, scores {_points(headroom.gap)} "
        f"over the single best one{_anew(headroom.gap_anew, ',')}"
    )
    if headroom.over_hindsight is not None:
        text += f", and {_points(headroom.over_hindsight)} over the one that is best in hindsight"
    if not headroom.gap.bounded:
        return f"{text} on {_where(table)}: too few to say whether deciding by instance pays."
    if headroom.open:
        return f"{text}: there is something to decide."
    return f"{text}: within noise, this table cannot show that deciding by instance pays."


def verdict(table: BenchTable) -> list[str]:
    """A few sentences for each treatment."""
    return [sentence for notes in table.notes for sentence in _of_treatment(table, notes)]


def _of_treatment(table: BenchTable, notes: TreatmentNotes) -> Iterable[str]:
    name = notes.treatment
    compared = {each.control: each for each in table.comparisons if each.treatment == name}
    members = next(arm.members for arm in table.arms if arm.arm == name)
    trained = f" ({members} training seeds)" if members > 1 else ""
    if table.too_few:
        yield from _on_too_few(table, name, compared)
        if notes.training_runs is not None:
            yield _training_cost(notes)
        return
    if WAIT in compared:
        anew = _anew(compared[WAIT].on_new_instances)
        yield f"{name}{trained} is {_against(compared[WAIT])} on {_where(table)}{anew}."
        if not anew:
            yield f"Of other instances than {'these' if len(table.instances) > 1 else 'this'} that says nothing."
    rival = best_rival(table, name)
    if rival is not None:
        yield (
            f"Of what costs no more training, {rival.control} is best: {name} is {_against(rival)}"
            f"{_anew(rival.on_new_instances)}."
        )
    if notes.training_runs is not None:
        yield _training_cost(notes)
    if notes.share is not None and notes.share_anew is not None:
        these, anew = (
            f"[{100 * each.low:.0f}, {100 * each.high:.0f}]" for each in (notes.share, notes.share_anew)
        )
        drawn_anew = f"; with instances drawn anew {anew}" if notes.share_anew.bounded else ""
        yield (
            f"It closes {100 * notes.share.value:.0f} % {these} of the gap between the single best schedule and the "
            f"best of each instance{drawn_anew}."
        )
    groups = {
        "schedules": (SBS, SBS_HINDSIGHT, VBS),
        "rules": RULES,
        "what a user would try first": RIVALS,
        "rivals on streams": STREAM_RIVALS,
        "equal-size controls": (*MATCHED, BLIND),
    }
    grouped = {WAIT, *(control for controls in groups.values() for control in controls)}
    others = (control for control in compared if not control.startswith(LISTED_PREFIX))
    groups["other treatments"] = tuple(control for control in others if control not in grouped)
    for title, controls in groups.items():
        found = [_against(compared[control]) for control in controls if control in compared]
        if found:
            yield f"Against {title} it is {'; '.join(found)}."
    if notes.where_growth_hurts is not None:
        kept = notes.where_growth_hurts
        word = {1: "better than", 0: "no different from", -1: "worse than"}[kept.sign]
        count = counted(notes.hurt_instances, "instance")
        if kept.bounded:
            yield f"On the {count} where the best schedule is to wait it is {word} waiting, {_points(kept)}."
        else:
            yield f"On the {count} where the best schedule is to wait it has {_points(kept)} over it: too few to say."


def _on_too_few(table: BenchTable, name: str, compared: Mapping[str, Comparison]) -> Iterable[str]:
    """What was measured; from so few hosts nothing follows."""
    if WAIT in compared:
        least = least_seeds(len(table.instances))
        yield (
            f"{name} over wait: {_points(compared[WAIT].difference)} on {_where(table)}: too few to say more, which "
            f"takes {least} hosts{' of each' if len(table.instances) > 1 else ''}."
        )
    others = [f"{arm} {_points(each.difference)}" for arm, each in compared.items() if arm != WAIT]
    if others:
        yield f"{name} over the others there: {', '.join(others)}."


def counted(count: int, noun: str) -> str:
    """1 host, 2 hosts."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _where(table: BenchTable) -> str:
    each = " each" if len(table.instances) > 1 else ""
    instances = counted(len(table.instances), "instance")
    return f"{instances} of {table.suite} with {counted(table.seeds, 'host')}{each}"


def _training_cost(notes: TreatmentNotes) -> str:
    """What training took, and after how many hosts running each of them several times would have cost as much."""
    text = f"Training it took as much as {notes.training_runs:,.0f} runs of these hosts"
    hosts = [f"{count:,.0f} hosts of {arm}" for arm, count in notes.paid_back.items()]
    return f"{text}, which is what is spared by {', '.join(hosts)}." if hosts else f"{text}."


def _against(comparison: Comparison) -> str:
    """In words; a difference that is lost among so many comparisons is said to be so."""
    words = {"better": "better than", "worse": "worse than", "no difference": "no different from"}
    points = _points(comparison.difference)
    if comparison.finding == "unclear":
        side = "above" if comparison.difference.value > 0 else "below"
        return f"{side} {comparison.control}, {points}, which is not clear among so many comparisons"
    return f"{words[comparison.finding]} {comparison.control}, {points}"


def _points(estimate: Estimate) -> str:
    """In percentage points."""
    bounds = f" {bounds_in_points(estimate)}" if estimate.bounded else ""
    return f"{100 * estimate.value:+.2f}{bounds} points"


def _anew(estimate: Estimate, separator: str = ";") -> str:
    """The interval for other instances; nothing where these are too few to say anything of others."""
    return f"{separator} with instances drawn anew {bounds_in_points(estimate)}" if estimate.bounded else ""


def bounds_in_points(estimate: Estimate) -> str:
    """The interval in percentage points; empty where there is none."""
    if not estimate.bounded:
        return ""
    return f"[{100 * estimate.low:+.2f}, {100 * estimate.high:+.2f}]"
