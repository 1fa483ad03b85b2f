"""The simulation of many workers, where the answer is known."""

from dataclasses import replace

import pytest

from simulate_scaling import Costs, rows, saturated_at, simulate

IDEAL = Costs(
    epoch_ms=50.0,
    hosts=3,
    learner_ms=0.0,
    message_ms=0.0,
    latency_ms=0.0,
    straggling=0.0,
    preemptions_per_hour=0.0,
)


def test_workers_that_never_wait_add_up() -> None:
    pace = simulate(IDEAL, 7)
    assert pace.env_epochs_per_second == pytest.approx(7 / 0.05)
    assert pace.efficiency == pytest.approx(1.0)
    assert (pace.learner_share, pace.straggler_share, pace.lost_share) == pytest.approx((0.0, 0.0, 0.0))


def test_at_saturation_half_of_the_time_is_the_learners() -> None:
    costs = replace(IDEAL, learner_ms=2.0, message_ms=4.0)
    assert saturated_at(costs) == 15.0
    pace = simulate(costs, 15)
    assert (pace.efficiency, pace.learner_share) == pytest.approx((0.5, 0.5))


def test_the_slowest_of_many_is_slower_and_a_lost_worker_stops_all() -> None:
    few, many = (simulate(replace(IDEAL, straggling=0.3), workers).straggler_share for workers in (2, 200))
    assert 0.0 < few < many < 1.0
    costs = replace(IDEAL, preemptions_per_hour=1.0, restart_s=14.0)
    expected = 3600 / (
        3600 + 20 * (14.0 + 0.15 * 10.5)
    )  # 20 workers are lost an hour, half-way through on average
    assert simulate(costs, 20, episodes=20_000).efficiency == pytest.approx(expected, rel=0.02)


def test_every_remedy_has_a_row_for_each_number_of_workers() -> None:
    assert [row["workers"] for row in rows(Costs(epochs=2))] == [10, 100, 1000] * 5
