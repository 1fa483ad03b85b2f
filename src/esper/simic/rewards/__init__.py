"""Rewards: pure functions from what a step led to, to named components whose sum is the reward."""

from esper.simic.rewards.batch import ComponentBatch, RewardBatch, Standings, compute_rewards, utilities
from esper.simic.rewards.components import COMPONENT_NAMES, RewardComponents, Utility
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.reward import compute_reward, utility
from esper.simic.rewards.telemetry import RewardTelemetry

__all__ = [
    "COMPONENT_NAMES",
    "ComponentBatch",
    "RewardBatch",
    "RewardComponents",
    "RewardConfig",
    "RewardTelemetry",
    "Standings",
    "Utility",
    "compute_reward",
    "compute_rewards",
    "utilities",
    "utility",
]
