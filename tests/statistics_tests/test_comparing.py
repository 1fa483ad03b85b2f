"""Comparisons: known answers, a planted copy and a planted point, and the power to find it."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from esper.statistics import (
    Floats,
    Resamples,
    detectable_difference,
    holm,
    paired_difference,
    share_of_gap,
    wins,
    within_deviation,
)

INSTANCES, SEEDS = 7, 8
DEVIATION = 0.03
"""Of paired differences on the `cpu` suite, about."""


def test_holm_known_answer() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"p_values has 1\.5"):
        holm([1.5])


def test_ties_count_half() -> None:
    treatment = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    assert wins(treatment, np.array([[[0.0, 2.0, 4.0, 4.0]]])).tolist() == [[[1.0, 0.5, 0.0, 0.5]]]
    control = np.array([[[1.0, 1.0, 1.0, 1.0]], [[3.0, 3.0, 3.0, 3.0]]])  # a mean of 2
    assert wins(treatment, control).tolist() == [[[0.0, 0.5, 1.0, 1.0]]]
    assert wins(control, control + 1).tolist() == [[[0.0] * 4]] * 2


def test_the_known_probability_that_one_score_exceeds_another() -> None:
    x = np.array([[1.0, 2.0], [2.0, 2.0], [1.0, 1.0], [2.0, 1.0]])  # (run, task)
    y = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert wins(x[:, None], y[None]).mean() == pytest.approx(1 / 3)  # every run of x against every one of y


def test_the_share_of_a_gap() -> None:
    low, high = np.array([0.5, 0.5]), np.array([0.7, 0.5])
    shares = share_of_gap(np.array([0.6, 0.6]), low, high)
    assert shares[0] == pytest.approx(0.5)
    assert math.isnan(shares[1])
    assert share_of_gap(np.array(0.4), np.array(0.5), np.array(0.7)) == pytest.approx(-0.5)


def test_the_deviation_is_within_instances() -> None:
    assert within_deviation(np.array([[0.0, 2.0], [10.0, 12.0]])) == pytest.approx(math.sqrt(2))
    with pytest.raises(ValueError, match="2 or more seeds"):
        within_deviation(np.zeros((3, 1)))


def power_of_pairs(difference: float, deviation: float, pairs: int) -> float:
    """The chance that a true mean difference is found by a two-sided test at 5 % over so many pairs."""
    normal = NormalDist()
    shift, critical = difference / (deviation / math.sqrt(pairs)), normal.inv_cdf(0.975)
    return normal.cdf(shift - critical) + normal.cdf(-shift - critical)


def test_power_known_answers() -> None:
    assert power_of_pairs(0.0, 1.0, 10) == pytest.approx(0.05)
    assert power_of_pairs(1.959964, 1.0, 1) == pytest.approx(0.5, abs=1e-4)
    least = detectable_difference(0.03, 64)
    assert power_of_pairs(least, 0.03, 64) == pytest.approx(0.8, abs=1e-4)


def _planted(rng: np.random.Generator, difference: float) -> tuple[Floats, Floats]:
    """An arm, and one that is better by so much on average."""
    static = rng.normal(0.6, 0.1, (1, INSTANCES, 1)) + rng.normal(0.0, 0.02, (1, INSTANCES, SEEDS))
    return static, static + rng.normal(difference, DEVIATION, static.shape)


def test_a_copy_is_no_difference() -> None:
    static, _ = _planted(np.random.default_rng(0), 0.0)
    estimate = Resamples(INSTANCES, SEEDS).estimate_of_means(paired_difference, static.copy(), static)
    assert estimate.sign == 0
    assert (estimate.value, estimate.low, estimate.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("difference", [0.0, 0.01])
def test_a_planted_point_is_found_as_often_as_the_power_says(difference: float) -> None:
    rng, trials, found = np.random.default_rng(5), 400, 0
    for trial in range(trials):
        static, better = _planted(rng, difference)
        estimate = Resamples(INSTANCES, SEEDS, draws=500, seed=trial).estimate_of_means(
            paired_difference, better, static
        )
        found += estimate.sign != 0
    power = power_of_pairs(difference, DEVIATION, INSTANCES * SEEDS)
    assert power == pytest.approx(0.05 if difference == 0.0 else 0.70, abs=0.01)
    noise = math.sqrt(power * (1 - power) / trials)
    assert found / trials == pytest.approx(power, abs=3 * noise + 0.02)
