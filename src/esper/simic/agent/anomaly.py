"""Watching the learner for the ways PPO goes wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

STATE_KEYS = ("updates_seen", "counts")


class AnomalyKind(StrEnum):
    RATIO_EXPLOSION = "ratio_explosion"
    RATIO_COLLAPSE = "ratio_collapse"
    VALUE_COLLAPSE = "value_collapse"
    NUMERICAL_INSTABILITY = "numerical_instability"


ADVICE: Mapping[AnomalyKind, str] = MappingProxyType(
    {
        AnomalyKind.RATIO_EXPLOSION: "Lower the learning rate, the epochs per update or target_kl.",
        AnomalyKind.RATIO_COLLAPSE: "Raise entropy_coef or anneal it later; lower the learning rate.",
        AnomalyKind.VALUE_COLLAPSE: "Look at the rewards' scale; raise value_coef or the steps per rollout.",
        AnomalyKind.NUMERICAL_INSTABILITY: "Lower the learning rate; in bf16 try fp32; look for NaN in the input.",
    }
)
"""What to do about each, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: AnomalyKind
    detail: str
    """The value, the threshold and what it means."""
    value: float | None = None
    """What was measured; None where there is no one number."""
    threshold: float | None = None
    """What it was held against."""

    @property
    def advice(self) -> str:
        return ADVICE[self.kind]


@dataclass(slots=True)
class AnomalyDetector:
    """Thresholds on what one update reports. It only tells; the caller decides."""

    max_ratio_threshold: float = 5.0
    min_ratio_threshold: float = 0.1
    min_explained_variance: float = 0.1
    warmup_updates: int = 10
    """Updates before a poor critic is worth a word."""
    updates_seen: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {kind.value: 0 for kind in AnomalyKind})
    """kind -> how often it was raised."""

    def __post_init__(self) -> None:
        if not self.max_ratio_threshold > 1.0:
            raise ValueError(f"max_ratio_threshold is {self.max_ratio_threshold}; expected > 1")
        if not 0.0 <= self.min_ratio_threshold < 1.0:
            raise ValueError(f"min_ratio_threshold is {self.min_ratio_threshold}; expected 0 <= value < 1")
        if not self.min_explained_variance <= 1.0:
            raise ValueError(f"min_explained_variance is {self.min_explained_variance}; expected <= 1")
        if self.warmup_updates < 0:
            raise ValueError(f"warmup_updates is {self.warmup_updates}; expected >= 0")

    def check(
        self,
        *,
        ratio_max: float | None,
        ratio_min: float | None,
        explained_variance: float | None,
        has_numerical_issue: bool,
    ) -> tuple[Anomaly, ...]:
        """Every check there is, on one update; None is unknown and raises nothing."""
        self.updates_seen += 1
        found = (
            self._ratio_explosion(ratio_max),
            self._ratio_collapse(ratio_min),
            self._value_collapse(explained_variance),
            self._numerical_instability(has_numerical_issue),
        )
        anomalies = tuple(anomaly for anomaly in found if anomaly is not None)
        for anomaly in anomalies:
            self.counts[anomaly.kind.value] += 1
        return anomalies

    def _ratio_explosion(self, ratio_max: float | None) -> Anomaly | None:
        if ratio_max is None or ratio_max <= self.max_ratio_threshold:
            return None
        detail = f"largest ratio {ratio_max:.3g} > {self.max_ratio_threshold:g}: the policy moved too far"
        return Anomaly(AnomalyKind.RATIO_EXPLOSION, detail, ratio_max, self.max_ratio_threshold)

    def _ratio_collapse(self, ratio_min: float | None) -> Anomaly | None:
        if ratio_min is None or ratio_min >= self.min_ratio_threshold:
            return None
        detail = f"smallest ratio {ratio_min:.3g} < {self.min_ratio_threshold:g}: choices are being abandoned"
        return Anomaly(AnomalyKind.RATIO_COLLAPSE, detail, ratio_min, self.min_ratio_threshold)

    def _value_collapse(self, explained_variance: float | None) -> Anomaly | None:
        if explained_variance is None or self.updates_seen <= self.warmup_updates:
            return None
        if explained_variance >= self.min_explained_variance:
            return None
        detail = (
            f"explained variance {explained_variance:.3g} < {self.min_explained_variance:g}: "
            "the critic does not predict returns"
        )
        return Anomaly(AnomalyKind.VALUE_COLLAPSE, detail, explained_variance, self.min_explained_variance)

    def _numerical_instability(self, has_issue: bool) -> Anomaly | None:
        if not has_issue:
            return None
        return Anomaly(
            AnomalyKind.NUMERICAL_INSTABILITY, "NaN or Inf in ratios, loss or gradient norm: skipped"
        )

    def state_dict(self) -> dict[str, int | dict[str, int]]:
        return {"updates_seen": self.updates_seen, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, int | dict[str, int]]) -> None:
        if set(state) != set(STATE_KEYS):
            raise ValueError(f"AnomalyDetector state has keys {sorted(state)}; expected {sorted(STATE_KEYS)}")
        updates_seen, counts = state["updates_seen"], state["counts"]
        if not isinstance(updates_seen, int) or not isinstance(counts, dict):
            raise ValueError("AnomalyDetector state: updates_seen must be an int, counts a dict")
        self.updates_seen = updates_seen
        self.counts = dict(counts)
