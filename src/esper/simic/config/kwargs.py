"""What each consumer of a `TrainingConfig` is handed, typed: `PPOConfig(**config.to_ppo_kwargs())`."""

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from esper.simic.env.episodes import Settle
    from esper.simic.reward import Family, Mode


class PPOKwargs(TypedDict):
    """Of `PPOConfig`."""

    lr: float
    lr_anneal_steps: int
    adam_eps: float
    gamma: float
    gae_lambda: float
    clip_ratio: float
    value_coef: float
    clip_value: bool
    value_clip: float
    entropy_coef: float
    entropy_coef_min: float
    entropy_anneal_steps: int
    adaptive_entropy_floor: bool
    entropy_coef_per_head: dict[str, float]
    target_kl: float | None
    max_grad_norm: float
    n_epochs: int
    num_minibatches: int
    normalize_advantages: bool
    normalize_rewards: bool
    normalize_observations: bool
    weight_decay: float
    precision: Literal["fp32", "bf16"]
    debug: bool


class RewardKwargs(TypedDict):
    """Of `RewardConfig`."""

    family: "Family"
    mode: "Mode"
    rent: float
    gamma: float
    control_variate: bool
    rollback_penalty: float


class AnomalyKwargs(TypedDict):
    """Of `AnomalyDetector`."""

    max_ratio_threshold: float
    min_ratio_threshold: float
    min_explained_variance: float
    warmup_updates: int


class GovernorKwargs(TypedDict):
    """Of `GovernorRules`."""

    divergence_factor: float
    learned_margin: float
    collapse_share: float
    collapse_patience: int
    max_consecutive: int


class TrackerKwargs(TypedDict):
    """Of `SignalTracker`, beside the horizon."""

    plateau_threshold: float


class EnvKwargs(TypedDict):
    """Of `GrowthVectorEnv`, beside the world and the reward."""

    settle: "Settle"
    frozen_heads: dict[str, int]
    first_growth: int
    menu: tuple[str, ...] | None
