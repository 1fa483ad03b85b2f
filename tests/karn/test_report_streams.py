"""A life on a stream as a picture: changes, bars of what was alive when, and the budget."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench_rows import ROW
from esper.benchmark import BenchResult, BenchRow, SeedLife
from esper.benchmark.bench import BenchRecord
from esper.benchmark.table import bench_table, score_table
from esper.karn.drawing import by_epoch
from esper.karn.report import life, report_html, typical_life

CASE = "stream:cap=1.0,plan=labels@2/noise30@2/shuffle@5"
CURVE = (0.1, 0.4, 0.5, 0.2, 0.4, 0.5, 0.3, 0.4, 0.5)
WAITED = replace(
    ROW,
    suite="stream",
    instance=CASE,
    epochs=8,
    validation_accuracies=CURVE,
    life_added=0.0,
    epoch_parameters=(0,) * 9,
    parameter_budget=1426,
)
PRUNED = SeedLife("blocks.0", "norm", 20, 0, 3, None)
FOSSIL = SeedLife("blocks.1", "mixer", 713, 2, None, 5)
RETIRED = SeedLife("blocks.0", "mixer", 800, 4, 7, 6)


def lived(
    seed: int = 0, score: float = 0.7, lives: tuple[SeedLife, ...] = (PRUNED, FOSSIL, RETIRED)
) -> BenchRow:
    added = (0, 20, 20, 733, 713, 1513, 1513, 1513, 713)
    return replace(
        WAITED,
        arm="learned",
        seed=seed,
        test_accuracy=score,
        lives=lives,
        life_added=900.0,
        epoch_parameters=added,
    )


def test_changes_are_read_by_epoch() -> None:
    assert by_epoch("shuffle80@16/noise5@16/alarm@40") == {16: "shuffle80, noise5", 40: "alarm"}
    assert by_epoch(None) == by_epoch("") == by_epoch("@4/x@/x@-1/x@1e3/" + "x@" + "9" * 5000) == {}


def test_a_life_has_bars_from_birth_to_end_and_fossils_of_their_own() -> None:
    figure = life(lived(), WAITED)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    spans = {
        (bar.name, slot, bar.marker.opacity): (start, start + long)
        for bar in bars
        for slot, start, long in zip(bar.y, bar.base, bar.x, strict=True)
    }
    assert spans == {
        ("norm", "blocks.0", 0.55): (0, 3),
        ("mixer", "blocks.1", 0.55): (2, 5),
        ("mixer", "blocks.1", 1.0): (5, 8),
        ("mixer", "blocks.0", 0.55): (4, 6),
        ("mixer", "blocks.0", 1.0): (6, 7),
    }
    assert any("gone after epoch 3" in text for bar in bars for text in bar.text)
    assert [trace.showlegend for trace in bars if trace.name == "mixer"] == [True, False]


def test_a_life_has_its_changes_and_its_budget() -> None:
    figure = life(lived(), WAITED)
    lines = {shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1}
    assert lines == {2.5, 5.5}
    words = [note.text for note in figure.layout.annotations]
    assert "labels, noise30" in words
    assert "shuffle100" not in words  # as it is written in the instance
    assert "shuffle" in words
    assert "budget 1,426" in words
    (added,) = (trace for trace in figure.data if trace.name == "added")
    assert list(added.y) == list(lived().epoch_parameters)
    curves = {
        trace.name: list(trace.y)
        for trace in figure.data
        if trace.type == "scatter" and trace.name != "added"
    }
    assert curves == {"wait": list(CURVE), "learned": list(CURVE)}


def test_the_median_life_in_which_something_grew_is_shown() -> None:
    waited = [replace(WAITED, seed=seed, test_accuracy=0.5) for seed in range(4)]
    grown = [lived(0, 0.9), lived(1, 0.6), lived(2, 0.7), lived(3, 0.1, ())]
    row = typical_life(score_table([*waited, *grown]), "learned")
    assert row is not None
    assert row.seed == 2
    idle = [lived(seed, lives=()) for seed in range(4)]
    assert typical_life(score_table([*waited, *idle]), "learned") is None


def test_the_page_shows_a_life_where_lives_count() -> None:
    rows = [replace(WAITED, seed=seed) for seed in range(2)] + [
        replace(lived(seed), decisions="germinate norm@blocks.0 t=0") for seed in range(2)
    ]
    record = BenchRecord("stream", (CASE,), 2, {"wait": "", "learned": ""}, "learned", ("learned",), ({},))
    page = report_html(BenchResult(Path(), None, record, tuple(rows), (bench_table(rows, ("learned",)),)))
    assert "A life that learned led" in page
    ends = [replace(row, life_added=None, lives=()) for row in rows]
    page = report_html(BenchResult(Path(), None, record, tuple(ends), (bench_table(ends, ("learned",)),)))
    assert "A life that" not in page


@pytest.mark.parametrize("budget", [None, 0])
def test_a_life_without_a_budget_is_drawn_too(budget: int | None) -> None:
    figure = life(replace(lived(), parameter_budget=budget), None)
    assert len(figure.data) == 6
