"""The terms of the PPO loss as pure functions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip_ratio: float) -> Tensor:
    """L = -min(rho A, clip(rho, 1 - eps, 1 + eps) A) with rho = exp(log_ratio), elementwise.

    (Schulman et al., 2017, eq. 7.) An element with A = 0 has no loss and no gradient.
    """
    if log_ratio.shape != advantages.shape:
        raise ValueError(
            f"log_ratio {tuple(log_ratio.shape)} and advantages {tuple(advantages.shape)} differ"
        )
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """L = (V - R)^2 / 2, elementwise."""
    if values.shape != targets.shape:
        raise ValueError(f"values {tuple(values.shape)} and targets {tuple(targets.shape)} differ")
    return 0.5 * (values - targets).square()


def clipped_value_loss(values: Tensor, old_values: Tensor, targets: Tensor, value_clip: float) -> Tensor:
    """L = max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2, elementwise: the pessimistic form."""
    if not values.shape == old_values.shape == targets.shape:
        raise ValueError(
            f"values {tuple(values.shape)}, old_values {tuple(old_values.shape)} and "
            f"targets {tuple(targets.shape)} differ"
        )
    held = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return torch.maximum(value_loss(values, targets), value_loss(held, targets))


def mean_over(x: Tensor, where: Tensor) -> Tensor:
    """Sum of x over `where`, divided by how many that is (at least 1)."""
    return torch.where(where, x, 0.0).sum() / where.sum().clamp_min(1)


# Estimators of KL(old || new) from actions drawn under the old policy (Schulman, 2020).


def k1(log_ratio: Tensor) -> Tensor:
    """-log rho: unbiased, of either sign. log_ratio = log new - log old."""
    return -log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """(log rho)^2 / 2: biased, never negative."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """(rho - 1) - log rho: unbiased, never negative, 0 at rho = 1. This is the one the learner uses."""
    return log_ratio.expm1() - log_ratio


def joint_log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """sum over heads of log new - log old: (..., head) -> (...). Irrelevant heads are 0 in both."""
    return (log_probs - old_log_probs).sum(-1)


# How much entropy is paid for: an annealed coefficient that does not fall below a floor.


MAX_FLOOR_SCALE = 3.0


@dataclass(frozen=True, slots=True)
class EntropySchedule:
    """coef = max(c - (c - floor) progress, floor), linear over `anneal_steps` updates."""

    entropy_coef: float = 0.05
    entropy_coef_min: float = 0.01
    anneal_steps: int = 0
    """Updates until the floor is reached; 0 keeps the coefficient."""
    adaptive_floor: bool = False
    """Raise the floor where few of many choices are legal."""

    def progress(self, updates: int) -> float:
        return min(updates / self.anneal_steps, 1.0) if self.anneal_steps else 0.0

    def floor(self, n_legal: Tensor, n_total: Tensor) -> Tensor:
        """min_coef min(log n_total / log n_legal, 3); min_coef where n_legal <= 1 or n_legal = n_total."""
        base = torch.full(n_legal.shape, self.entropy_coef_min, dtype=torch.float32, device=n_legal.device)
        if not self.adaptive_floor:
            return base
        narrowed = (n_legal > 1) & (n_legal < n_total)
        scale = n_total.float().log() / n_legal.clamp_min(2).float().log()
        return torch.where(narrowed, base * scale.clamp_max(MAX_FLOOR_SCALE), base)

    def coefficient(
        self, n_legal: Tensor, n_total: Tensor, updates: int, entropy_coef: Tensor | None = None
    ) -> Tensor:
        """The coefficient where `n_legal` of `n_total` choices are legal, after this many updates."""
        start = self.entropy_coef if entropy_coef is None else entropy_coef
        floor = self.floor(n_legal, n_total)
        return torch.maximum(start - (start - floor) * self.progress(updates), floor)

    def get_entropy_floor(self, mask: Tensor | None = None) -> float | Tensor:
        """The floor under a mask: (choice,) gives a float, (..., choice) a tensor (...)."""
        return self._for_mask(mask, None)

    def get_entropy_coef(self, mask: Tensor | None = None, *, updates: int) -> float | Tensor:
        """The coefficient under a mask: (choice,) gives a float, (..., choice) a tensor (...)."""
        return self._for_mask(mask, updates)

    def _for_mask(self, mask: Tensor | None, updates: int | None) -> float | Tensor:
        if mask is None:
            mask = torch.ones(1, dtype=torch.bool)
        n_legal = mask.sum(-1)
        n_total = torch.full_like(n_legal, mask.shape[-1])
        floor = self.floor(n_legal, n_total)
        result = floor if updates is None else self.coefficient(n_legal, n_total, updates)
        return float(result) if mask.dim() == 1 else result


def uniform_entropy(choices: int) -> float:
    """log n: the entropy of a uniform choice."""
    return math.log(choices)
