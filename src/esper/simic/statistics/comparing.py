"""Comparing arms that met the same hosts, and what such a comparison could have seen at all."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from esper.simic.statistics.summaries import Floats

_NORMAL = NormalDist()


def paired_difference(treatment: Floats, control: Floats) -> Floats:
    """Treatment minus control, of means over the same hosts (...)."""
    difference: Floats = treatment - control
    return difference


def share_of_gap(treatment: Floats, low: Floats, high: Floats) -> Floats:
    """(treatment - low) / (high - low), of means (...); NaN where there is no gap."""
    gap = np.asarray(high - low)
    share: Floats = np.full(gap.shape, np.nan)
    np.divide(treatment - low, gap, out=share, where=gap > 0.0)
    return share


def wins(treatment: Floats, control: Floats) -> Floats:
    """(member, instance, seed): 1 where treatment beats control on the same host, 0.5 where they tie, 0 elsewhere.

    With as many members each, member meets member; otherwise every member meets the mean of the others.
    """
    if len(treatment) != len(control):
        control = control.mean(axis=0, keepdims=True)
    won: Floats = 0.5 + 0.5 * np.sign(treatment - control)
    return won


def the_mean(mean: Floats) -> Floats:
    """The statistic of means that leaves them as they are."""
    return mean


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
