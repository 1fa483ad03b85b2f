"""What an episode came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One finished episode. What was lost or not measured is None."""

    case: str
    host_seed: int
    epochs: int
    utility: float | None
    """Of the settled model: validation score minus rent. None of a lost or condemned host."""
    gain: float | None
    """Utility minus that of the wait-only control; None without one."""
    validation_accuracy: float | None
    control_accuracy: float | None
    """Of the wait-only control at the same epoch; None without one."""
    validation_loss: float | None
    added_parameters: int | None
    episode_return: float
    """Sum of rewards, not discounted."""
    operations: tuple[int, ...]
    """How often each LifecycleOp was executed."""
    illegal_actions: int
    rolled_back: str | None
    """Why the governor ended it."""
    lost: bool
    """Its worker died: there is no final state, and its steps are not to be learned from."""
