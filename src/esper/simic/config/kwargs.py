"""What consumers of a `TrainingConfig` are given as keyword arguments."""

from typing import TypedDict


class AnomalyKwargs(TypedDict):
    """Of `AnomalyDetector`."""

    max_ratio_threshold: float
    min_ratio_threshold: float
    min_explained_variance: float
    warmup_updates: int
