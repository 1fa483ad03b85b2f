"""Estimators of KL(old || new) from actions drawn under the old policy (Schulman, 2020)."""

from torch import Tensor


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
