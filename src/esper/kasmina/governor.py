"""The governor: notices a host that broke, and says why. Pure rules over what an epoch measured."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Why a host was condemned."""

    NOT_FINITE = "not_finite"
    """A loss, or the host's gradient, was NaN or Inf."""
    SEED_NOT_FINITE = "seed_not_finite"
    """A seed's output or gradient was NaN or Inf. It was kept away from the host, and goes back with it."""
    DIVERGED = "diverged"
    """The training loss is far above that of a host that knows nothing."""
    COLLAPSED = "collapsed"
    """The host had learned, and is back at chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorRules:
    """What counts as broken, relative to chance and to the host's own best."""

    divergence_factor: float = 3.0
    """Training loss over this many times the loss of a uniform guess."""
    learned_margin: float = 0.1
    """A host has learned once its validation accuracy was this share of the way from chance to 1."""
    collapse_share: float = 0.1
    """It is back at chance with at most this share left of what it was above chance at its best."""
    collapse_patience: int = 2
    """Epochs in a row at chance before it is condemned: data that shift may cost one."""
    max_consecutive: int = 3
    """Rollbacks in a row after which a host is given up."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 1 if name in ("collapse_patience", "max_consecutive") else 0
            if not value >= least or (name == "divergence_factor" and not value > 1):
                bound = "> 1" if name == "divergence_factor" else f">= {least}"
                raise ValueError(f"GovernorRules.{name} must be {bound}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one epoch showed of one host."""

    train_loss: float
    gradient_norm: float
    validation_loss: float
    validation_accuracy: float
    seeds_finite: bool


@dataclass(slots=True)
class Governor:
    """Watches one host, epoch after epoch."""

    rules: GovernorRules
    chance_accuracy: float
    untrained_loss: float
    best_accuracy: float = 0.0
    epochs_at_chance: int = 0
    rollbacks: int = 0
    """In the host's whole life."""
    consecutive: int = 0

    def judge(self, vitals: Vitals) -> Verdict | None:
        """None if the host may go on."""
        verdict = self._verdict(vitals)
        if verdict is None:
            self.best_accuracy = max(self.best_accuracy, vitals.validation_accuracy)
            self.consecutive = 0
        else:
            self.rollbacks += 1
            self.consecutive += 1
            self.epochs_at_chance = 0
        return verdict

    @property
    def content(self) -> bool:
        """Whether the epoch judged last is worth going back to: one at chance is not."""
        return self.consecutive == 0 and self.epochs_at_chance == 0

    def forget_best(self) -> None:
        """The data have changed: what was learned of the old ones is no measure any more."""
        self.best_accuracy, self.epochs_at_chance = 0.0, 0

    @property
    def gives_up(self) -> bool:
        return self.consecutive >= self.rules.max_consecutive

    def _verdict(self, vitals: Vitals) -> Verdict | None:
        numbers = (vitals.train_loss, vitals.gradient_norm, vitals.validation_loss)
        if not all(math.isfinite(number) for number in numbers):
            return Verdict.NOT_FINITE
        if not vitals.seeds_finite:
            return Verdict.SEED_NOT_FINITE
        if vitals.train_loss > self.rules.divergence_factor * self.untrained_loss:
            return Verdict.DIVERGED
        self.epochs_at_chance = self.epochs_at_chance + 1 if self._at_chance(vitals) else 0
        if self.epochs_at_chance >= self.rules.collapse_patience:
            return Verdict.COLLAPSED
        return None

    def _at_chance(self, vitals: Vitals) -> bool:
        """Whether a host that had learned has nothing left of it."""
        above_at_best = self.best_accuracy - self.chance_accuracy
        if above_at_best < self.rules.learned_margin * (1.0 - self.chance_accuracy):
            return False
        above_now = vitals.validation_accuracy - self.chance_accuracy
        return above_now <= self.rules.collapse_share * above_at_best

    def state_dict(self) -> dict[str, float | int]:
        return {
            "best_accuracy": self.best_accuracy,
            "epochs_at_chance": self.epochs_at_chance,
            "rollbacks": self.rollbacks,
            "consecutive": self.consecutive,
        }

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        self.best_accuracy = float(state["best_accuracy"])
        self.epochs_at_chance = int(state["epochs_at_chance"])
        self.rollbacks, self.consecutive = int(state["rollbacks"]), int(state["consecutive"])
