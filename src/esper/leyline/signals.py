"""What is known of a host after an epoch, and what a reward is computed from."""

from dataclasses import dataclass

from esper.leyline.lifecycle import LifecycleOp


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
class Standing:
    """What the utility of a state is made of, with the wait-only control at the same epoch if it is known."""

    accuracy: float | None
    loss: float
    added_parameters: int
    control_accuracy: float | None = None
    control_loss: float | None = None


@dataclass(frozen=True, slots=True)
class RewardInputs:
    """Everything the reward of one environment step depends on."""

    operation: LifecycleOp
    before: Standing
    after: Standing
    host_parameters: int
    untrained_loss: float
    """Validation loss of this host before its first epoch, by which losses are scaled."""
    terminated: bool
    truncated: bool
    rolled_back: bool
    """The governor ended the episode; `after` then holds the numbers that condemned the host."""
