"""The features of hosts, all envs at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.leyline import LifecycleOp
from esper.tamiyo.observation_layout import HOST_FEATURES, span
from esper.tamiyo.scales import bound_in_place, by_percent, epochs, known, magnitude, symlog
from esper.tamiyo.tracker import TRACKED

Array = NDArray[np.float64]

_AT = {name: column for column, name in enumerate(HOST_FEATURES)}
_LEVELS = span(HOST_FEATURES, TRACKED[0], TRACKED[-1])
_LEVELS_KNOWN = span(HOST_FEATURES, f"{TRACKED[0]}_known", f"{TRACKED[-1]}_known")
_CHANGES = span(HOST_FEATURES, f"{TRACKED[0]}_change", f"{TRACKED[-1]}_change")
_SLOPES = span(HOST_FEATURES, f"{TRACKED[0]}_slope", f"{TRACKED[-1]}_slope")
_TRENDS_KNOWN = span(HOST_FEATURES, f"{TRACKED[0]}_trend_known", f"{TRACKED[-1]}_trend_known")
_GAPS = span(HOST_FEATURES, "loss_gap", "accuracy_gap")
_GAPS_KNOWN = span(HOST_FEATURES, "loss_gap_known", "accuracy_gap_known")
_BY_PERCENT = span(HOST_FEATURES, f"{TRACKED[0]}_change", "budget_left")
_LAST = slice(_AT["last_wait"], _AT["last_wait"] + len(LifecycleOp))
_OPERATIONS = np.eye(len(LifecycleOp))
_LOSSES = slice(TRACKED.index("train_loss"), None, 2)
_TRAIN, _VALIDATION = slice(0, 2), slice(2, 4)


class HostReading(NamedTuple):
    """A host in numbers after an epoch, beside its histories. Unknown is NaN."""

    epoch: int
    horizon: int
    training_samples: int
    plateau_epochs: int
    host_parameters: int
    parameter_budget: float
    gradient_norm: float
    last_operation: int


def symlog_losses(window: Array) -> None:
    """Losses have no scale of their own: from here on they count by symlog. (..., series), in place."""
    losses = window[..., : len(TRACKED)][..., _LOSSES]
    losses[:] = symlog(losses)


def write_host_features(
    readings: Array,
    levels: Array,
    change: Array,
    slope: Array,
    added_parameters: Array,
    out: NDArray[np.float32],
) -> None:
    """Into out (env, feature).

    readings                (env, field of HostReading)
    levels, change, slope   (env, TRACKED) now, over the last epoch, and per epoch of the window; NaN unknown
    added_parameters        (env,)
    """
    epoch, horizon, samples, plateau, host_parameters, budget, gradient_norm, last = readings.T
    epochs_left = np.maximum(horizon - epoch, 0.0)
    out[:, _AT["time_left"]] = epochs_left / horizon
    out[:, _AT["epochs_left"]] = epochs(epochs_left)
    out[:, _AT["training_samples"]] = np.log10(np.maximum(samples, 1.0)) - 3.0  # 1000 samples are 0
    out[:, _AT["plateau"]] = epochs(plateau)
    out[:, _AT["gradient_norm"]] = magnitude(gradient_norm)
    out[:, _AT["gradient_norm_known"]] = known(gradient_norm)
    out[:, _LEVELS] = levels
    out[:, _LEVELS_KNOWN] = known(levels)
    out[:, _CHANGES] = change
    out[:, _SLOPES] = slope
    out[:, _TRENDS_KNOWN] = known(slope)
    # Validation minus training: a host that overfits has a positive loss gap and a negative accuracy gap.
    out[:, _GAPS] = levels[:, _VALIDATION] - levels[:, _TRAIN]
    out[:, _GAPS_KNOWN] = known(out[:, _GAPS])
    out[:, _AT["added_parameters"]] = added_parameters / host_parameters
    out[:, _AT["budget_left"]] = (budget - added_parameters) / host_parameters
    out[:, _AT["budget_left_known"]] = known(budget)
    out[:, _BY_PERCENT] = by_percent(out[:, _BY_PERCENT])
    out[:, _LAST] = _OPERATIONS[last.astype(np.int64)]
    bound_in_place(out)
