"""An env's reward does not depend on the others of its batch, and the averages of logs are those of the rewards."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.simic.reward import (
    COMPONENT_NAMES,
    RewardComponents,
    RewardConfig,
    RewardTelemetry,
    compute_rewards,
)
from reward_strategies import Standing, Step, batch, components, configs, ends, reward, standings

KNOWN = Standing(0.5, 1.0, 10, 0.4, 1.2)

steps = st.lists(
    st.builds(lambda before, after, end: Step(before, after, *end), standings, standings, ends),
    min_size=1,
    max_size=7,
)


@given(configs, steps)
def test_every_env_is_paid_as_if_it_were_alone(config: RewardConfig, rows: list[Step]) -> None:
    together = compute_rewards(config, batch(*rows))
    for env_idx, row in enumerate(rows):
        assert together.of(env_idx) == components(config, row)
        assert together.total[env_idx] == reward(config, row)


def test_condemned_numbers_do_not_leak() -> None:
    condemned = KNOWN._replace(accuracy=math.nan, loss=math.nan)
    rows = batch(Step(KNOWN, condemned, terminated=True, rolled_back=True), Step(KNOWN, KNOWN))
    for family in ("contribution", "loss"):
        config = RewardConfig(family=family)
        assert np.isfinite(compute_rewards(config, rows).values).all()


def test_the_unknown_is_refused_by_env() -> None:
    rows = batch(Step(KNOWN, KNOWN), Step(KNOWN, KNOWN._replace(baseline_accuracy=None)))
    with pytest.raises(ValueError, match=r"after the step is nan in env 1: baseline_accuracy is unknown"):
        compute_rewards(RewardConfig(), rows)
    compute_rewards(RewardConfig(control_variate=False), rows)
    compute_rewards(RewardConfig(family="loss"), rows)


def test_telemetry_averages_valid_steps_and_begins_anew() -> None:
    telemetry = RewardTelemetry()
    assert telemetry.take() == {}
    telemetry.add(RewardComponents(np.full((6, 3), 1.0)), np.array([True, False, True]))
    telemetry.add(RewardComponents(np.full((6, 3), 4.0)), np.array([True, False, False]))
    averaged = telemetry.take()
    assert list(averaged) == [*COMPONENT_NAMES, "total"]
    assert averaged["rollback"] == pytest.approx(2.0)
    assert averaged["total"] == pytest.approx(12.0)
    assert telemetry.take() == {}
