"""Tables from rows alone: a planted copy, a planted point, the gate, and the sentence they come to."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bench_rows import rows_of
from esper.benchmark import BenchRow, BenchTable, RowsError, gate, verdict
from esper.benchmark.table import Comparison, bench_table, best_rival, score_table
from esper.cli.bench import tables_text


def flat(level: float, noise: float = 0.0) -> Callable[[np.random.Generator, int, int], float]:
    return lambda rng, _instance, _seed: level + noise * rng.standard_normal()


def made(
    instances: int = 5, seeds: int = 8, /, **arms: Callable[[np.random.Generator, int, int], float]
) -> list[BenchRow]:
    return rows_of(arms, instances=instances, seeds=seeds)


def between(table: BenchTable, treatment: str, control: str) -> Comparison:
    return next(c for c in table.comparisons if (c.treatment, c.control) == (treatment, control))


def test_a_copy_of_static_is_no_different_from_it() -> None:
    rows = made(wait=flat(0.5), static=flat(0.55, 0.03))
    rows += [replace(row, arm="fake") for row in rows if row.arm == "static"]
    table = bench_table(rows, ["fake"])
    found = between(table, "fake", "static")
    assert (found.difference.value, found.difference.low, found.difference.high) == (0.0, 0.0, 0.0)
    assert (found.p_value, found.improvement.value, found.finding) == (1.0, 0.5, "no difference")
    assert between(table, "fake", "wait").finding == "better"
    assert "no different from static, +0.00 [+0.00, +0.00] points" in " ".join(verdict(table))


def test_a_planted_point_is_found() -> None:
    rows = made(6, wait=flat(0.5), static=flat(0.55, 0.005), learned=flat(0.56, 0.005))
    table = bench_table(rows, ["learned"])
    found = between(table, "learned", "static")
    assert found.difference.value == pytest.approx(0.01, abs=0.004)
    assert found.finding == "better"
    assert found.p_holm < 0.05
    assert found.detectable is not None
    assert 0.002 < found.detectable < 0.006
    assert found.on_new_instances.high - found.on_new_instances.low > 0.0
    worse = between(bench_table(rows, ["static"]), "static", "learned")
    assert worse.finding == "worse"
    assert worse.difference.value == -found.difference.value


def test_findings_are_adjusted_for_the_number_of_comparisons() -> None:
    """Nineteen copies of waiting, a little noisy: hardly one of them may be found to be anything."""
    noise = {f"arm_{number}": flat(0.5, 0.02) for number in range(19)}
    table = bench_table(made(wait=flat(0.5, 0.02), **noise), ["wait"])
    assert sum(each.difference.sign != 0 for each in table.comparisons) >= 1
    assert {each.finding for each in table.comparisons} == {"no difference", "unclear"}
    assert all((each.finding == "unclear") == (each.difference.sign != 0) for each in table.comparisons)
    told = " ".join(verdict(table))
    lost = next(each for each in table.comparisons if each.finding == "unclear")
    side = "above" if lost.difference.value > 0 else "below"
    assert f"{side} {lost.control}, {100 * lost.difference.value:+.2f}" in told
    assert told.count("which is not clear among so many comparisons") == sum(
        each.finding == "unclear" for each in table.comparisons
    )


def test_a_plain_difference_is_found_among_more_than_a_hundred_comparisons() -> None:
    ours = {f"mine_{number}": flat(0.6 + 0.01 * number, 0.001) for number in range(4)}
    others = {f"rule_{number}": flat(0.5 - 0.01 * number, 0.001) for number in range(27)}
    table = bench_table(made(6, 4, wait=flat(0.55, 0.001), **ours, **others), list(ours))
    assert len(table.comparisons) == 118
    assert {each.finding for each in table.comparisons} == {"better", "worse"}


def test_the_gate_and_the_share_of_the_gap() -> None:
    def each(rng: np.random.Generator, instance: int, seed: int) -> float:
        del rng, seed
        return 0.55 if instance % 2 else 0.65

    rows = made(wait=flat(0.5), sbs=flat(0.55), vbs=each, learned=flat(0.57))
    table = bench_table(rows, ["learned"])
    assert table.headroom is not None
    assert table.headroom.open
    assert table.headroom.gap.value == pytest.approx(0.06)
    assert table.notes[0].share is not None
    assert table.notes[0].share.value == pytest.approx(1 / 3)
    assert (
        "the best of some schedules for each instance, chosen on other hosts, scores +6.00 [+6.00, +6.00]"
        in gate(table)
    )
    assert gate(table).endswith("there is something to decide.")
    assert "It closes 33 % [33, 33] of the gap" in " ".join(verdict(table))
    assert "the best of 12 schedules" in gate(bench_table(rows, ["learned"], schedules=12))


def test_every_number_has_an_interval_for_new_instances_beside_it() -> None:
    """Instances differ and hosts do not: these instances are known exactly, others like them are not."""

    def by_instance(rng: np.random.Generator, instance: int, seed: int) -> float:
        del rng, seed
        return 0.5 + 0.02 * (instance - 0.5)

    rows = made(6, wait=flat(0.5), sbs=flat(0.48), vbs=by_instance, learned=by_instance)
    table = bench_table(rows, ["learned"])
    learned = next(arm for arm in table.arms if arm.arm == "learned")
    assert learned.over_wait.high - learned.over_wait.low == pytest.approx(0.0, abs=1e-9)
    assert learned.over_wait_anew.low < 0.03 < learned.over_wait.value < 0.05 < learned.over_wait_anew.high
    assert table.headroom is not None
    assert (table.headroom.gap.low, table.headroom.gap.high) == pytest.approx((0.06, 0.06))
    assert table.headroom.gap_anew.low < 0.05 < 0.07 < table.headroom.gap_anew.high
    assert table.notes[0].share_anew is not None
    anew = learned.over_wait_anew
    said = f"; with instances drawn anew [{100 * anew.low:+.2f}, {100 * anew.high:+.2f}]."
    assert verdict(table)[0].endswith(said)


def test_one_host_of_each_instance_is_not_taken_for_certainty() -> None:
    rows = made(6, 1, wait=flat(0.5), learned=flat(0.5, 0.05))
    table = bench_table(rows, ["learned"])
    found = between(table, "learned", "wait")
    assert found.difference.high - found.difference.low > 0.01
    assert found.difference.low == pytest.approx(found.on_new_instances.low)
    assert found.detectable is None


@pytest.mark.parametrize(
    ("instances", "seeds", "where", "takes"),
    [
        (1, 1, "1 instance of cpu with 1 host", "6 hosts"),
        (1, 5, "1 instance of cpu with 5 hosts", "6 hosts"),
        (2, 1, "2 instances of cpu with 1 host each", "4 hosts of each"),
        (2, 3, "2 instances of cpu with 3 hosts each", "4 hosts of each"),
        (5, 1, "5 instances of cpu with 1 host each", "2 hosts of each"),
    ],
)
def test_a_few_hosts_have_no_interval_and_nothing_is_shown(
    instances: int, seeds: int, where: str, takes: str
) -> None:
    arms = {
        "wait": flat(0.5),
        "static": flat(0.75),
        "sbs": flat(0.5),
        "vbs": flat(0.75),
        "learned": flat(0.625),
    }
    rows = made(instances, seeds, **arms)
    rows = [replace(row, decisions="mine") if row.arm == "vbs" else row for row in rows]
    table = bench_table(rows, ["learned"])
    assert {each.finding for each in table.comparisons} == {"too few"}
    assert not any(arm.score.bounded or arm.over_wait.bounded for arm in table.arms)
    first, others = verdict(table)
    assert first == f"learned over wait: +12.50 points on {where}: too few to say more, which takes {takes}."
    assert others == (
        "learned over the others there: static -12.50 points, sbs +12.50 points, vbs -12.50 points."
    )
    assert gate(table).endswith(
        f"+25.00 points over the single best one on {where}: too few to say whether deciding by instance pays."
    )
    assert "[" not in tables_text([table])
    assert "better" not in tables_text([table])
    enough = bench_table(made(instances, int(takes[0]), **arms), ["learned"])
    assert {each.finding for each in enough.comparisons} == {"better", "worse"}


def test_what_is_trained_is_a_column_where_hosts_are_frozen() -> None:
    rows = made(2, 4, wait=flat(0.5), learned=flat(0.625))
    whole = [replace(row, trained_parameters=row.parameters) for row in rows]
    for known in (rows, whole):  # older rows do not say, and others have nothing frozen
        assert "trained" not in tables_text([bench_table(known, ["learned"])])
    frozen = [replace(row, trained_parameters=170 if row.arm == "wait" else 613) for row in rows]
    text = tables_text([bench_table(frozen, ["learned"])])
    lines = text[text.index("\narm ") :].split("\n")[1:4]
    shown = {
        line.split()[0]: line[: lines[0].index("trained") + len("trained")].split()[-1] for line in lines[1:]
    }
    assert shown == {"wait": "170", "learned": "613"}


def test_a_few_instances_say_nothing_of_others() -> None:
    rows = made(1, wait=flat(0.5), learned=flat(0.6, 0.02))
    table = bench_table(rows, ["learned"])
    found = between(table, "learned", "wait")
    assert (found.finding, found.on_new_instances.bounded) == ("better", False)
    (told,) = [line for line in verdict(table) if "than wait" in line and "instance" in line]
    assert told.endswith("points on 1 instance of cpu with 8 hosts.")
    five, six = (
        bench_table(made(count, wait=flat(0.5), learned=flat(0.6, 0.02)), ["learned"]) for count in (5, 6)
    )
    assert [between(each, "learned", "wait").on_new_instances.bounded for each in (five, six)] == [
        False,
        True,
    ]
    assert "drawn anew" not in " ".join(verdict(five))


def test_the_single_best_in_hindsight_is_shown_and_is_nobodys_rival() -> None:
    arms = {"wait": flat(0.5), "sbs": flat(0.45), "sbs_hindsight": flat(0.58), "vbs": flat(0.6)}
    rows = made(**arms, learned=flat(0.55), look_once=flat(0.52))
    table = bench_table(rows, ["learned"])
    assert table.headroom is not None
    assert table.headroom.over_hindsight is not None
    assert table.headroom.over_hindsight.value == pytest.approx(0.02)
    assert "+2.00 [+2.00, +2.00] points over the one that is best in hindsight" in gate(table)
    rival = best_rival(table, "learned")
    assert rival is not None
    assert rival.control == "look_once"
    without = bench_table([row for row in rows if row.arm != "sbs_hindsight"], ["learned"])
    assert without.headroom is not None
    assert without.headroom.over_hindsight is None


def test_without_headroom_nothing_is_claimed_of_it() -> None:
    table = bench_table(made(wait=flat(0.5), sbs=flat(0.55, 0.03), vbs=flat(0.55, 0.03), a=flat(0.6)), ["a"])
    assert "cannot show that deciding by instance pays" in gate(table)
    assert table.notes[0].share is None
    assert "It closes" not in " ".join(verdict(table))
    assert "Not measured: the headroom" in gate(bench_table(made(wait=flat(0.5), a=flat(0.6)), ["a"]))


def test_where_growth_hurts_is_where_the_best_schedule_waits() -> None:
    rows = made(wait=flat(0.5), sbs=flat(0.4), vbs=flat(0.5), learned=flat(0.49))
    hurt = {f"mnist1d:size={1000 + instance}" for instance in (0, 3)}
    rows = [
        replace(row, decisions="" if row.instance in hurt or not row.seed else "germinate mixer@1 t=0")
        if row.arm == "vbs"
        else row
        for row in rows
    ]
    (notes,) = bench_table(rows, ["learned"]).notes
    assert notes.hurt_instances == 2
    assert notes.where_growth_hurts is not None
    assert notes.where_growth_hurts.value == pytest.approx(-0.01)
    told = verdict(bench_table(rows, ["learned"]))[-1]
    assert told == (
        "On the 2 instances where the best schedule is to wait it is worse than waiting, -1.00 [-1.00, -1.00] points."
    )
    told = verdict(bench_table([row for row in rows if row.seed < 3], ["learned"]))[-1]
    assert told == (
        "On the 2 instances where the best schedule is to wait it has -1.00 points over it: too few to say."
    )


def test_several_training_seeds_widen_the_interval() -> None:
    spread = {0: -0.05, 1: 0.0, 2: 0.05}
    rows = rows_of({"wait": lambda *_: 0.5, "learned": lambda *_: 0.55}, members={"learned": 3})
    rows = [
        replace(row, test_accuracy=row.test_accuracy + spread[row.member])
        if row.arm == "learned" and row.test_accuracy is not None
        else row
        for row in rows
    ]
    table = bench_table(rows, ["learned"])
    found = between(table, "learned", "wait").difference
    assert found.value == pytest.approx(0.05)
    assert found.low == pytest.approx(0.0)
    assert found.high == pytest.approx(0.1)
    summary = next(arm for arm in table.arms if arm.arm == "learned")
    assert (summary.members, summary.episodes) == (3, 120)
    assert "learned (3 training seeds) is" in verdict(table)[0]


def test_only_instances_that_all_have_played_count() -> None:
    rows = made(wait=flat(0.5), a=flat(0.6))
    table = bench_table([row for row in rows if row.key != ("a", 0, "mnist1d:size=1002", 3)], ["a"])
    assert table.left_out == ("mnist1d:size=1002",)
    assert len(table.instances) == 4
    with pytest.raises(RowsError, match="no instance was played by every arm"):
        bench_table([row for row in rows if row.arm == "wait" or row.seed], ["a"])
    with pytest.raises(RowsError, match="no rows"):
        score_table([])
    part = bench_table(
        sorted(rows, key=lambda row: row.arm), ["a"], instances=("mnist1d:size=1001",), subset="one"
    )
    assert (part.subset, part.instances) == ("one", ("mnist1d:size=1001",))
    assert [arm.arm for arm in part.arms] == ["a", "wait"]


def test_a_condemned_host_is_worth_nothing() -> None:
    rows = made(wait=flat(0.5), a=flat(0.5))
    rows = [
        replace(row, rolled_back="diverged", test_accuracy=None) if row.arm == "a" and not row.seed else row
        for row in rows
    ]
    table = bench_table(rows, ["a"])
    summary = next(arm for arm in table.arms if arm.arm == "a")
    assert summary.condemned == 5
    assert between(table, "a", "wait").difference.value == pytest.approx(-0.5 / 8, rel=0.2)
