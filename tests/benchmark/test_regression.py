"""A benchmark of hosts that predict a quantity: scores are explained variance."""

import pytest

from esper.benchmark.arms import Hosts, RuleArm, ScheduleArm
from esper.benchmark.playing import play_chunk
from esper.benchmark.suites import host_seed
from esper.benchmark.table import bench_table
from esper.tolaria.worlds.baselines import compute

CASE = "diabetes"
HOSTS = Hosts(CASE, CASE, (0, 1))


def test_rows_and_table_hold_explained_variance() -> None:
    waited = play_chunk(RuleArm("wait"), HOSTS)
    grown = play_chunk(
        ScheduleArm("sbs", {CASE: "germinate mlp@0 t=0; advance 0 t=1; fossilize 0 t=6"}), HOSTS
    )
    for row in (*waited, *grown):
        assert row.test_accuracy is not None
        assert 0.2 < row.test_accuracy < 0.8
        share = (row.added_parameters or 0) / row.host_parameters
        assert row.score == pytest.approx(row.test_accuracy - row.rent * share)
    assert waited[0].validation_accuracies == compute(CASE, host_seed(CASE, 0), 20).judged_accuracy
    assert grown[0].added_parameters
    (difference,) = bench_table([*waited, *grown], ["sbs"]).comparisons
    paired = [(one.score or 0) - (other.score or 0) for one, other in zip(grown, waited, strict=True)]
    assert difference.difference.value == pytest.approx(sum(paired) / 2)
