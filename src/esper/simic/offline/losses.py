"""The terms of implicit Q-learning as pure functions (Kostrikov, Nair and Levine, 2021)."""

import torch
from torch import Tensor

from esper.simic.agent.losses import require_same_shape

MOST_SPREADS = 10.0
"""Returns count up to so many spreads from their median."""
MOST_WEIGHT = 100.0
"""A step counts at most this many times in the policy's loss."""


def return_bounds(returns: Tensor) -> tuple[float, float]:
    """The median of returns (episode,) plus and minus 10 spreads, half of what the middle 68 % of them span.

    Where most are the same, as of waiting, the spread is the median distance of the others.

    One host of the toy in a hundred is rolled back, and costs more than ten times what the best growth brings. By
    squares its return would be nearly all that Q learns from; bounded it is the worst of all, and no more than that.
    """
    low, median, high = (
        returns.double().quantile(returns.new_tensor([0.16, 0.5, 0.84], dtype=torch.float64)).tolist()
    )
    spread = (high - low) / 2.0
    if spread <= 0.0:
        distance = (returns.double() - median).abs()
        others = distance[distance > 0.0]
        spread = float(others.median()) if len(others) else 1e-6
    return median - MOST_SPREADS * spread, median + MOST_SPREADS * spread


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


def rareness(log_prob: Tensor, balance: float) -> Tensor:
    """mu(a | s)^-balance over its mean, elementwise: rare actions count as if they had been done more often.

    A weight of state and action alone leaves what Q is to be as it is, and changes what is learned first. It is 1
    where a probability (step,) is not on record (NaN), with the mean over the others, and everywhere with balance 0.
    """
    if balance == 0.0:
        return torch.ones_like(log_prob)
    weight = (-balance * log_prob).exp().clamp_max(MOST_WEIGHT)
    return (weight / weight.nanmean()).nan_to_num(nan=1.0)


def lambda_target(reward: Tensor, next_value: Tensor, length: Tensor, gamma: float, trace: float) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V(s_t+1) + lambda G_t+1) within each episode, G = r + gamma V at its last step.

    reward, next_value  (step,), episodes end to end; V is 0 beyond a true end
    length              (episode,)
    trace               lambda: 0 is `q_target`, 1 is what was paid until the end

    Worth travels along what was recorded at once, instead of a step an update; the more so, the more of what was done
    later counts for what is done now.
    """
    target = q_target(reward, next_value, gamma)
    if trace == 0.0:
        return target
    ends = length.cumsum(0)
    for back in range(1, int(length.max())):
        step = (ends - 1 - back)[length > back]  # so many steps before the last
        target[step] += gamma * trace * (target[step + 1] - next_value[step])
    return target


def advantage_weight(advantage: Tensor, beta: float) -> Tensor:
    """min(exp(beta A), 100), elementwise (eq. 7); beta 0 is 1 everywhere, which is cloning."""
    return (beta * advantage).exp().clamp_max(MOST_WEIGHT)
