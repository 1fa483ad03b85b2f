"""Watching the learner for the ways PPO goes wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic.dataclasses import dataclass as checked_dataclass

from esper.simic.config import checks
from esper.simic.config.checks import CHECKED, explained


class AnomalyKind(StrEnum):
    """The ways PPO goes wrong that are looked for."""

    RATIO_EXPLOSION = "ratio_explosion"
    RATIO_COLLAPSE = "ratio_collapse"
    VALUE_COLLAPSE = "value_collapse"
    NUMERICAL_INSTABILITY = "numerical_instability"


ADVICE: Mapping[AnomalyKind, str] = {
    AnomalyKind.RATIO_EXPLOSION: "Lower the learning rate, the epochs per update or target_kl.",
    AnomalyKind.RATIO_COLLAPSE: (
        "Harmless now and then, while KL stays small, as one choice of many is enough; in every round: raise "
        "entropy_coef or anneal it later; lower the learning rate."
    ),
    AnomalyKind.VALUE_COLLAPSE: "Look at the rewards' scale; raise value_coef or the steps per rollout.",
    AnomalyKind.NUMERICAL_INSTABILITY: "Lower the learning rate; in bf16 try fp32; look for NaN in the input.",
}
"""What to do about each, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding on one update."""

    kind: AnomalyKind
    """What went wrong."""
    detail: str
    """The value, the threshold and what it means."""
    value: float | None = None
    """What was measured; None where there is no one number."""
    threshold: float | None = None
    """What it was held against."""

    @property
    def advice(self) -> str:
        """What to try, the likeliest first."""
        return ADVICE[self.kind]


@explained
@checked_dataclass(slots=True, config=CHECKED)
class AnomalyDetector:
    """Thresholds on what one update measures. It only reports; the caller decides."""

    max_ratio_threshold: checks.OverOne = 5.0
    """A larger probability ratio is an anomaly."""
    min_ratio_threshold: checks.UnderOne = 0.1
    """A smaller probability ratio is an anomaly."""
    min_explained_variance: checks.AtMostOne = 0.1
    """A smaller explained variance is an anomaly."""
    warmup_updates: checks.CountOrZero = 10
    """Updates before a poor critic is reported."""
    updates_seen: int = 0
    """Updates checked."""
    counts: dict[str, int] = field(default_factory=lambda: {kind.value: 0 for kind in AnomalyKind})
    """kind -> how often it was raised."""

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
        found = []
        if ratio_max is not None and ratio_max > (threshold := self.max_ratio_threshold):
            detail = f"largest ratio {ratio_max:.3g} > {threshold:g}: the policy moved too far"
            found.append(Anomaly(AnomalyKind.RATIO_EXPLOSION, detail, ratio_max, threshold))
        if ratio_min is not None and ratio_min < (threshold := self.min_ratio_threshold):
            detail = f"smallest ratio {ratio_min:.3g} < {threshold:g}: a choice was all but given up"
            found.append(Anomaly(AnomalyKind.RATIO_COLLAPSE, detail, ratio_min, threshold))
        variance = explained_variance if self.updates_seen > self.warmup_updates else None
        if variance is not None and variance < (threshold := self.min_explained_variance):
            detail = f"explained variance {variance:.3g} < {threshold:g}: the critic does not predict returns"
            found.append(Anomaly(AnomalyKind.VALUE_COLLAPSE, detail, variance, threshold))
        if has_numerical_issue:
            detail = "NaN or Inf in ratios, loss or gradient norm: skipped"
            found.append(Anomaly(AnomalyKind.NUMERICAL_INSTABILITY, detail))
        for anomaly in found:
            self.counts[anomaly.kind.value] += 1
        return tuple(found)

    def state_dict(self) -> dict[str, int | dict[str, int]]:
        """What was seen so far; the thresholds are configuration."""
        return {"updates_seen": self.updates_seen, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, int | dict[str, int]]) -> None:
        """Go on from `state_dict`; ValueError if it is none."""
        if set(state) != {"updates_seen", "counts"}:
            raise ValueError(
                f"AnomalyDetector state has keys {sorted(state)}; expected 'counts' and 'updates_seen'"
            )
        updates_seen, counts = state["updates_seen"], state["counts"]
        if not isinstance(updates_seen, int) or not isinstance(counts, dict):
            raise ValueError("AnomalyDetector state: updates_seen must be an int, counts a dict")
        self.updates_seen, self.counts = updates_seen, dict(counts)
