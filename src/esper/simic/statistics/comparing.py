"""Comparing arms that met the same hosts, and what such a comparison could have seen at all."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from esper.simic.statistics.summaries import Floats

_AXES = (-3, -2, -1)
_NORMAL = NormalDist()


def paired_difference(treatment: Floats, control: Floats) -> Floats:
    """The mean of treatment minus control on the same hosts. Scores are (..., member, instance, seed)."""
    difference: Floats = treatment.mean(axis=_AXES) - control.mean(axis=_AXES)
    return difference


def paired_improvement(treatment: Floats, control: Floats) -> Floats:
    """How often treatment beats control on the same host, ties counting half.

    With as many members each, member meets member; otherwise every member meets the mean of the others.
    """
    if treatment.shape[-3] != control.shape[-3]:
        control = control.mean(axis=-3, keepdims=True)
    better: Floats = (0.5 + 0.5 * np.sign(treatment - control)).mean(axis=_AXES)
    return better


def share_of_gap(treatment: Floats, low: Floats, high: Floats) -> Floats:
    """(treatment - low) / (high - low) of the means; NaN where there is no gap."""
    gap = paired_difference(high, low)
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Floats = np.where(gap > 0.0, paired_difference(treatment, low) / gap, np.nan)
    return share


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for the number of comparisons: step down from the smallest, never falling. (Holm, 1979.)"""
    for p_value in p_values:
        if not 0.0 <= p_value <= 1.0:
            raise ValueError(f"p_values has {p_value}; expected numbers from 0 to 1")
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, reached = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = reached
    return adjusted


def within_deviation(difference: Floats) -> float:
    """The standard deviation of paired differences (instance, seed) within an instance, pooled over instances."""
    if difference.ndim != 2 or difference.shape[1] < 2:
        raise ValueError(
            f"difference has shape {difference.shape}; expected (instance, seed) with 2 or more seeds"
        )
    return float(np.sqrt(difference.var(axis=1, ddof=1).mean()))


def power_of_pairs(difference: float, deviation: float, pairs: int, *, level: float = 0.05) -> float:
    """The chance that a true mean difference is found by a two-sided test over so many pairs."""
    if deviation <= 0.0:
        return 1.0 if difference else level
    shift, critical = difference / (deviation / sqrt(pairs)), _NORMAL.inv_cdf(1 - level / 2)
    return _NORMAL.cdf(shift - critical) + _NORMAL.cdf(-shift - critical)


def detectable_difference(deviation: float, pairs: int, *, power: float = 0.8, level: float = 0.05) -> float:
    """The smallest mean difference that so many pairs find with this chance."""
    return (_NORMAL.inv_cdf(1 - level / 2) + _NORMAL.inv_cdf(power)) * deviation / sqrt(pairs)
