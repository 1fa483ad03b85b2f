"""What a host's epochs have shown so far: the plateau, short histories, where they head without growth, and falls.

Falls are those of validation, which show a change of the data that nobody announced, and those of fossils below their
rent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from esper.leyline import (
    DecisionSettings,
    EpochReport,
    HostProtocol,
    HostSignals,
    LifecycleOp,
    SlotReading,
    Stage,
)
from esper.leyline.decisions import PLATEAU_THRESHOLD
from esper.leyline.utility import rent_due, utility

if TYPE_CHECKING:
    from esper.tamiyo.controller import RewardRecord

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
    """By how much the score (accuracy, without one minus the loss) must rise to count as better."""
    best: float = -math.inf
    """The best score that ended a plateau."""
    plateau: int = 0
    """Epochs since validation last improved by the threshold over the best before; 0 before the first score."""
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
        score = _score(report)
        # Where there is neither, a controller is shown minus the score in the loss's place.
        shown = -score if math.isnan(loss) and math.isnan(accuracy) else loss
        row = [_finite(report.train_loss), _finite(report.train_accuracy), shown, accuracy]
        row += [slot.contribution for slot in slots]
        if not self.row:
            self.row, self.window = len(row), [math.nan] * (len(row) * HISTORY)
        if len(row) != self.row:
            raise ValueError(f"slots has {len(slots)} readings; expected {self.row - len(TRACKED)}")
        self.window = self.window[len(row) :] + row
        if score >= self.best + self.plateau_threshold and score > self.best:
            self.best, self.plateau = score, 0
        elif not math.isinf(self.best):  # before the first score nothing could have improved
            self.plateau += 1

    @property
    def latest(self) -> Sequence[float]:
        """TRACKED of the epoch recorded last, NaN unknown."""
        return self.window[-self.row :][: len(TRACKED)]

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
            score=_known(_score(report)),
            learning_rate_share=_share(report.learning_rate, report.highest_learning_rate),
            fossil_parameters=sum(
                slot.parameters for slot in host.readings() if slot.stage == Stage.FOSSILIZED
            ),
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


def _score(report: EpochReport) -> float:
    """The report's own score; where it has none, accuracy, or else minus the loss; NaN unknown."""
    if report.score is not None:
        return _finite(report.score)
    accuracy, loss = _finite(report.validation_accuracy), _finite(report.validation_loss)
    return -loss if math.isnan(accuracy) else accuracy


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


# The score without growth as far as a single run can know it, and the reward that a controller is shown.
#
# A run that grows has no baseline, the same host trained without growth. In training the baseline is known, and the
# learner is paid by it; what the actor sees of its last step is the same in training, in benchmarks and in use, where
# the score is accuracy. By loss, use is different: environments divide by the loss of the untrained host and stop at
# WORST_BY_LOSS; a `Grower` scores by accuracy wherever it has one, and else divides by the first loss it is given.

DAMPING = 0.7
"""Of the trend, per epoch: learning curves flatten."""
WINDOW = 4
"""Epochs that the trend is read from."""
LEAST = 3
"""Scores without which there is no trend."""
FALL = 0.05
"""Of the score below its best in the window: the data may have changed."""


@dataclass(slots=True)
class Forecast:
    """The score without growth: as measured while no seed takes part, from then on a damped trend.

    f(b + k) = s_b + m (d + d^2 + ... + d^k), with s_b the last score without a seed and m its rise an epoch: the
    last one or the window's mean, whichever is smaller, and never a fall. After a fall by `FALL` nothing is foreseen:
    the model may recover by itself, and growth must not get the credit. When the last seed is gone the score is
    measured again, and the next forecast begins there; epochs with a seed count as time in the trend, not as scores
    """

    scores: list[tuple[int, float]] = field(default_factory=list)
    """Epoch and score, the last ones that no seed took part in."""
    epoch: int = 0
    epochs_since: int = 0
    """Epochs that seeds have taken part in without a break."""
    bounded: bool = True
    """Whether the score ends at 1, as accuracy does, or at 0 if it was never above, as minus a loss does."""

    def advance(self, score: float | None, *, grown: bool) -> float | None:
        """One epoch on, `grown` if a seed took part in it; None where nothing can be foreseen."""
        self.epoch += 1
        self.epochs_since = self.epochs_since + 1 if grown else 0
        if not grown and score is not None:
            self.scores = [*self.scores, (self.epoch, score)][-WINDOW:]
        return self.now

    @property
    def now(self) -> float | None:
        """The score without growth at this epoch; None where nothing can be foreseen."""
        if not self.epochs_since:
            return self.scores[-1][1] if self.scores else None
        if len(self.scores) < LEAST:
            return None
        first, before, (_, last) = self.scores[0], self.scores[-2], self.scores[-1]
        best = max(score for _, score in self.scores)
        if best - last > FALL:
            return None
        trend = max(min(self._rise(first), self._rise(before)), 0.0)
        reach = sum(DAMPING**k for k in range(1, self.epochs_since + 1))
        ceiling = math.inf if not self.bounded else 0.0 if best <= 0.0 else 1.0
        return min(last + trend * reach, max(ceiling, last))

    def _rise(self, since: tuple[int, float]) -> float:
        """An epoch, up to the last score."""
        epoch, score = self.scores[-1]
        return (score - since[1]) / (epoch - since[0])


@dataclass(slots=True)
class Paymaster:
    """The reward that a controller is shown after an epoch: with the forecast in the baseline's place."""

    rent: float
    reward: "RewardRecord | None"
    """Of the controller; None for rules, which see no reward."""
    forecast: Forecast = field(default_factory=Forecast)
    _potential: float | None = None

    def pay(self, score: float | None, added: int, host: int, *, grown: bool) -> float:
        """gamma phi(s') - phi(s); 0 where either is unknown. Where the life counts, what this epoch was worth."""
        baseline = self.forecast.advance(score, grown=grown)
        if self.reward is None or self.reward.mode == "sparse" or score is None:
            return 0.0
        worth = utility(score, self.reward.rent, added, host)
        if self.reward.control_variate:
            worth -= score if baseline is None else baseline
        if self.reward.counts == "life":
            return worth
        before, self._potential = self._potential, worth
        return 0.0 if before is None else self.reward.gamma * worth - before

    def gain(self, score: float | None, added: int, host: int) -> float | None:
        """Utility now over the forecast, at this loop's own rent; None while it is unknown."""
        if score is None or self.forecast.now is None:
            return None
        return utility(score, self.rent, added, host) - self.forecast.now

    def state_dict(self) -> dict[str, object]:
        """The forecast and the last potential."""
        return {"forecast": asdict(self.forecast), "potential": self._potential}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        forecast, potential = state["forecast"], state["potential"]
        if not isinstance(forecast, dict) or not (potential is None or isinstance(potential, float)):
            raise TypeError(f"forecast is {forecast!r}, potential {potential!r}; expected state_dict's")
        self.forecast, self._potential = Forecast(**forecast), potential


LOOK_BACK = 10
"""Epochs whose best score is the level that later ones are compared with."""
SCORES_KEPT = 20
"""The last scores that are remembered, whatever they were."""


@dataclass
class Level:
    """The level that validation has held of late, and how long it has been below it. Its size does not grow."""

    held: list[float] = field(default_factory=list)
    """The last scores that were not a fall."""
    below: int = 0
    """Epochs in a row below the level."""
    scores: list[float] = field(default_factory=list)
    """The last scores, falls included."""

    @property
    def now(self) -> float | None:
        """The best of the scores held; None before the first."""
        return max(self.held, default=None)

    def record(self, score: float | None, *, drop: float, patience: int) -> float | None:
        """Take in an epoch, `score` None where it is unknown.

        Returns the level that was lost once validation has been `drop` below it for `patience` epochs in a row, which
        begins a new level; else None. A score that comes back sooner was a false alarm.
        """
        if score is None:
            return None
        self.scores = [*self.scores, score][-SCORES_KEPT:]
        level = self.now
        if level is None or score >= level - drop:
            self.held, self.below = [*self.held, score][-LOOK_BACK:], 0
            return None
        self.below += 1
        if self.below < patience:
            return None
        self.held, self.below = [score], 0
        return level


@dataclass
class DropDetector:
    """Notices that validation accuracy fell by more than `drop` below its best since the last time it noticed."""

    drop: float
    best: float | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.drop < 1.0:
            raise ValueError(f"drop is {self.drop}; expected between 0 and 1")

    def noticed(self, accuracy: float | None) -> bool:
        """Whether it fell, given the accuracy of the epoch that was just trained."""
        if accuracy is None:
            return False
        self.best = accuracy if self.best is None else max(self.best, accuracy)
        fell = self.best - accuracy > self.drop
        if fell:
            self.best = accuracy
        return fell


@dataclass
class JumpDetector(DropDetector):
    """Notices rises too: that validation accuracy is more than `drop` above that of the epoch before.

    Data may change for the better, and what is right for a host with them.
    """

    last: float | None = None

    def noticed(self, accuracy: float | None) -> bool:
        """Whether it fell or rose, given the accuracy of the epoch that was just trained."""
        rose = accuracy is not None and self.last is not None and accuracy - self.last > self.drop
        self.last = accuracy
        return super().noticed(accuracy) or rose


@dataclass(slots=True)
class FossilWatch:
    """Counts, slot by slot, the epochs in a row in which a fossil's contribution was below its rent.

    An epoch in which it was not measured counts neither way. A slot without a fossil begins anew.
    """

    settings: DecisionSettings
    epochs: list[int] = field(default_factory=list)
    """One count per slot."""

    def record(self, slots: Sequence[SlotReading], host_parameters: int) -> None:
        """Take in one epoch; the number of slots stays the same."""
        counts = self.epochs or [0] * len(slots)
        if len(slots) != len(counts):
            raise ValueError(f"slots has {len(slots)} readings; expected {len(counts)}")
        self.epochs = [
            self._after(slot, count, host_parameters) for slot, count in zip(slots, counts, strict=True)
        ]

    def _after(self, slot: SlotReading, count: int, host_parameters: int) -> int:
        if slot.stage != Stage.FOSSILIZED:
            return 0
        if slot.contribution != slot.contribution:  # NaN: not measured
            return count
        rent = rent_due(self.settings.decay_rent, slot.parameters, host_parameters)
        return count + 1 if slot.contribution < rent else 0

    @property
    def decayed(self) -> list[bool]:
        """For each slot, whether its fossil has been below its rent for long enough to count."""
        return [count >= self.settings.decay_epochs for count in self.epochs]


@dataclass(slots=True)
class Origin:
    """The first numbers that were known of a host, which its later ones are ratios to; NaN until they are."""

    loss: float = math.nan
    """Size of the validation loss, or of the training loss where there is no other; never 0."""
    accuracy: float = math.nan
    """Of validation."""
    gradient_norm: float = math.nan
    """Of the host; never 0."""

    def record(self, tracked: Sequence[float], gradient_norm: float | None) -> None:
        """Take in an epoch: TRACKED, NaN unknown, and the gradient norm."""
        train_loss, _, loss, accuracy = tracked
        if math.isnan(self.loss) and (first := loss if math.isfinite(loss) else train_loss):
            self.loss = abs(first)
        if math.isnan(self.accuracy):
            self.accuracy = accuracy
        if math.isnan(self.gradient_norm) and gradient_norm and math.isfinite(gradient_norm):
            self.gradient_norm = gradient_norm

    def state_dict(self) -> dict[str, float]:
        """Every field."""
        return asdict(self)

    @staticmethod
    def from_state(state: object) -> "Origin":
        """The origin that `state_dict` was taken of."""
        names = list(Origin.__slots__)
        if (
            not isinstance(state, dict)
            or sorted(state) != sorted(names)
            or not all(isinstance(value, float) for value in state.values())
        ):
            raise ValueError(f"origin is {state!r}; expected the numbers {', '.join(names)} of a state_dict")
        return Origin(**state)
