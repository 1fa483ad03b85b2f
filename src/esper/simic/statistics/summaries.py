"""What many scores come to: the mean of the middle half, how often one is better, how many reach a threshold."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of the middle half of all scores, whatever run or task they come from.

    A quarter of them, rounded down, is left out at each end. (Agarwal et al., 2021.)
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.size == 0:
        raise ValueError("scores is empty: there is nothing to average")
    return float(interquartile_means(array.reshape(1, -1))[0])


def interquartile_means(scores: Floats) -> Floats:
    """(..., score) -> (...)"""
    ordered = np.sort(scores, axis=-1)
    count = ordered.shape[-1]
    cut = count // 4
    means: Floats = ordered[..., cut : count - cut].mean(axis=-1)
    return means


def probability_of_improvement(scores_x: ArrayLike, scores_y: ArrayLike) -> float:
    """P(X > Y) + P(X = Y) / 2 over all pairs of runs, averaged over tasks. Scores are (run, task)."""
    x, y = _by_run_and_task("scores_x", scores_x), _by_run_and_task("scores_y", scores_y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"scores_x has {x.shape[1]} tasks, scores_y {y.shape[1]}; expected the same tasks")
    difference = x[:, None, :] - y[None, :, :]  # (run of x, run of y, task)
    return float((0.5 + 0.5 * np.sign(difference)).mean())


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """(threshold,): the share of all scores that reach each threshold."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    if ordered.size == 0:
        raise ValueError("scores is empty: it has no profile")
    below = np.searchsorted(ordered, np.asarray(thresholds, dtype=np.float64), side="left")
    shares: Floats = 1.0 - below / ordered.size
    return shares


BOOTSTRAP_DRAWS = 2000


def mean_interval(values: ArrayLike) -> tuple[float, float]:
    """The 95 % interval of a mean: the middle of the means of values drawn anew, always with the same draws."""
    drawn_from = np.asarray(values, dtype=np.float64)
    if drawn_from.ndim != 1 or drawn_from.size == 0:
        raise ValueError(f"values has shape {drawn_from.shape}; expected one dimension, not empty")
    picks = np.random.default_rng(0).integers(drawn_from.size, size=(BOOTSTRAP_DRAWS, drawn_from.size))
    low, high = np.quantile(drawn_from[picks].mean(axis=1), (0.025, 0.975)).tolist()
    return low, high


def _by_run_and_task(name: str, scores: ArrayLike) -> Floats:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; expected (run, task), neither empty")
    return array
