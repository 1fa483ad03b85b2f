"""The page of a benchmark: made from rows alone, self-contained, with every picture that the rows allow."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench_rows import GROWN, ROW, rows_of
from esper.benchmark import BenchResult, BenchRow
from esper.benchmark.bench import BenchRecord
from esper.benchmark.table import bench_table, score_table
from esper.karn.report import network_of, report_html, write_report
from esper.karn.report_figures import (
    Dependence,
    _distinct,
    about_arm,
    big,
    changes_of,
    correlation,
    decisions,
    dependence,
    gain_band,
    pareto_front,
    short_instance,
    slots_seen,
    timeline,
    typical_episode,
)
from esper.leyline import LifecycleOp

CHROMIUM = shutil.which("chromium")


def bench_rows(*, instances: int = 3, seeds: int = 4) -> list[BenchRow]:
    rows = rows_of(
        {
            name: lambda rng, *_: 0.5 + 0.02 * rng.standard_normal()
            for name in ("wait", "sbs", "vbs", "learned")
        },
        instances=instances,
        seeds=seeds,
        members={"learned": 2},
    )
    return [
        replace(
            row,
            decisions=GROWN.decisions,
            added_parameters=713,
            seeds=(replace(GROWN.seeds[0], contribution=0.1 + 0.01 * row.seed),),
            validation_accuracies=(0.125, 0.5, 0.8125 + 0.02 * row.seed),
        )
        if row.arm == "learned"
        else row
        for row in rows
    ]


def result_of(rows: list[BenchRow], treatments: tuple[str, ...] = ("learned",)) -> BenchResult:
    arms = dict.fromkeys(dict.fromkeys(row.arm for row in rows), "<what it is>")
    record = BenchRecord(
        "cpu",
        tuple({row.instance: 0 for row in rows}),
        4,
        arms,
        "learned",
        treatments,
        ({"esper": "1"},),
    )
    return BenchResult(Path(), None, record, tuple(rows), (bench_table(rows, treatments),))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.html"
    write_report(result_of(bench_rows()), path)
    page = path.read_text("utf-8")
    own = re.sub(
        r"<script>/\*\*.*?</script>", "", page, count=1, flags=re.S
    )  # plotly's own code has links in it
    assert "http://" not in own.replace("http://www.w3.org", "")
    assert not re.search(r'(src|href)="', own)
    assert own.count('class="plotly-graph-div"') == 9
    for title in (
        "The table",
        "learned against each control",
        "What learned does",
        "A network that learned grew",
    ):
        assert f"<h2>{title}</h2>" in page
    assert "learned (2 training seeds) is" in page
    assert "Headroom:" in page
    assert "&lt;what it is&gt;" in page  # texts are escaped


def test_a_headroom_that_was_not_measured_comes_last_in_the_verdict() -> None:
    rows = [row for row in bench_rows() if row.arm in ("wait", "learned")]
    (block,) = re.findall(r'<section class="verdict">(.*?)</section>', report_html(result_of(rows)), re.S)
    assert block.startswith("<p>learned (2 training seeds) is")
    assert block.endswith("not both in this table.</p>")
    measured = report_html(result_of(bench_rows()))
    assert re.search(r'<section class="verdict"><p class="gate \w+">Headroom: ', measured)


@pytest.mark.slow  # a browser starts
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")
def test_no_table_is_cut_at_1280_pixels(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    rows = [
        replace(row, arm="successive_halving") if row.arm == "sbs" else row
        for row in bench_rows()
        if row.arm != "vbs"
    ]
    write_report(result_of(rows), tmp_path / "report.html")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto((tmp_path / "report.html").as_uri())
        beyond = (
            "[...document.querySelectorAll('.scroll:has(table)')].map(e => e.scrollWidth - e.clientWidth)"
        )
        found = page.evaluate(beyond)
        browser.close()
    assert found == [0, 0]


def test_a_treatment_that_waits_and_a_toy_have_their_page_too() -> None:
    toy = [
        replace(row, test_accuracy=None, suite="toy", instance=f"toy:draw={index % 3}", seed=index // 3)
        for index, row in enumerate([ROW] * 6)
    ]
    rows = toy + [replace(row, arm="plateau", utility=0.9) for row in toy]
    page = report_html(result_of(rows, ("plateau",)))
    assert "It always waits." in page
    assert "What utility costs" not in page
    assert "What a host depends on" not in page


def test_the_true_gain_is_paired_and_before_settling() -> None:
    table = score_table(bench_rows())
    points = dependence(table)
    assert len(points) == 2 * 3 * 4
    assert {(round(p.leave_one_out, 3), round(p.true_gain, 3)) for p in points} == {
        (0.1, 0.0),
        (0.11, 0.02),
        (0.12, 0.04),
        (0.13, 0.06),
    }
    assert correlation(points) == pytest.approx(1.0)
    assert correlation(points[:2]) is None
    assert correlation([Dependence("a", "b", "c", 0.1, 0.2)] * 5) is None
    band = gain_band(table, "learned")
    assert [each.value for each in band] == pytest.approx([0.0, 0.0, 0.03])
    assert band[2].low < 0.03 < band[2].high


def test_decisions_are_read_from_schedules() -> None:
    marks = decisions([GROWN, ROW])
    assert [(clause.epoch, clause.action.op) for _, clause in marks] == [
        (0, LifecycleOp.GERMINATE),
        (1, LifecycleOp.ADVANCE),
        (5, LifecycleOp.FOSSILIZE),
    ]
    assert slots_seen([GROWN, ROW]) == ["blocks.1"]


def test_the_changes_of_a_stream_are_marked_where_they_were_met() -> None:
    plan = "labels@1/shuffle0@2/samples700@2/alarm@9"
    case = f"stream:plan={plan},shuffled=1.0"
    assert changes_of(case) == {1: "labels", 2: "shuffle0, samples700", 9: "alarm"}
    assert changes_of("toy:x=1") == changes_of("mnist1d:size=500") == {}
    assert list(changes_of("stream")) == [16, 30, 40, 48, 60, 70]
    rows = bench_rows()
    last = rows[-1].instance
    rows = [replace(row, epochs=5, instance=case if row.instance == last else row.instance) for row in rows]
    table = score_table(rows)
    figure = timeline(table, "learned")
    assert figure is not None
    (marks,) = (trace for trace in figure.data if trace.name == "the data change")
    lane = table.instances.index(case)
    assert list(zip(marks.x, marks.y, strict=True)) == [
        (1, lane),
        (2, lane),
    ]  # the life ended before the alarm
    assert marks.text[1].startswith("shuffle0, samples700<br>stream, changes at 1, 2, 9")
    without = timeline(score_table(bench_rows()), "learned")
    assert without is not None
    assert "the data change" not in [trace.name for trace in without.data]


def test_the_picture_is_of_the_median_episode() -> None:
    table = score_table(bench_rows())
    row = typical_episode(table, "learned")
    assert row is not None
    waited = {(each.instance, each.seed): each.score or 0.0 for each in table.rows["wait"]}
    gains = sorted((each.score or 0.0) - waited[each.instance, each.seed] for each in table.rows["learned"])
    assert (row.score or 0.0) - waited[row.instance, row.seed] == gains[len(gains) // 2]
    assert typical_episode(table, "wait") is None


def test_a_front_has_what_nothing_cheaper_beats() -> None:
    assert pareto_front([(3, 5.0), (1, 1.0), (2, 4.0), (2, 3.0), (4, 5.0)]) == [1, 2, 0]
    assert pareto_front([]) == []


def test_a_network_is_drawn_with_its_seeds() -> None:
    drawing = network_of(GROWN, ["blocks.0", "blocks.1"])
    assert "empty" in drawing
    assert "mixer" in drawing
    assert "+25.0 points" in drawing
    assert "713 parameters" in drawing
    unmeasured = replace(GROWN, seeds=(replace(GROWN.seeds[0], contribution=None),))
    assert "not measured" in network_of(unmeasured, ["blocks.1"])


def test_names_for_people() -> None:
    assert (
        short_instance("mnist1d:classes=8,data=1,noise=0.009,permutation=10,shuffled=0.75,size=3263")
        == "3,263 samples, 75 % shuffled, 1 % noise, 8 classes"
    )
    assert short_instance("shift:change=7,kind=noise,noise=0.2") == "noise at 7, 20 % noise"
    assert short_instance("digits") == "digits"
    assert short_instance("mnist1d") == "mnist1d"
    assert short_instance("toy:draw=1") == "toy:draw=1"
    assert [big(value) for value in (1426.0, 2.5e6, 3.21e9, 4e12)] == ["1,426", "2.50 M", "3.21 G", "4.00 T"]
    assert about_arm("wait").startswith("never grows")
    assert about_arm("mine") == "a trained controller, greedy"
    assert _distinct(["a", "b", "a"]) == ["a", "b", "a (2)"]
