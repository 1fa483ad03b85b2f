"""What one host's epochs have shown so far: the plateau, short histories, and where they are heading."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from esper.leyline import EpochReport, HostProtocol, HostSignals, LifecycleOp, SlotReading
from esper.leyline.decisions import PLATEAU_THRESHOLD

TRACKED = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
"""The host's series of a window, in order; after them comes one contribution per slot."""

HISTORY = 4
"""Epochs that histories and slopes look back over."""

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


@dataclass(slots=True)
class SignalTracker:
    """One host's history. `record` takes one report an epoch, the untrained host's first."""

    horizon: int
    """Epochs of the whole episode."""
    plateau_threshold: float = PLATEAU_THRESHOLD
    """By how much validation accuracy must rise to count as better; without accuracy, how much loss must fall."""
    best: float = -math.inf
    """The best validation accuracy, or negative loss, that ended a plateau."""
    plateau: int = 0
    """Epochs since validation last improved by the threshold over the best before."""
    row: int = 0
    """Series in the window; 0 before the first report."""
    window: list[float] = field(default_factory=list)
    """(epoch, series) laid end to end, oldest first: TRACKED, then the slots' contributions; NaN unknown."""

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise ValueError(f"horizon is {self.horizon}; expected >= 1 epoch")
        if not self.plateau_threshold >= 0:
            raise ValueError(f"plateau_threshold is {self.plateau_threshold}; expected >= 0")
        if len(self.window) != self.row * HISTORY:
            raise ValueError(f"window has {len(self.window)} numbers; expected {HISTORY} x {self.row}")

    def record(self, report: EpochReport, slots: Sequence[SlotReading]) -> None:
        """Take in one epoch; the number of slots stays the same."""
        accuracy, loss = _finite(report.validation_accuracy), _finite(report.validation_loss)
        row = [_finite(report.train_loss), _finite(report.train_accuracy), loss, accuracy]
        row += [slot.contribution for slot in slots]
        if not self.row:
            self.row, self.window = len(row), [math.nan] * (len(row) * HISTORY)
        if len(row) != self.row:
            raise ValueError(f"slots has {len(slots)} readings; expected {self.row - len(TRACKED)}")
        self.window = self.window[len(row) :] + row
        score = -loss if math.isnan(accuracy) else accuracy
        if score >= self.best + self.plateau_threshold and score > self.best:
            self.best, self.plateau = score, 0
        else:
            self.plateau += 1

    def signals(
        self, host: HostProtocol, last_operation: LifecycleOp, parameter_budget: int | None
    ) -> HostSignals:
        """Return the host as a rule reads it."""
        report = host.report
        return HostSignals(
            epoch=report.epoch,
            horizon=self.horizon,
            training_samples=host.training_samples,
            train_loss=_known(report.train_loss),
            train_accuracy=_known(report.train_accuracy),
            validation_loss=_known(report.validation_loss),
            validation_accuracy=_known(report.validation_accuracy),
            plateau_epochs=self.plateau,
            gradient_norm=_known(report.gradient_norm),
            host_parameters=host.host_parameters,
            added_parameters=host.added_parameters,
            parameter_budget=parameter_budget,
            last_operation=last_operation,
        )

    def state_dict(self) -> dict[str, object]:
        """Return every field: plain numbers and a list."""
        return asdict(self)

    @staticmethod
    def from_state(state: Mapping[str, object]) -> "SignalTracker":
        """Return a tracker that goes on exactly from a `state_dict`."""
        values = {each.name: state[each.name] for each in fields(SignalTracker)}
        for name, value in values.items():
            kind = {"window": list, "best": int | float, "plateau_threshold": int | float}.get(name, int)
            if not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}; expected that of a state_dict")
        return SignalTracker(**values)  # type: ignore[arg-type]  # checked above


def _finite(value: float | None) -> float:
    """NaN for what was not measured or is not a finite number."""
    return value if value is not None and math.isfinite(value) else math.nan


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
