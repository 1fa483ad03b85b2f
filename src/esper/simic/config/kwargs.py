"""What consumers of a `TrainingConfig` are given as keyword arguments."""

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from esper.simic.env.episodes import Settle


class AnomalyKwargs(TypedDict):
    """Of `AnomalyDetector`."""

    max_ratio_threshold: float
    min_ratio_threshold: float
    min_explained_variance: float
    warmup_updates: int


class TrackerKwargs(TypedDict):
    """Of `SignalTracker`, beside the horizon."""

    plateau_threshold: float


class EnvKwargs(TypedDict):
    """Of `GrowthVectorEnv`, beside the world and the reward."""

    settle: "Settle"
    frozen_heads: dict[str, int]
    first_growth: int
    menu: tuple[str, ...] | None
