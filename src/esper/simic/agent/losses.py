"""The terms of the PPO loss, as pure functions."""

import torch
from torch import Tensor

from esper.simic.config.ppo import PPOConfig

LEAST_PROBABILITY = 1e-12
"""Under which a logarithm is not taken."""
MAX_FLOOR_SCALE = 3.0
"""How many times `entropy_coef_min` the adaptive floor may be."""


def require_same_shape(**tensors: Tensor) -> None:
    """Raise ValueError unless all have one shape: broadcasting would hide a mistake."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"the shapes of {shapes} differ")


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip_ratio: float) -> Tensor:
    """L = -min(rho A, clip(rho, 1 - eps, 1 + eps) A) with rho = exp(log_ratio), elementwise.

    (Schulman et al., 2017, eq. 7.) An element with A = 0 has no loss and no gradient.
    """
    require_same_shape(log_ratio=log_ratio, advantages=advantages)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """L = (V - R)^2 / 2, elementwise."""
    require_same_shape(values=values, targets=targets)
    return 0.5 * (values - targets).square()


def clipped_value_loss(values: Tensor, old_values: Tensor, targets: Tensor, value_clip: float) -> Tensor:
    """L = max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2, elementwise: the pessimistic form."""
    require_same_shape(values=values, old_values=old_values, targets=targets)
    held = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return torch.maximum(value_loss(values, targets), value_loss(held, targets))


def mean_over(x: Tensor, where: Tensor) -> Tensor:
    """Sum of x over `where`, divided by how many that is (at least 1)."""
    return torch.where(where, x, 0.0).sum() / where.sum().clamp_min(1)


def k3(log_ratio: Tensor) -> Tensor:
    """(rho - 1) - log rho, of log_ratio = log rho = log new - log old: estimates KL(old || new) (Schulman, 2020).

    From actions drawn under old; unbiased, never negative, 0 at rho = 1.
    """
    return log_ratio.expm1() - log_ratio


def head_kl(start: Tensor, now: Tensor) -> Tensor:
    """KL(start || now) = sum over choices of p_start (log p_start - log p_now): (..., head, choice) -> (..., head).

    From probabilities, 0 where a choice is illegal, in both alike. What the start never chose costs nothing to try.
    """
    require_same_shape(start=start, now=now)
    tried = start > 0.0
    logs = (
        torch.where(tried, start, 1.0).log() - torch.where(tried, now, 1.0).clamp_min(LEAST_PROBABILITY).log()
    )
    return (start * logs).sum(-1)


def joint_log_ratio(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """sum over heads of log new - log old: (..., head) -> (...). Irrelevant heads are 0 in both."""
    return (log_probs - old_log_probs).sum(-1)


def entropy_floor(config: PPOConfig, n_legal: Tensor, n_total: Tensor) -> Tensor:
    """entropy_coef_min, times min(log n_total / log n_legal, 3) with `adaptive_entropy_floor`.

    It is entropy_coef_min where n_legal <= 1 or n_legal = n_total.
    """
    base = torch.full(n_legal.shape, config.entropy_coef_min, dtype=torch.float32, device=n_legal.device)
    if not config.adaptive_entropy_floor:
        return base
    narrowed = (n_legal > 1) & (n_legal < n_total)
    scale = n_total.float().log() / n_legal.clamp_min(2).float().log()
    return torch.where(narrowed, base * scale.clamp_max(MAX_FLOOR_SCALE), base)


def entropy_coefficient(
    config: PPOConfig, n_legal: Tensor, n_total: Tensor, updates: int, start: Tensor | float
) -> Tensor:
    """max(start - (start - floor) progress, floor), linear over `entropy_anneal_steps` updates.

    It is 0 where start is 0: no bonus was asked for.
    """
    steps = config.entropy_anneal_steps
    progress = min(updates / steps, 1.0) if steps else 0.0
    floor = entropy_floor(config, n_legal, n_total)
    start = torch.as_tensor(start, dtype=floor.dtype, device=floor.device)
    return torch.where(start > 0.0, torch.maximum(start - (start - floor) * progress, floor), 0.0)


def legal_counts(mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many choices of a head are legal, and how many there are: mask (..., choice) -> two tensors (...)."""
    mask = torch.ones(1, dtype=torch.bool) if mask is None else mask
    n_legal = mask.sum(-1)
    return n_legal, torch.full_like(n_legal, mask.shape[-1])
