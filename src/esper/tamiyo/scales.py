"""How raw numbers become features: bounded, and sensitive where decisions are made. NaN stays NaN."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BOUND = 5.0
"""No feature is larger than this in size."""
_LEAST_NORM = 1e-12


def known(x: Array) -> NDArray[np.bool_]:
    """Whether a number was measured, and is one."""
    return np.isfinite(x)


def symlog(x: Array) -> Array:
    """sign(x) log(1 + |x|)"""
    return np.copysign(np.log1p(np.abs(x)), x)


def by_percent(x: Array) -> Array:
    """sign(x) log(1 + 100 |x|): for differences of accuracy and shares, where 0.01 matters. 1 gives 4.6."""
    return np.copysign(np.log1p(100.0 * np.minimum(np.abs(x), 1e9)), x)


def epochs(x: Array) -> Array:
    """log(1 + x) / 2: 20 epochs give 1.5, 150 give 2.5."""
    return np.log1p(x) / 2


def magnitude(norm: Array) -> Array:
    """log10 of a norm; 0 counts as very small."""
    return np.log10(np.maximum(norm, _LEAST_NORM))


def bounded(x: Array) -> Array:
    """x within BOUND, and 0 where it is unknown (its validity bit says so)."""
    return np.clip(np.where(np.isfinite(x), x, 0.0), -BOUND, BOUND)
