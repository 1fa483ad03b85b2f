"""The terms of implicit Q-learning as pure functions (Kostrikov, Nair and Levine, 2021)."""

import torch
from torch import Tensor

from esper.simic.agent.losses import require_same_shape

MOST_WEIGHT = 100.0
"""A step counts at most this many times in the policy's loss."""


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """L = |tau - 1(u < 0)| u^2 with u = Q - V, elementwise (eq. 5).

    tau 0.5 is half the squared error: V is then the mean of Q over what was done. Towards 1 it is the best of it.
    """
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    return weight * error.square()


def q_target(reward: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """r + gamma V(s'), elementwise (eq. 6); V is 0 beyond a true end."""
    require_same_shape(reward=reward, next_value=next_value)
    return reward + gamma * next_value


def advantage_weight(advantage: Tensor, beta: float) -> Tensor:
    """min(exp(beta A), 100), elementwise (eq. 7); beta 0 is 1 everywhere, which is cloning."""
    return (beta * advantage).exp().clamp_max(MOST_WEIGHT)
