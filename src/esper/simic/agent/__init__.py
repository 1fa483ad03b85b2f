"""The learner: PPO over factored, masked, recurrent actions."""

from esper.simic.agent.advantages import compute_causal_masks as compute_causal_masks
from esper.simic.agent.advantages import compute_gae as compute_gae
from esper.simic.agent.advantages import compute_per_head_advantages as compute_per_head_advantages
from esper.simic.agent.anomaly import Anomaly as Anomaly
from esper.simic.agent.anomaly import AnomalyDetector as AnomalyDetector
from esper.simic.agent.anomaly import AnomalyKind as AnomalyKind
from esper.simic.agent.checkpoint import CheckpointError as CheckpointError
from esper.simic.agent.checkpoint import DamagedCheckpoint as DamagedCheckpoint
from esper.simic.agent.normalization import RewardNormalizer as RewardNormalizer
from esper.simic.agent.normalization import RunningMeanStd as RunningMeanStd
from esper.simic.agent.ppo import NonFiniteUpdateError as NonFiniteUpdateError
from esper.simic.agent.ppo import PPOAgent as PPOAgent
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer as TamiyoRolloutBuffer
from esper.simic.agent.types import GradientStats as GradientStats
from esper.simic.agent.types import PPOUpdateMetrics as PPOUpdateMetrics
from esper.simic.config.ppo import PPOConfig as PPOConfig
from esper.tamiyo import MaskedCategorical as MaskedCategorical
