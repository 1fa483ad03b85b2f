"""How scores are summed up and compared: robustly, in pairs, with intervals that know where noise comes from."""

from esper.simic.statistics.bootstrap import Estimate, Resamples, Scores, two_sided_p
from esper.simic.statistics.comparing import (
    detectable_difference,
    holm,
    paired_difference,
    power_of_pairs,
    share_of_gap,
    the_mean,
    wins,
    within_deviation,
)
from esper.simic.statistics.summaries import (
    interquartile_mean,
    interquartile_means,
    mean_interval,
    performance_profile,
    probability_of_improvement,
)

__all__ = [
    "Estimate",
    "Resamples",
    "Scores",
    "detectable_difference",
    "holm",
    "interquartile_mean",
    "interquartile_means",
    "mean_interval",
    "paired_difference",
    "performance_profile",
    "power_of_pairs",
    "probability_of_improvement",
    "share_of_gap",
    "the_mean",
    "two_sided_p",
    "wins",
    "within_deviation",
]
