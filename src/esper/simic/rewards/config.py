"""The dials of a reward, checked when they are set."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Family = Literal["contribution", "loss"]
"""What utility is measured in: validation accuracy, or validation loss over the untrained loss."""
Mode = Literal["sparse", "shaped"]
"""Utility at the end only, or the same with potential-based shaping on the way there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    family: Family = "contribution"
    mode: Mode = "shaped"
    rent: float = 0.01
    """Utility that added parameters cost, per host's worth of them."""
    gamma: float = 0.995
    """Discount of the shaping; PPO's must be the same number."""
    control_variate: bool = True
    """Subtract the utility of the same instance and seed when nothing is grown."""
    rollback_penalty: float = 1.0
    """On top of a worthless product. Under 1, the whole range of accuracy, losing a host could pay."""

    def __post_init__(self) -> None:
        self._require("family", self.family in get_args(Family), f"one of {', '.join(get_args(Family))}")
        self._require("mode", self.mode in get_args(Mode), f"one of {', '.join(get_args(Mode))}")
        self._require("rent", math.isfinite(self.rent) and self.rent >= 0.0, "a finite number >= 0")
        self._require("gamma", 0.0 < self.gamma <= 1.0, "in (0, 1]")
        self._require("control_variate", isinstance(self.control_variate, bool), "True or False")
        penalty = self.rollback_penalty
        self._require("rollback_penalty", math.isfinite(penalty) and penalty >= 1.0, "a finite number >= 1")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"RewardConfig.{name} is {getattr(self, name)!r}; expected {expected}")
