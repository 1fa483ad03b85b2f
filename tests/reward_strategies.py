"""What the tests of rewards draw from, and how they write batches down: host by host."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from esper.simic.reward import COMPONENT_NAMES, RewardConfig, RewardInputs, Standings, compute_rewards


class Standing(NamedTuple):
    """One host's entries of `Standings`; None is unknown."""

    accuracy: float | None
    loss: float
    added_parameters: int
    baseline_accuracy: float | None = None
    baseline_loss: float | None = None


class Step(NamedTuple):
    """One env's entries of `RewardInputs`."""

    before: Standing
    after: Standing
    terminated: bool = False
    rolled_back: bool = False
    host_parameters: int = 1426
    largest_growth: int = 2000
    untrained_loss: float = 2.302585


def stacked(rows: Sequence[Standing]) -> Standings:
    known = [[math.nan if value is None else float(value) for value in row] for row in rows]
    return Standings(*np.array(known).T)


def batch(*steps: Step) -> RewardInputs:
    return RewardInputs(
        before=stacked([step.before for step in steps]),
        after=stacked([step.after for step in steps]),
        host_parameters=np.array([float(step.host_parameters) for step in steps]),
        largest_growth=np.array([float(step.largest_growth) for step in steps]),
        untrained_loss=np.array([step.untrained_loss for step in steps]),
        terminated=np.array([step.terminated for step in steps]),
        rolled_back=np.array([step.rolled_back for step in steps]),
    )


def components(config: RewardConfig, step: Step) -> dict[str, float]:
    """Of a batch of one."""
    return compute_rewards(config, batch(step)).of(0)


def reward(config: RewardConfig, step: Step) -> float:
    """Of a batch of one."""
    paid = compute_rewards(config, batch(step))
    assert tuple(paid.of(0)) == COMPONENT_NAMES
    return float(paid.total[0])


shares = st.floats(0.0, 1.0)
standings = st.builds(
    Standing,
    accuracy=shares,
    loss=st.floats(0.0, 10.0),
    added_parameters=st.integers(0, 500),
    baseline_accuracy=shares,
    baseline_loss=st.floats(0.0, 10.0),
)
configs = st.builds(
    RewardConfig,
    family=st.sampled_from(["contribution", "loss"]),
    mode=st.sampled_from(["sparse", "shaped"]),
    rent=st.floats(0.0, 1.0),
    gamma=st.floats(0.5, 1.0),
    control_variate=st.booleans(),
)
ends = st.sampled_from([(False, False), (True, False), (True, True)])
"""(terminated, rolled_back)"""
