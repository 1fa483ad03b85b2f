import numpy as np
import pytest

from esper.statistics import interquartile_mean, mean_interval, performance_profile

X = [1, 2, 2, 2, 1, 1, 2, 1]
Y = [1, 1, 2, 2, 3, 3]


def test_known_answers() -> None:
    assert np.mean(X) == np.median(X) == interquartile_mean(X) == 1.5
    assert np.mean(Y) == np.median(Y) == interquartile_mean(Y) == 2.0


def test_outliers_do_not_move_the_interquartile_mean() -> None:
    assert (
        interquartile_mean([0, 1, 2, 3, 4, 5, 6, 1e9])
        == interquartile_mean([-1e9, 1, 2, 3, 4, 5, 6, 7])
        == 3.5
    )
    with pytest.raises(ValueError, match="scores is empty"):
        interquartile_mean([])


def test_interquartile_means_of_many_rows_are_those_of_each() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 3, 11))
    means = interquartile_mean(rows)
    assert means.shape == (5, 3)
    assert means[4, 1] == pytest.approx(interquartile_mean(rows[4, 1]))


def test_a_profile_is_the_share_that_reaches_a_threshold() -> None:
    shares = performance_profile([[0.1, 0.2], [0.3, 0.3]], [0.0, 0.1, 0.15, 0.3, 0.31])
    assert shares.tolist() == [1.0, 1.0, 0.75, 0.5, 0.0]
    with pytest.raises(ValueError, match="no profile"):
        performance_profile([], [0.0])


def test_the_interval_of_a_mean() -> None:
    rng = np.random.default_rng(7)
    values = rng.normal(3.0, 2.0, size=400)
    found = mean_interval(values)
    assert found is not None
    low, high = found
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert mean_interval(values) == (low, high)  # the draws are always the same
    assert mean_interval([0.5] * 6) == (0.5, 0.5)
    assert mean_interval([0.5] * 5) is mean_interval([0.5]) is None
    with pytest.raises(ValueError, match="not empty"):
        mean_interval([])
