"""The vectorised reward equals the scalar one, and the averages of logs are those of the rewards."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import LifecycleOp, RewardInputs, Standing
from esper.simic.reward import (
    COMPONENT_NAMES,
    ComponentBatch,
    RewardBatch,
    RewardConfig,
    RewardTelemetry,
    Standings,
    compute_reward,
    compute_rewards,
)
from reward_strategies import configs, ends, standings

HOST, UNTRAINED = 1426, 2.302585

steps = st.lists(st.tuples(standings, standings, ends), min_size=1, max_size=7)


def stacked(column: list[Standing]) -> Standings:
    def field(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        values = [getattr(standing, name) for standing in column]
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64)

    return Standings(
        *(
            field(name)
            for name in ("accuracy", "loss", "added_parameters", "control_accuracy", "control_loss")
        )
    )


def batched(rows: list[tuple[Standing, Standing, tuple[bool, bool, bool]]]) -> RewardBatch:
    count = len(rows)
    return RewardBatch(
        before=stacked([before for before, _, _ in rows]),
        after=stacked([after for _, after, _ in rows]),
        host_parameters=np.full(count, float(HOST)),
        untrained_loss=np.full(count, UNTRAINED),
        terminated=np.array([end[0] for _, _, end in rows]),
        rolled_back=np.array([end[2] for _, _, end in rows]),
    )


@given(configs, steps)
def test_equal_to_the_scalar_form(
    config: RewardConfig, rows: list[tuple[Standing, Standing, tuple[bool, bool, bool]]]
) -> None:
    batch = compute_rewards(config, batched(rows))
    for env_idx, (before, after, (terminated, truncated, rolled_back)) in enumerate(rows):
        inputs = RewardInputs(
            LifecycleOp.WAIT, before, after, HOST, UNTRAINED, terminated, truncated, rolled_back
        )
        single = compute_reward(config, inputs)
        assert batch.row(env_idx) == single
        assert batch.total[env_idx] == single.total


def test_condemned_numbers_do_not_leak() -> None:
    known = Standing(0.5, 1.0, 10, 0.4, 1.2)
    condemned = Standing(math.nan, math.nan, 10, 0.4, 1.2)
    batch = batched([(known, condemned, (True, False, True)), (known, known, (False, False, False))])
    for family in ("contribution", "loss"):
        config = RewardConfig(family=family)
        assert np.isfinite(compute_rewards(config, batch).values).all()


def test_the_unknown_is_refused_by_env() -> None:
    known = Standing(0.5, 1.0, 10, 0.4, 1.2)
    unknown = Standing(0.5, 1.0, 10, None, 1.2)
    batch = batched([(known, known, (False, False, False)), (known, unknown, (False, False, False))])
    with pytest.raises(ValueError, match=r"after the step is nan in env 1.*and the control's accuracy"):
        compute_rewards(RewardConfig(), batch)
    compute_rewards(RewardConfig(control_variate=False), batch)
    compute_rewards(RewardConfig(family="loss"), batch)


def test_telemetry_averages_valid_steps_and_begins_anew() -> None:
    telemetry = RewardTelemetry()
    assert telemetry.take() is None
    telemetry.add(ComponentBatch(np.full((6, 3), 1.0)), np.array([True, False, True]))
    telemetry.add(ComponentBatch(np.full((6, 3), 4.0)), np.array([True, False, False]))
    averaged = telemetry.take()
    assert averaged is not None
    assert list(averaged) == [*(f"reward/{name}" for name in COMPONENT_NAMES), "reward/total"]
    assert averaged["reward/rollback"] == pytest.approx(2.0)
    assert averaged["reward/total"] == pytest.approx(12.0)
    assert telemetry.take() is None
