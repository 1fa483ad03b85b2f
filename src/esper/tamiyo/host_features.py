"""The features of hosts, all envs at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.leyline import LifecycleOp
from esper.tamiyo.observation_layout import HOST_FEATURES, span
from esper.tamiyo.scales import bounded, by_percent, epochs, known, magnitude, symlog
from esper.tamiyo.tracker import TRACKED
from esper.tamiyo.trends import trend

Array = NDArray[np.float64]

_TIME = span(HOST_FEATURES, "time_left", "training_samples")
_LEVELS = span(HOST_FEATURES, TRACKED[0], TRACKED[-1])
_LEVELS_KNOWN = span(HOST_FEATURES, f"{TRACKED[0]}_known", f"{TRACKED[-1]}_known")
_CHANGES = span(HOST_FEATURES, f"{TRACKED[0]}_change", f"{TRACKED[-1]}_change")
_SLOPES = span(HOST_FEATURES, f"{TRACKED[0]}_slope", f"{TRACKED[-1]}_slope")
_TRENDS_KNOWN = span(HOST_FEATURES, f"{TRACKED[0]}_trend_known", f"{TRACKED[-1]}_trend_known")
_GAPS = span(HOST_FEATURES, "loss_gap", "accuracy_gap")
_GAPS_KNOWN = span(HOST_FEATURES, "loss_gap_known", "accuracy_gap_known")
_SIZES = span(HOST_FEATURES, "plateau", "gradient_norm_known")
_LAST = span(HOST_FEATURES, "last_wait", f"last_{LifecycleOp(len(LifecycleOp) - 1).name.lower()}")
_OPERATIONS = np.eye(len(LifecycleOp))
# Validation minus training: a loss gap is positive and an accuracy gap negative when the host overfits.
_TRAIN = [TRACKED.index("train_loss"), TRACKED.index("train_accuracy")]
_VALIDATION = [TRACKED.index("validation_loss"), TRACKED.index("validation_accuracy")]
_LOSSES = [TRACKED.index("train_loss"), TRACKED.index("validation_loss")]


class HostReading(NamedTuple):
    """A host in numbers after an epoch, beside its window of histories. Unknown is NaN."""

    epoch: int
    horizon: int
    training_samples: int
    plateau_epochs: int
    host_parameters: int
    parameter_budget: float
    gradient_norm: float
    last_operation: int


def write_host_features(
    readings: Array, window: Array, added_parameters: Array, out: NDArray[np.float32]
) -> None:
    """readings (env, field of HostReading), window (env, epoch, TRACKED), added (env,) -> out (env, feature)."""
    epoch, horizon, samples, plateau, host_parameters, budget, gradient_norm, last = readings.T
    epochs_left = np.maximum(horizon - epoch, 0.0)
    out[:, _TIME] = bounded(
        np.stack(
            (epochs_left / horizon, epochs(epochs_left), np.log10(np.maximum(samples, 1.0)) - 3.0), axis=-1
        )
    )
    window = window.copy()
    window[..., _LOSSES] = symlog(window[..., _LOSSES])
    levels = window[:, -1]
    change, slope = trend(window)
    out[:, _LEVELS], out[:, _LEVELS_KNOWN] = bounded(levels), known(levels)
    out[:, _CHANGES], out[:, _SLOPES] = bounded(by_percent(change)), bounded(by_percent(slope))
    out[:, _TRENDS_KNOWN] = known(slope)
    gaps = levels[:, _VALIDATION] - levels[:, _TRAIN]
    out[:, _GAPS], out[:, _GAPS_KNOWN] = bounded(by_percent(gaps)), known(gaps)
    budget_left = by_percent((budget - added_parameters) / host_parameters)
    norm = magnitude(gradient_norm)
    out[:, _SIZES] = bounded(
        np.stack(
            (
                epochs(plateau),
                by_percent(added_parameters / host_parameters),
                budget_left,
                known(budget_left),
                norm,
                known(norm),
            ),
            axis=-1,
        )
    )
    out[:, _LAST] = _OPERATIONS[last.astype(np.int64)]
