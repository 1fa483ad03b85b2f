import numpy as np
import pytest

from esper.simic.statistics import interquartile_mean, mean_interval, probability_of_improvement

X = [[1, 2], [2, 2], [1, 1], [2, 1]]
Y = [[1, 1], [2, 2], [3, 3]]


def test_known_answers() -> None:
    assert np.mean(X) == np.median(X) == interquartile_mean(X) == 1.5
    assert np.mean(Y) == np.median(Y) == interquartile_mean(Y) == 2.0
    assert probability_of_improvement(X, Y) == pytest.approx(1 / 3)


def test_outliers_do_not_move_the_interquartile_mean() -> None:
    assert (
        interquartile_mean([0, 1, 2, 3, 4, 5, 6, 1e9])
        == interquartile_mean([-1e9, 1, 2, 3, 4, 5, 6, 7])
        == 3.5
    )


def test_improvement_is_antisymmetric_and_a_half_against_itself() -> None:
    assert probability_of_improvement(X, X) == 0.5
    assert probability_of_improvement(X, Y) + probability_of_improvement(Y, X) == pytest.approx(1.0)
    assert probability_of_improvement([[3.0]], [[1.0], [2.0]]) == 1.0


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="scores is empty"):
        interquartile_mean([])
    with pytest.raises(ValueError, match=r"scores_x has shape \(2,\); expected \(run, task\)"):
        probability_of_improvement([1, 2], Y)
    with pytest.raises(ValueError, match="scores_x has 1 tasks, scores_y 2"):
        probability_of_improvement([[1]], Y)


def test_the_interval_of_a_mean() -> None:
    rng = np.random.default_rng(7)
    values = rng.normal(3.0, 2.0, size=400)
    low, high = mean_interval(values)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert mean_interval(values) == (low, high)  # the draws are always the same
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="not empty"):
        mean_interval([])
