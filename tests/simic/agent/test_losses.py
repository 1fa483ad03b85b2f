"""KNOWN_ANSWERS, "Clipped surrogate", "Value clipping", "KL"."""

import math

import pytest
import torch

from esper.simic.agent.losses import (
    clipped_surrogate,
    clipped_value_loss,
    joint_log_ratio,
    k3,
    mean_over,
    value_loss,
)

LOGITS = torch.tensor([[1.0, 1, 1], [2, 0, 0], [-1, -2, -3]])
OLD = torch.tensor([[1.0, 1, 1], [2, 0, 0], [-3, -2, -1]])
ACTIONS = torch.tensor([[0], [1], [2]])


def known_log_ratio() -> torch.Tensor:
    new = torch.log_softmax(LOGITS, -1).gather(1, ACTIONS)
    return (new - torch.log_softmax(OLD, -1).gather(1, ACTIONS)).squeeze(1)


@pytest.mark.parametrize(("sign", "expected"), [(1.0, -0.1711778), (-1.0, 0.193333)])
def test_known_surrogate(sign: float, expected: float) -> None:
    loss = clipped_surrogate(known_log_ratio(), sign * torch.tensor([0.3, 0.2, 0.1]), 0.2).mean()
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"),
    [(1.0, 1.0, -1.2), (-1.0, 1.0, -1 / math.e), (1.0, -1.0, math.e), (-1.0, -1.0, 0.8)],
)
def test_surrogate_corners(log_ratio: float, advantage: float, expected: float) -> None:
    loss = clipped_surrogate(torch.tensor([log_ratio]), torch.tensor([advantage]), 0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_first_gradient_is_the_plain_policy_gradient() -> None:
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.tensor([[0], [1], [2], [0], [1], [2], [0]])
    advantages = torch.randn(7, generator=torch.Generator().manual_seed(1))
    old = torch.log_softmax(logits, -1).gather(1, actions).squeeze(1)
    gradients = []
    for use_ratio in (True, False):
        leaf = logits.clone().requires_grad_()
        log_prob = torch.log_softmax(leaf, -1).gather(1, actions).squeeze(1)
        loss = clipped_surrogate(log_prob - old, advantages, 0.2) if use_ratio else -log_prob * advantages
        gradients.append(torch.autograd.grad(loss.mean(), leaf)[0])
    torch.testing.assert_close(gradients[0], gradients[1])


NEW_VALUES = torch.tensor([1.0, -1.0, 0.1])
TARGETS = torch.full((3,), 2.0)


def test_known_value_losses() -> None:
    pessimistic = clipped_value_loss(NEW_VALUES, torch.zeros(3), TARGETS, 0.2).mean()
    clipped = value_loss(NEW_VALUES.clamp(-0.2, 0.2), TARGETS).mean()
    plain = value_loss(NEW_VALUES, TARGETS).mean()
    known = [2.641667, 1.948333, 2.268333]
    assert [x.item() for x in (pessimistic, clipped, plain)] == pytest.approx(known, abs=1e-6)
    assert [2 * x.item() for x in (pessimistic, clipped, plain)] == pytest.approx(
        [5.283333, 3.896667, 4.536667], abs=1e-6
    )


def test_known_kl() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    log_ratio = q.log() - p.log()
    assert (p * -log_ratio).sum().item() == pytest.approx(0.0252672, abs=1e-6)  # KL(p || q) itself
    assert (p * k3(log_ratio)).sum().item() == pytest.approx(0.0252672, abs=1e-6)


def test_k3_is_never_negative_and_zero_at_ratio_one() -> None:
    log_ratio = torch.linspace(-5, 5, 101)
    assert (k3(log_ratio) >= 0).all()
    assert k3(torch.zeros(1)).item() == 0.0


def test_joint_log_ratio_sums_over_heads() -> None:
    assert joint_log_ratio(torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.5, 0.0, 1.0]])).tolist() == [1.5]


def test_mean_over_ignores_the_rest_even_nan() -> None:
    x = torch.tensor([1.0, 3.0, torch.nan])
    assert mean_over(x, torch.tensor([True, True, False])).item() == 2.0
    assert mean_over(x, torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="differ"):
        clipped_surrogate(torch.zeros(2), torch.zeros(3), 0.2)
    with pytest.raises(ValueError, match="differ"):
        value_loss(torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="differ"):
        clipped_value_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2), 0.2)
