"""Outcomes of schedules: chosen on validation of other hosts, kept small, and a benchmark of their own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench_rows import GROWN, ROW
from esper.benchmark import RowsError
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown, shipped_outcomes
from make_outcomes import outcome_of, schedule_grid
from tabular import TabularBench

A, B = grown("mixer", 1, 0), grown("norm", 0, 5)
WORTH = {
    "x": {WAITING: 0.5, A: 0.7, B: 0.6},
    "y": {WAITING: 0.5, A: 0.3, B: 0.6},
    "z": {WAITING: 0.5, A: 0.4, B: 0.4},
}


def outcome(
    case: str, schedule: str, seed: int, *, held_out: bool, validation: float, test: float
) -> Outcome:
    row = replace(ROW, instance=case, seed=seed, validation_accuracy=validation, test_accuracy=test)
    return outcome_of(row, held_out=held_out, schedule=schedule)


def table(*, seeds: int = 3) -> Outcomes:
    """On drawn cases B is best on average, and each held-out case has a best one of its own."""
    rows = [
        outcome(case, schedule, 500 + seed, held_out=held_out, validation=worth, test=worth - 0.1)
        for held_out in (False, True)
        for case, worths in WORTH.items()
        for schedule, worth in worths.items()
        for seed in range(seeds if held_out else 1)
    ]
    return Outcomes(rows)


def test_a_grid_has_every_kind_place_and_time() -> None:
    grid = schedule_grid(("norm", "mixer"), (0, 1, 2), (0, 5), paired=("mixer",))
    assert grid[0] == WAITING
    assert len(grid) == len(set(grid)) == 1 + 2 * 3 * 2 + 3 * 2
    assert grown("mixer", 2, 5) == "germinate mixer@2 t=5; advance 2 t=6"
    assert grown("mixer", 2, 5) in grid
    assert "germinate mixer@0 t=0; advance 0 t=1; germinate mixer@2 t=0; advance 2 t=1" in grid
    assert "germinate mixer@0 t=10; advance 0 t=11; germinate mixer@2 t=10; advance 2 t=11" in grid


def test_schedules_are_chosen_on_validation() -> None:
    outcomes = table()
    drawn = outcomes.part(held_out=False)
    assert drawn.single_best() == B
    assert outcomes.part(held_out=True).best_of_each() == {"x": A, "y": B, "z": WAITING}
    misleading = Outcomes([replace(row, test_accuracy=1.0 - row.utility) for row in drawn.rows])
    assert misleading.single_best() == B


def test_a_portfolio_covers_the_cases() -> None:
    drawn = table().part(held_out=False)
    assert drawn.portfolio(2) == (WAITING, B)
    assert drawn.portfolio(3) == (WAITING, B, A)
    assert drawn.portfolio(99) == (WAITING, B, A)


def test_rent_is_paid_and_a_condemned_host_is_worth_nothing() -> None:
    grown_row = outcome_of(GROWN, held_out=True, schedule=A)
    assert grown_row.utility == pytest.approx(0.8125 - 0.01 * 713 / 1426)
    assert grown_row.score == pytest.approx(0.75 - 0.01 * 713 / 1426)
    assert (grown_row.contribution, grown_row.validation_accuracies) == (0.25, ())
    waited = outcome_of(ROW, held_out=True, schedule=WAITING)
    assert (waited.contribution, waited.validation_accuracies) == (None, (0.125, 0.5, 0.8125))
    condemned = outcome_of(replace(ROW, validation_accuracy=None), held_out=True, schedule=A)
    assert condemned.utility == 0.0


def test_outcomes_survive_the_disk(tmp_path: Path) -> None:
    outcomes = table()
    path = tmp_path / "outcomes.parquet"
    outcomes.write(path)
    again = Outcomes.read(path)
    assert again.part(held_out=True).schedules == outcomes.part(held_out=True).schedules
    assert np.allclose(again.part(held_out=True).score, outcomes.part(held_out=True).score)
    assert again.rows[0].train_accuracies == (None, 0.5, 0.875)
    path.write_bytes(b"no")
    with pytest.raises(RowsError, match="no outcomes of schedules can be read"):
        Outcomes.read(path)
    with pytest.raises(RowsError, match="there are no outcomes"):
        Outcomes([])
    assert shipped_outcomes("nothing") is None


def test_half_played_schedules_are_not_compared() -> None:
    rows = [row for row in table().part(held_out=True).rows if (row.schedule, row.case) != (A, "z")]
    assert Outcomes(rows).schedules == (WAITING, B)
    with pytest.raises(RowsError, match="no schedule was played on all"):
        _ = Outcomes([row for row in rows if (row.case == "x") == (row.schedule == A)]).schedules


def test_tabular_mode_knows_the_oracle() -> None:
    bench = TabularBench(table())
    assert bench.sbs_schedule == B
    assert bench.sbs().tolist() == [[[0.5] * 3, [0.5] * 3, [pytest.approx(0.3)] * 3]]
    assert bench.oracle().mean() == pytest.approx((0.6 + 0.5 + 0.4) / 3)
    assert np.array_equal(bench.vbs(), bench.oracle())  # hosts of a case do not differ here
    compared = bench.compare(bench.score(lambda context: A if context.case == "x" else B))
    assert compared.gap.value == pytest.approx(0.2 / 3)
    assert compared.over_sbs.value == pytest.approx(0.1 / 3)
    assert compared.share.value == pytest.approx(0.5)


def test_the_best_of_each_case_is_not_chosen_on_the_host_it_is_scored_on() -> None:
    """A host on which a schedule was lucky does not count for itself."""
    rows = [
        replace(row, validation_accuracy=0.99, test_accuracy=0.99)
        if row.held_out and (row.case, row.schedule, row.seed) == ("y", A, 501)
        else row
        for row in table(seeds=2).rows
    ]
    bench = TabularBench(Outcomes(rows))
    assert bench.vbs()[0, 1, 1] == pytest.approx(0.5)  # B, by the other one
    assert bench.oracle()[0, 1, 1] == pytest.approx(0.99)


def test_a_chooser_sees_only_what_waiting_showed() -> None:
    bench = TabularBench(table(), look=1)
    context = bench.context("x", 501)
    assert context.validation_accuracies == (0.125, 0.5)
    assert context.train_accuracies == (None, 0.5)
    with pytest.raises(ValueError, match="is not in the table"):
        bench.score(lambda _: "germinate lora@0 t=0")
    with pytest.raises(ValueError, match="one seed a case"):
        TabularBench(table(seeds=1)).vbs()
    lacking = Outcomes([row for row in table().rows if not (row.held_out and row.schedule == B)])
    with pytest.raises(ValueError, match="was not played on every held-out host"):
        TabularBench(lacking)
