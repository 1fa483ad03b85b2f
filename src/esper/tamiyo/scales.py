"""How raw numbers become features: bounded, and sensitive where decisions are made. NaN stays NaN."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Real = TypeVar("Real", np.float32, np.float64)

BOUND = 5.0
"""No feature is larger than this in size."""
_LEAST_NORM = 1e-12


def known(x: NDArray[Real]) -> NDArray[np.bool_]:
    """Whether a number was measured, and is one."""
    return np.isfinite(x)


def symlog(x: NDArray[Real]) -> NDArray[Real]:
    """sign(x) log(1 + |x|)"""
    return np.copysign(np.log1p(np.abs(x)), x)


def by_percent(x: NDArray[Real]) -> NDArray[Real]:
    """sign(x) log(1 + 100 |x|): for differences of accuracy and shares, where 0.01 matters. 1 gives 4.6."""
    return np.copysign(np.log1p(100.0 * np.minimum(np.abs(x), 1e9)), x)


def epochs(x: NDArray[Real]) -> NDArray[Real]:
    """log(1 + x) / 2: 20 epochs give 1.5, 150 give 2.5."""
    half: NDArray[Real] = np.log1p(x) * x.dtype.type(0.5)
    return half


def magnitude(norm: NDArray[Real]) -> NDArray[Real]:
    """log10 of a norm; 0 counts as very small."""
    return np.log10(np.maximum(norm, _LEAST_NORM))


def bound_in_place(features: NDArray[np.float32]) -> None:
    """Within BOUND, and 0 where unknown (its validity bit says so)."""
    np.copyto(features, 0.0, where=~np.isfinite(features))
    np.clip(features, -BOUND, BOUND, out=features)
