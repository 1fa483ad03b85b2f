"""A decision about one host in words, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from esper.leyline.heads import Curve, Style
from esper.leyline.lifecycle import LifecycleOp
from esper.leyline.slots import BlueprintCard, LegalOperations, SlotSnapshot


@dataclass(frozen=True, slots=True)
class HostSignals:
    """A host after one epoch of training. Accuracies are 0..1; what has not been measured is None."""

    epoch: int
    horizon: int
    """Epochs of the whole episode."""
    training_samples: int | None
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    plateau_epochs: int
    """Epochs since validation last improved."""
    gradient_norm: float | None
    host_parameters: int
    added_parameters: int
    parameter_budget: int | None
    """Parameters that may be added in all; None is no limit."""
    last_operation: LifecycleOp


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One operation with everything it needs. Fields that the operation does not use are ignored."""

    op: LifecycleOp = LifecycleOp.WAIT
    slot: str | None = None
    blueprint: str | None = None
    style: Style = Style.LINEAR_ADD
    tempo: int = 3
    alpha_target: float = 1.0
    alpha_speed: int = 0
    alpha_curve: Curve = Curve.LINEAR


@dataclass(frozen=True, slots=True)
class IllegalChoice:
    """Why an action could not be executed."""

    head: str
    value: str
    legal: tuple[str, ...]
    """What that head could have been."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What was asked of a host, and what was done."""

    asked: ActionSpec
    executed: ActionSpec
    """WAIT if what was asked was illegal."""
    illegal: IllegalChoice | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """A host and its slots as a rule-based policy reads them before it decides."""

    signals: HostSignals
    slots: tuple[SlotSnapshot, ...]
    legal: Mapping[str, LegalOperations]
    """By slot name: exactly what can be executed now."""
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    """By slot name: the blueprints offered there."""
