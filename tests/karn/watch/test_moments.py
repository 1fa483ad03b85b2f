"""Means and intervals that can be checked by hand or against scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esper.karn.watch.moments import Moments, pooled, t_quantile


def of(*values: float | None) -> Moments:
    moments = Moments()
    for value in values:
        moments.add(value)
    return moments


def test_known_answers() -> None:
    assert of().mean is None
    assert of(None, None).mean is None
    assert of(3.0, None).mean == 3.0
    assert of(3.0).interval is None  # one says nothing of the spread
    assert of(2.0, 2.0, 2.0).interval == (2.0, 2.0)
    low, high = of(1.0, 2.0, 3.0).interval or (math.nan, math.nan)
    assert (low, high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


def test_what_is_no_number_does_not_count() -> None:
    assert of(math.nan, math.inf, -math.inf, 1e300, 1.0) == of(1.0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 15, 63, 1000])
def test_quantiles_of_student(freedom: int) -> None:
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-2)


@given(st.lists(st.floats(-1e3, 1e3), max_size=12), st.lists(st.floats(-1e3, 1e3), max_size=12))
def test_parts_pool_to_the_whole(first: list[float], second: list[float]) -> None:
    together, whole = pooled([of(*first), of(*second)]), of(*first, *second)
    assert together.count == whole.count
    assert together.total == pytest.approx(whole.total)
    assert together.squares == pytest.approx(whole.squares)
