"""Units that travel: a host as ratios to its own beginning and to the noise of its validation.

A loss of 1 is poor with two classes and good with fifty, 60 % accuracy is little of two classes and much of ten, and
a gradient norm says more about a network's size and loss than about its state. With `observation_units="ratios"`

    losses                      are over the validation loss that the host began at
    accuracies                  are the share of the way from what it began at to 1: (p - p_0) / (1 - p_0)
    changes of accuracy, contributions, probes
                                are over the standard error of validation accuracy, sqrt(p (1 - p) / n)
    the host's gradient norm    is over its first one
    a seed's                    is over the host's, each over the root of its parameters
    epochs                      are those of a run of 20, but for `epochs_left`

before they become features. What is a ratio already stays: parameters and budget over the host's, time left. So the
loss may be scaled, and gradients, and the parameters of host and seeds together: the observation is the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tamiyo.features import (
    FIELD,
    HOST_FEATURES,
    HOST_FEATURES_OF_RATIOS,
    SLOT_FEATURES,
    SLOT_FEATURES_OF_RATIOS,
    HostReading,
    bound_in_place,
    by_percent,
)
from esper.tamiyo.tracker import TRACKED, Origin

Array = NDArray[np.float64]

USUAL_EPOCHS = 20
"""Of the run that epochs are counted in."""
TYPICAL_SAMPLES = 1000
"""Stand for a validation set of unknown size."""
ONE_NOISE = 0.03
"""What a difference as large as the noise counts as: about that of a few hundred samples, so that features have the
same range in either unit."""
LEAST_HEADROOM = 0.01
"""A host that began at an accuracy of nearly 1 has at least this way to go."""

_LOSSES = [TRACKED.index("train_loss"), TRACKED.index("validation_loss")]
_ACCURACIES = [TRACKED.index("train_accuracy"), TRACKED.index("validation_accuracy")]
_TIMES = [FIELD[name] for name in ("epochs_to_target", "age", "epochs_in_stage")]
_WORTHS = [FIELD[name] for name in ("contribution", "probe")]
_PLATEAU, _NORM = (HostReading._fields.index(name) for name in ("plateau_epochs", "gradient_norm"))


def standard_error(accuracy: Array, samples: Array) -> Array:
    """sqrt(p (1 - p) / n) with two right and two wrong samples more, so that it is never 0.

    An unknown accuracy counts as 1/2, an unknown number of samples as TYPICAL_SAMPLES.
    """
    count = np.where(np.isfinite(samples), samples, TYPICAL_SAMPLES)
    right = np.where(np.isfinite(accuracy), accuracy, 0.5) * count
    share = (right + 2.0) / (count + 4.0)
    error: Array = np.sqrt(share * (1.0 - share) / (count + 4.0))
    return error


class Scales(NamedTuple):
    """What the numbers of each host are ratios to: (env,) each, NaN unknown."""

    loss: Array
    accuracy: Array
    """What the host began at, which is subtracted."""
    headroom: Array
    """From there to 1."""
    noise: Array
    """Standard error of validation accuracy now."""
    gradient_norm: Array
    epochs: Array
    """For each of a run of USUAL_EPOCHS."""
    parameters: Array

    @staticmethod
    def of(origins: Sequence[Origin], hosts: Array, window: Array) -> "Scales":
        """hosts (env, field of HostReading), window (env, epoch, series), both as they were read."""
        reading = HostReading(*hosts.T)
        began_at = [(origin.loss, origin.accuracy, origin.gradient_norm) for origin in origins]
        loss, began, gradient_norm = np.array(began_at).T
        accuracy = window[:, -1, TRACKED.index("validation_accuracy")]
        return Scales(
            loss=loss,
            accuracy=began,
            headroom=np.maximum(1.0 - began, LEAST_HEADROOM),
            noise=standard_error(accuracy, np.asarray(reading.validation_samples)),
            gradient_norm=gradient_norm,
            epochs=np.asarray(reading.horizon) / USUAL_EPOCHS,
            parameters=np.asarray(reading.host_parameters),
        )

    def as_ratios(self, hosts: Array, window: Array, readings: Array) -> Array:
        """Make hosts and window ratios in place; returns readings (env, slot, field of SlotReading) so, a copy.

        Gradient norms are all over the host's first one, those of seeds as if they had the host's parameters.
        """
        hosts[:, _PLATEAU] /= self.epochs
        hosts[:, _NORM] /= self.gradient_norm
        window[..., _LOSSES] /= _beside(self.loss)
        window[..., _ACCURACIES] = (window[..., _ACCURACIES] - _beside(self.accuracy)) / _beside(
            self.headroom
        )
        window[..., len(TRACKED) :] *= _beside(ONE_NOISE / self.noise)  # the slots' contributions
        readings = readings.copy()
        readings[..., _TIMES] /= _beside(self.epochs)
        readings[..., _WORTHS] *= _beside(ONE_NOISE / self.noise)
        readings[..., FIELD["gradient_norm"]] /= self.gradient_norm[:, np.newaxis] * np.sqrt(
            self.shares(readings)
        )
        return readings

    def count_by_noise(self, *trends: Array) -> None:
        """Changes of accuracy in ratios, (env, series), over the noise instead of the headroom; in place."""
        for trend in trends:
            trend[:, _ACCURACIES] *= (ONE_NOISE * self.headroom / self.noise)[:, np.newaxis]

    def shares(self, readings: Array) -> Array:
        """(env, slot): parameters of each seed over the host's, of at least one."""
        share: Array = np.maximum(readings[..., FIELD["parameters"]], 1.0) / self.parameters[:, np.newaxis]
        return share


def _beside(scale: Array) -> Array:
    """(env,) -> (env, 1, 1)"""
    return scale[:, np.newaxis, np.newaxis]


def write_features_of_ratios(
    readings: Array, scales: Scales, hosts: NDArray[np.float32], slots: NDArray[np.float32]
) -> None:
    """Into the columns of hosts (env, feature) and slots (env, slot, feature) that are the `..._FEATURES_OF_RATIOS`.

    readings  (env, slot, field of SlotReading), as they were read
    """
    host = hosts[:, len(HOST_FEATURES) :][:, : len(HOST_FEATURES_OF_RATIOS)]
    slot = slots[..., len(SLOT_FEATURES) :][..., : len(SLOT_FEATURES_OF_RATIOS)]
    host[:] = np.log10(scales.noise)[:, np.newaxis] + 2.0  # a hundredth is 0
    slot[:] = by_percent(readings[..., _WORTHS] / scales.shares(readings)[..., np.newaxis])
    bound_in_place(host)
    bound_in_place(slot)
