"""Changes over the last few epochs, where the numbers of an epoch may be missing."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def trend(window: Array) -> tuple[Array, Array]:
    """(change, slope), each (..., series), of a window (..., epoch, series), oldest first, NaN where unknown.

    change = x_t - x_t-1; slope = (x_t - x_t-n) / n, the mean change over the unbroken run of known epochs that
    ends now. NaN unless the last two are known. On four points the standard deviation of this slope is 5 % above
    that of least squares, and it needs no fit.
    """
    changes = (window[..., 1:, :] - window[..., :-1, :])[..., ::-1, :]  # the latest first
    in_run = np.logical_and.accumulate(np.isfinite(changes), axis=-2)
    steps = in_run.sum(axis=-2)
    total = np.where(in_run, changes, 0.0).sum(axis=-2)
    latest = in_run[..., 0, :]
    slope = np.where(latest, total / np.maximum(steps, 1), np.nan)
    return np.where(latest, changes[..., 0, :], np.nan), slope
