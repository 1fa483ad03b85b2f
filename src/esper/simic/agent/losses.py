"""The terms of the PPO loss as pure functions."""

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
