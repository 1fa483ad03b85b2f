"""The learner: PPO over factored, masked, recurrent actions."""

from esper.simic.agent.advantages import compute_causal_masks, compute_gae, compute_per_head_advantages
from esper.simic.agent.anomaly import Anomaly, AnomalyDetector, AnomalyKind
from esper.simic.agent.checkpoint import CheckpointError
from esper.simic.agent.normalization import RewardNormalizer, RunningMeanStd
from esper.simic.agent.ppo import NonFiniteUpdateError, PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.types import GradientStats, PPOUpdateMetrics
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import MaskedCategorical

__all__ = [
    "Anomaly",
    "AnomalyDetector",
    "AnomalyKind",
    "CheckpointError",
    "GradientStats",
    "MaskedCategorical",
    "NonFiniteUpdateError",
    "PPOAgent",
    "PPOConfig",
    "PPOUpdateMetrics",
    "RewardNormalizer",
    "RunningMeanStd",
    "TamiyoRolloutBuffer",
    "compute_causal_masks",
    "compute_gae",
    "compute_per_head_advantages",
]
