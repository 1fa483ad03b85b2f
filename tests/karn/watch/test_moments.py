"""Means and intervals that can be checked by hand or in a table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.karn.watch.state import Moments, pooled


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


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (7, 2.36462),
        (15, 2.13145),
        (63, 1.99834),
        (100_000, 1.95999),
    ],
)
def test_quantiles_of_student(freedom: int, expected: float) -> None:
    low, high = Moments(freedom + 1, 0.0, freedom * (freedom + 1.0)).interval or (math.nan, math.nan)
    assert (low, high) == pytest.approx((-expected, expected), rel=1e-5)  # from a table


@given(st.lists(st.floats(-1e3, 1e3), max_size=12), st.lists(st.floats(-1e3, 1e3), max_size=12))
def test_parts_pool_to_the_whole(first: list[float], second: list[float]) -> None:
    together, whole = pooled([of(*first), of(*second)]), of(*first, *second)
    assert together.count == whole.count
    assert together.total == pytest.approx(whole.total)
    assert together.squares == pytest.approx(whole.squares)
