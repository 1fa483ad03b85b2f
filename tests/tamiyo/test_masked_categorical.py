"""KNOWN_ANSWERS, "Masked categorical", and C11 for a single head."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.tamiyo import MaskedCategorical
from esper.tamiyo.distributions import FactoredDistribution, LayoutTensors
from esper.tamiyo.layout import discrete_layout


def logits_of(*probs: float) -> torch.Tensor:
    return torch.tensor(probs).clamp_min(torch.finfo(torch.float32).tiny).log()


@pytest.mark.parametrize(
    ("probs", "expected"), [((0.2, 0.2, 0.6), [0.0, 0.25, 0.75]), ((1.0, 0.0, 0.0), [0.0, 0.5, 0.5])]
)
def test_probability_moves_to_the_legal_choices(probs: tuple[float, ...], expected: list[float]) -> None:
    distribution = MaskedCategorical(logits_of(*probs), torch.tensor([False, True, True]))
    torch.testing.assert_close(distribution.probs, torch.tensor(expected))
    assert distribution.probs[0] == 0.0


@pytest.mark.parametrize("legal", [1, 2, 5, 7])
def test_uniform_logits_have_the_entropy_of_the_legal_choices(legal: int) -> None:
    mask = torch.arange(7) < legal
    entropy = MaskedCategorical(torch.zeros(7), mask).entropy()
    assert entropy.exp() == pytest.approx(legal, abs=1e-5)


def test_one_legal_choice_is_certain() -> None:
    distribution = MaskedCategorical(torch.tensor([3.0, -50.0, 9.0]), torch.tensor([False, True, False]))
    assert distribution.probs[1] == 1.0
    assert distribution.entropy() == 0.0
    assert distribution.log_prob(torch.tensor(1)) == 0.0


def test_many_categories_with_steep_logits_do_not_raise() -> None:
    logits = torch.full((992,), -17.0)
    logits[0] = 0.0
    distribution = MaskedCategorical(logits, torch.ones(992, dtype=torch.bool))
    assert distribution.sample(torch.Generator().manual_seed(0)).shape == ()
    assert math.isfinite(distribution.entropy())


def test_gradients_stay_finite_under_the_mask() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [80.0, -80.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    distribution = MaskedCategorical(logits, mask)
    (distribution.entropy().sum() + distribution.log_prob(torch.tensor([0, 1])).sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[~mask].abs().max() == 0.0


@pytest.mark.parametrize("floor", [0.0, 0.05])
def test_every_legal_logit_has_a_gradient_though_one_action_has_nearly_everything(floor: float) -> None:
    logits = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        logits[0] = math.log(0.999 / (0.001 / 3))
    distribution = MaskedCategorical(logits, torch.ones(4, dtype=torch.bool), floor=floor)
    assert torch.softmax(logits, 0)[0].item() == pytest.approx(0.999)
    (-distribution.log_prob(torch.tensor(0))).backward()
    assert logits.grad is not None
    assert (logits.grad.abs() > 1e-5).all()


def test_all_masked_row_raises_and_names_the_row() -> None:
    mask = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match=r"mask row \[1\] has no legal choice"):
        MaskedCategorical(torch.zeros(2, 2), mask)


def test_floor_is_a_mixture_with_uniform_over_the_legal() -> None:
    mask = torch.tensor([True, True, False, True])
    plain = MaskedCategorical(torch.tensor([5.0, 0.0, 9.0, -5.0]), mask)
    floored = MaskedCategorical(torch.tensor([5.0, 0.0, 9.0, -5.0]), mask, floor=0.3)
    torch.testing.assert_close(floored.probs, 0.7 * plain.probs + 0.3 * mask / 3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 11))
def test_masked_actions_are_never_drawn(seed: int, choices: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(31, choices, generator=generator) < 0.3
    mask[:, 1] |= ~mask.any(-1)
    distribution = MaskedCategorical(torch.randn(31, choices, generator=generator) * 10, mask)
    drawn = distribution.sample(generator)
    assert mask.gather(1, drawn.unsqueeze(1)).all()
    torch.testing.assert_close(distribution.probs.sum(-1), torch.ones(31))


def test_samples_follow_the_probabilities() -> None:
    probs = torch.tensor([0.1, 0.6, 0.3])
    distribution = MaskedCategorical(probs.log().expand(20000, 3), torch.ones(20000, 3, dtype=torch.bool))
    counts = torch.bincount(distribution.sample(torch.Generator().manual_seed(3)), minlength=3) / 20000
    torch.testing.assert_close(counts, probs, atol=0.015, rtol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_best_score_of_every_row_must_be_finite(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [bad, bad], [1.0, 0.0]])
    constants = LayoutTensors(discrete_layout(2), torch.device("cpu"))
    mask = constants.layout.all_legal(3)
    assert FactoredDistribution(constants, logits[::2], mask[::2]).mode().tolist() == [[1], [0]]
    with pytest.raises(ValueError, match=r"row \[1, 0\] has no legal choice, or its logits are not finite"):
        FactoredDistribution(constants, logits, mask).mode()
