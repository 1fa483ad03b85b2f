"""Gradients in few numbers."""

import math

import pytest
import torch
from torch import Tensor, nn

from esper.kasmina.gradients import SeedGradientCollector, materialize_grad_stats


def _with_gradients(*values: list[float]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(len(value))) for value in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return parameters


def test_norm_and_health_of_healthy_gradients() -> None:
    stats = SeedGradientCollector().collect(_with_gradients([3.0, 0.0], [0.0, 4.0, 12.0]))
    assert stats.gradient_norm == pytest.approx(13.0)
    assert stats.gradient_health == 1.0
    assert stats.measured
    assert not stats.has_vanishing
    assert not stats.has_exploding


@pytest.mark.parametrize(
    ("values", "health", "vanishing", "exploding"),
    [
        (([1.0], [0.0]), 0.5, True, False),
        (([1.0], [1e-8], [0.0], [1.0]), 0.5, True, False),
        (([1.0], [101.0]), 0.5, False, True),
        (([1.0], [100.0]), 1.0, False, False),
        (([1.0], [math.nan], [math.inf], [0.0]), 0.25, True, True),
    ],
)
def test_a_tensor_that_vanishes_or_explodes_costs_its_share(
    values: tuple[list[float], ...], health: float, vanishing: bool, exploding: bool
) -> None:
    stats = SeedGradientCollector().collect(_with_gradients(*values))
    assert stats.gradient_health == pytest.approx(health)
    assert (stats.has_vanishing, stats.has_exploding) == (vanishing, exploding)


def test_without_gradients_nothing_was_measured() -> None:
    stats = SeedGradientCollector().collect([nn.Parameter(torch.ones(3))])
    assert (stats.gradient_norm, stats.gradient_health, stats.measured) == (0.0, 1.0, False)
    assert SeedGradientCollector().collect_async([]) is None


def test_many_seeds_are_read_at_once_in_their_order() -> None:
    collector = SeedGradientCollector()
    readings = [
        collector.collect_async(params)
        for params in (_with_gradients([3.0, 4.0]), [nn.Parameter(torch.ones(2))], _with_gradients([0.0]))
    ]
    first, missing, last = materialize_grad_stats(readings)
    assert (first.gradient_norm, missing.measured, last.has_vanishing) == (5.0, False, True)


def test_one_multi_tensor_norm_whatever_the_number_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    norm = torch._foreach_norm

    def counted(tensors: list[Tensor]) -> list[Tensor]:
        calls.append(len(tensors))
        return list(norm(tensors))

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    SeedGradientCollector().collect(_with_gradients(*[[1.0]] * 17))
    assert calls == [17]


def test_a_norm_at_the_threshold_has_not_vanished() -> None:
    collector = SeedGradientCollector(vanishing=1.0)
    assert [collector.collect(_with_gradients([norm])).has_vanishing for norm in (1.0, 0.5)] == [False, True]


def test_thresholds_must_be_in_order() -> None:
    with pytest.raises(ValueError, match=r"vanishing=2.0 must be >= 0 and below exploding=1.0"):
        SeedGradientCollector(vanishing=2.0, exploding=1.0)
