"""B6: the adaptive entropy floor. B7: value diagnostics."""

import math
from dataclasses import fields, replace

import pytest
import torch

from esper.simic.agent import PPOConfig
from esper.simic.agent.losses import entropy_coefficient, entropy_floor, legal_counts
from esper.simic.agent.types import ValueDiagnostics
from esper.simic.agent.update_metrics import (
    explained_variance,
    normalized_rmse,
    pack_value_diagnostics,
    unpack_value_diagnostics,
)

ADAPTIVE = PPOConfig(
    entropy_coef=0.05, entropy_coef_min=0.01, entropy_anneal_steps=10, adaptive_entropy_floor=True
)


def legal(count: int, total: int = 7) -> torch.Tensor:
    return torch.arange(total) < count


def floor_of(config: PPOConfig, mask: torch.Tensor) -> list[float] | float:
    floor: list[float] | float = entropy_floor(config, *legal_counts(mask)).tolist()
    return floor


def coefficient_of(config: PPOConfig, mask: torch.Tensor | None, updates: int) -> float:
    return float(entropy_coefficient(config, *legal_counts(mask), updates, config.entropy_coef))


def test_known_floor() -> None:
    floor = floor_of(ADAPTIVE, legal(2))
    assert floor == pytest.approx(0.0281, abs=5e-5)
    assert floor == pytest.approx(0.01 * math.log(7) / math.log(2), rel=1e-5)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_no_choice_or_every_choice_has_the_plain_floor(count: int) -> None:
    assert floor_of(ADAPTIVE, legal(count)) == pytest.approx(0.01)


def test_the_floor_is_at_most_three_times_the_minimum() -> None:
    assert floor_of(ADAPTIVE, legal(2, 1000)) == pytest.approx(0.03)


def test_off_by_default() -> None:
    assert floor_of(PPOConfig(), legal(2)) == pytest.approx(0.01)


def test_batched_masks_give_a_tensor() -> None:
    assert floor_of(ADAPTIVE, torch.stack((legal(2), legal(7)))) == pytest.approx([0.02807, 0.01], abs=1e-5)


@pytest.mark.parametrize(("updates", "expected"), [(0, 0.05), (5, 0.03), (10, 0.01), (99, 0.01)])
def test_the_coefficient_falls_linearly_to_the_floor(updates: int, expected: float) -> None:
    assert coefficient_of(ADAPTIVE, None, updates) == pytest.approx(expected)


def test_the_coefficient_never_falls_below_the_floor() -> None:
    low = PPOConfig(entropy_coef=0.001, entropy_coef_min=0.01)
    assert coefficient_of(low, None, 0) == pytest.approx(0.01)
    assert coefficient_of(ADAPTIVE, legal(2), 10) == pytest.approx(0.02807, abs=1e-5)


@pytest.mark.parametrize("updates", [0, 5, 10, 99])
def test_a_coefficient_of_zero_is_no_bonus_whatever_the_floor(updates: int) -> None:
    assert coefficient_of(replace(ADAPTIVE, entropy_coef=0.0), legal(2), updates) == 0.0
    n_legal, n_total = legal_counts(torch.stack((legal(2), legal(2))))
    by_head = entropy_coefficient(ADAPTIVE, n_legal, n_total, updates, torch.tensor([0.0, 0.05]))
    assert by_head[0] == 0.0
    assert by_head[1] >= 0.028


def test_a_perfect_critic_explains_everything() -> None:
    returns = torch.randn(11, generator=torch.Generator().manual_seed(0))
    value, low = explained_variance(returns, returns)
    assert value.item() == 1.0
    assert not low
    assert normalized_rmse(returns, returns).item() == 0.0
    # A constant error is invisible to explained variance, not to nRMSE.
    assert explained_variance(returns + 5, returns)[0].item() == pytest.approx(1.0, abs=1e-5)
    assert normalized_rmse(returns + 5, returns).item() > 4


def test_constant_returns_are_flagged_and_unknown() -> None:
    value, low = explained_variance(torch.randn(5), torch.ones(5))
    assert low
    assert value.isnan()


def test_diagnostics_come_from_one_vector() -> None:
    values, returns = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 5.0])
    packed = pack_value_diagnostics(values.bfloat16(), returns, torch.tensor(0.5), torch.tensor(0.05))
    assert packed.dtype == torch.float32
    result = unpack_value_diagnostics(packed.tolist())
    assert len(packed) == len(fields(ValueDiagnostics))
    assert (result.value_pred_mean, result.return_min, result.return_max) == (2.0, 2.0, 5.0)
    assert result.value_mse_before == pytest.approx(5 / 3)
    assert result.advantage_mean_prenorm == 0.5
    assert result.advantage_std_prenorm == pytest.approx(0.05)
    assert result.explained_variance == pytest.approx(1 - (2 / 3) / 2, abs=1e-5)  # errors 1, 0, 2
    unknown = unpack_value_diagnostics(
        pack_value_diagnostics(values, torch.ones(3), torch.tensor(0.0), torch.tensor(1.0)).tolist()
    )
    assert unknown.explained_variance is None
    assert unknown.value_nrmse is None
    assert unknown.explained_variance_low_return_variance
