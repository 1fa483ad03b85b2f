"""What one host's epochs have shown so far: the plateau, short histories, and where they are heading."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from esper.leyline import EpochReport, HostProtocol, HostSignals, LifecycleOp, SlotReading
from esper.leyline.decisions import PLATEAU_THRESHOLD

# Changes over the last few epochs, where the numbers of an epoch may be missing.


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


TRACKED = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
"""The host's series of a window, in order; after them comes one contribution per slot."""

HISTORY = 4
"""Epochs that histories and slopes look back over."""


class SignalTracker:
    """Fed one report an epoch, the untrained host's first.

    horizon            epochs of the whole episode
    plateau_threshold  how much validation accuracy must rise to count as better; where a task has no accuracy,
                       how much the loss must fall
    history            epochs that are remembered
    """

    __slots__ = ("_best", "_plateau", "_row", "_window", "history", "horizon", "plateau_threshold")

    def __init__(
        self, horizon: int, *, plateau_threshold: float = PLATEAU_THRESHOLD, history: int = HISTORY
    ) -> None:
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}; expected >= 1 epoch")
        if history < 2:
            raise ValueError(f"history is {history}; expected >= 2 epochs, or nothing has a slope")
        if not plateau_threshold >= 0:
            raise ValueError(f"plateau_threshold is {plateau_threshold}; expected >= 0")
        self.horizon = horizon
        self.plateau_threshold = plateau_threshold
        self.history = history
        self._best = -math.inf
        self._plateau = 0
        self._row = 0
        self._window: list[float] = []

    def record(self, report: EpochReport, slots: Sequence[SlotReading]) -> None:
        """Take in one epoch; the number of slots stays the same."""
        accuracy, loss = _finite(report.validation_accuracy), _finite(report.validation_loss)
        row = [_finite(report.train_loss), _finite(report.train_accuracy), loss, accuracy]
        row += [slot.contribution for slot in slots]
        if len(row) != self._row:
            if self._row:
                raise ValueError(f"slots has {len(slots)} readings; expected {self._row - len(TRACKED)}")
            self._row = len(row)
            self._window = [math.nan] * (len(row) * self.history)
        self._window = self._window[len(row) :] + row
        score = -loss if math.isnan(accuracy) else accuracy
        if score >= self._best + self.plateau_threshold and score > self._best:
            self._best, self._plateau = score, 0
        else:
            self._plateau += 1

    @property
    def plateau_epochs(self) -> int:
        """Epochs since validation last improved by the threshold over the best before."""
        return self._plateau

    @property
    def flat_window(self) -> list[float]:
        """(epoch, series) laid end to end, oldest first: TRACKED, then the slots' contributions; NaN unknown."""
        return self._window

    @property
    def window(self) -> NDArray[np.float64]:
        """(epoch, series): `flat_window` as an array."""
        if not self._row:
            raise RuntimeError("nothing was recorded yet: call record with the untrained host's report")
        return np.array(self._window).reshape(self.history, self._row)

    def slopes(self) -> dict[str, float | None]:
        """Change per epoch of each TRACKED number over the window; None where it is not known."""
        _, slope = trend(self.window)
        return {name: _known(value) for name, value in zip(TRACKED, slope.tolist(), strict=False)}

    def contribution_trends(self) -> tuple[float | None, ...]:
        """Change per epoch of each slot's contribution; None where it is not known."""
        _, slope = trend(self.window)
        return tuple(_known(value) for value in slope[len(TRACKED) :].tolist())

    def signals(
        self, host: HostProtocol, last_operation: LifecycleOp, parameter_budget: int | None
    ) -> HostSignals:
        """The host as a rule-based policy reads it."""
        report = host.report
        return HostSignals(
            epoch=report.epoch,
            horizon=self.horizon,
            training_samples=host.training_samples,
            train_loss=_known(_finite(report.train_loss)),
            train_accuracy=_known(_finite(report.train_accuracy)),
            validation_loss=_known(_finite(report.validation_loss)),
            validation_accuracy=_known(_finite(report.validation_accuracy)),
            plateau_epochs=self._plateau,
            gradient_norm=_known(_finite(report.gradient_norm)),
            host_parameters=host.host_parameters,
            added_parameters=host.added_parameters,
            parameter_budget=parameter_budget,
            last_operation=last_operation,
        )

    def state_dict(self) -> dict[str, object]:
        """Plain numbers and lists."""
        return {
            "horizon": self.horizon,
            "plateau_threshold": self.plateau_threshold,
            "history": self.history,
            "best": self._best,
            "plateau": self._plateau,
            "row": self._row,
            "window": list(self._window),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take up exactly what `state_dict` gave, settings included."""
        horizon, history, plateau, row = (
            _integer(state, name) for name in ("horizon", "history", "plateau", "row")
        )
        window = state["window"]
        if not isinstance(window, list) or len(window) != row * history:
            raise ValueError(f"window is {window!r}; expected a list of {history} x {row} numbers")
        self.horizon, self.history = horizon, history
        self.plateau_threshold, self._best = _real(state, "plateau_threshold"), _real(state, "best")
        self._plateau, self._row, self._window = plateau, row, [float(value) for value in window]


def _integer(state: Mapping[str, object], name: str) -> int:
    value = state[name]
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected an integer")
    return value


def _real(state: Mapping[str, object], name: str) -> float:
    value = state[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; expected a number")
    return float(value)


def _finite(value: float | None) -> float:
    """NaN for what was not measured or is not a finite number."""
    return value if value is not None and math.isfinite(value) else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
