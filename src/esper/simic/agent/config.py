"""The dials of PPO, checked when they are set."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from esper.leyline import HEAD_NAMES
from esper.simic.agent.losses import EntropySchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    lr: float = 3e-4
    """Adam's learning rate."""
    lr_anneal_steps: int = 0
    """Updates over which lr falls linearly to a tenth; 0 keeps it."""
    adam_eps: float = 1e-5
    gamma: float = 0.995
    """Discount per step."""
    gae_lambda: float = 0.98
    clip_ratio: float = 0.2
    value_coef: float = 0.5
    clip_value: bool = False
    """Use the pessimistic clipped value loss."""
    value_clip: float = 10.0
    """How far a value may move from the rollout's, when `clip_value` is on."""
    entropy_coef: float = 0.05
    entropy_coef_min: float = 0.01
    """Where annealing ends, and the floor that `adaptive_entropy_floor` scales."""
    entropy_anneal_steps: int = 0
    """Updates over which entropy_coef goes to its floor; 0 keeps it."""
    adaptive_entropy_floor: bool = False
    """Raise the floor of a head where few of its choices are legal."""
    entropy_coef_per_head: Mapping[str, float] = field(default_factory=dict)
    """head -> its own starting coefficient, instead of entropy_coef."""
    head_names: tuple[str, ...] = HEAD_NAMES
    """The heads `entropy_coef_per_head` may name: the layout's, where it is not the growth layout."""
    target_kl: float | None = 0.015
    """No more steps in an update once the joint KL exceeds 1.5 times this; None never stops."""
    max_grad_norm: float = 0.5
    n_epochs: int = 2
    """Passes over a rollout; with memory over 2 warns and over 4 is capped at 4."""
    num_minibatches: int = 4
    """Per epoch: groups of envs with memory, of shuffled steps without."""
    normalize_advantages: bool = True
    normalize_rewards: bool = False
    """Divide rewards by their running standard deviation, before advantages."""
    normalize_observations: bool = False
    weight_decay: float = 0.0
    """Of the critic only; above 0 the optimiser is AdamW."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the networks under autocast, in rollout and update alike; log-softmax and LSTM stay fp32."""
    debug: bool = False
    """Assert that ratios start at 1, and break down NaN and Inf."""

    def __post_init__(self) -> None:
        for name in ("n_epochs", "num_minibatches", "entropy_anneal_steps", "lr_anneal_steps"):
            self._require(name, type(getattr(self, name)) is int, "an int")
        self._require("lr", math.isfinite(self.lr), "a finite number")
        for name in ("gamma", "gae_lambda", "clip_ratio"):
            self._require(name, 0.0 < getattr(self, name) <= 1.0, "in (0, 1]")
        for name in ("lr", "adam_eps", "value_clip", "max_grad_norm"):
            self._require(name, getattr(self, name) > 0.0, "> 0")
        for name in (
            "entropy_coef",
            "entropy_coef_min",
            "value_coef",
            "weight_decay",
            "entropy_anneal_steps",
            "lr_anneal_steps",
        ):
            self._require(name, getattr(self, name) >= 0.0, ">= 0")
        for name in ("n_epochs", "num_minibatches"):
            self._require(name, getattr(self, name) >= 1, ">= 1")
        self._require("target_kl", self.target_kl is None or self.target_kl > 0.0, "> 0 or None")
        self._require("precision", self.precision in ("fp32", "bf16"), "'fp32' or 'bf16'")
        for head, coefficient in self.entropy_coef_per_head.items():
            if head not in self.head_names:
                raise ValueError(
                    f"entropy_coef_per_head names unknown head {head!r}; "
                    f"expected among {', '.join(self.head_names)}"
                )
            if not coefficient >= 0.0:
                raise ValueError(f"entropy_coef_per_head[{head!r}] is {coefficient}; expected >= 0")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"{name} is {getattr(self, name)!r}; expected {expected}")

    def lr_at(self, updates: int) -> float:
        """lr (1 - 0.9 progress), progress linear over `lr_anneal_steps` updates."""
        progress = min(updates / self.lr_anneal_steps, 1.0) if self.lr_anneal_steps else 0.0
        return self.lr * (1.0 - 0.9 * progress)

    @property
    def entropy_schedule(self) -> EntropySchedule:
        return EntropySchedule(
            entropy_coef=self.entropy_coef,
            entropy_coef_min=self.entropy_coef_min,
            anneal_steps=self.entropy_anneal_steps,
            adaptive_floor=self.adaptive_entropy_floor,
        )
