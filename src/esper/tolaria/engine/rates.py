"""Learning rates from step to step, as factors of the task's own.

With p the share of the task's epochs that has been trained when a step begins,

    cosine          (1 + cos(pi p)) / 2
    one_cycle       from 0.04 in a straight line to 1 at p = 0.25, then a cosine down to 0 (Smith and Topin, 2019)
    warm_up_cosine  the same with its peak at p = 0.05

A run that goes on after the task's epochs stays at the factor of their last step.
"""

import math

from esper.tolaria.tasks.task import RateSchedule

WARM_UP = {"one_cycle": 0.25, "warm_up_cosine": 0.05}
"""Schedule -> the share of the epochs in which the rate rises."""
COLD = 0.04


def rate_factors(schedule: RateSchedule, epoch: int, steps: int, epochs: int) -> list[float] | None:
    """One for each of the `steps` of epoch `epoch` (from 0); None if the rate never changes."""
    if schedule == "constant":
        return None
    last = (epochs * steps - 1) / (epochs * steps)
    return [rate_factor(schedule, min((epoch + step / steps) / epochs, last)) for step in range(steps)]


def rate_factor(schedule: RateSchedule, progress: float) -> float:
    """The factor at a share of the task's epochs, 0..1."""
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return _down(progress)
    peak = WARM_UP[schedule]
    if progress < peak:
        return COLD + (1.0 - COLD) * progress / peak
    return _down((progress - peak) / (1.0 - peak))


def _down(share: float) -> float:
    """From 1 to 0."""
    return (1.0 + math.cos(math.pi * share)) / 2.0
