"""Advantages: estimated over time, and assigned to the heads that were relevant."""

import torch
from torch import Tensor

from esper.simic.agent.losses import require_same_shape
from esper.tamiyo.layout import compute_causal_masks as compute_causal_masks


def compute_gae(
    r_t: Tensor,
    v_t: Tensor,
    v_tp1: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation on (env, step) tensors.

        delta_t = r_t + gamma (1 - terminated_t) v_tp1_t - v_t
        A_t     = delta_t + gamma lambda (1 - terminated_t)(1 - truncated_t) A_t+1
        R_t     = A_t + v_t

    v_tp1 is the value of the state after each step: at a truncation that of the state the episode was stopped
    in, at the end of a row that of the state after it. A is 0 beyond the row. Returns (advantages, returns).
    (Schulman et al., 2016, eq. 16.)
    """
    if r_t.dim() != 2:
        raise ValueError(f"r_t has shape {tuple(r_t.shape)}; expected (env, step)")
    require_same_shape(r_t=r_t, v_t=v_t, v_tp1=v_tp1, terminated=terminated, truncated=truncated)
    alive = (~terminated).to(r_t.dtype)
    delta = r_t + gamma * alive * v_tp1 - v_t
    # At a terminal the product may be 0 * NaN: a value that does not exist must not matter.
    delta = torch.where(terminated, r_t - v_t, delta)
    carry = gamma * gae_lambda * alive * (~truncated).to(r_t.dtype)
    advantages = _discounted_suffix_sum(delta, carry)
    return advantages, advantages + v_t


def _discounted_suffix_sum(x: Tensor, carry: Tensor) -> Tensor:
    """y_t = x_t + carry_t y_t+1 along the last axis, by doubling: log2(steps) passes, no loop over time."""
    steps = x.shape[-1]
    total, weight = x.clone(), carry.clone()
    shift = 1
    while shift < steps:
        # total_t now holds `shift` terms; the next `shift` terms start at t + shift.
        # Beyond a cut nothing matters, not even NaN.
        added = torch.where(weight[..., :-shift] == 0, 0.0, weight[..., :-shift] * total[..., shift:])
        scaled = weight[..., :-shift] * weight[..., shift:]
        total = torch.cat((total[..., :-shift] + added, total[..., -shift:]), dim=-1)
        weight = torch.cat((scaled, torch.zeros_like(weight[..., -shift:])), dim=-1)
        shift *= 2
    return total


def compute_per_head_advantages(advantages: Tensor, relevant: Tensor) -> Tensor:
    """A_head = A where the head is relevant, exactly 0 elsewhere: (...), (..., head) -> (..., head)."""
    if relevant.shape[:-1] != advantages.shape or relevant.dtype != torch.bool:
        raise ValueError(
            f"relevant is {relevant.dtype} {tuple(relevant.shape)}; "
            f"expected bool (*{tuple(advantages.shape)}, head)"
        )
    return torch.where(relevant, advantages.unsqueeze(-1), 0.0)


def masked_mean_std(x: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of x over `where`, both 0 when that is nowhere."""
    weight = where.to(x.dtype)
    count = weight.sum().clamp_min(1.0)
    mean = (x * weight).sum() / count
    variance = ((x - mean).square() * weight).sum() / count
    return mean, variance.sqrt()
