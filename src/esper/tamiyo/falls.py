"""Falls of validation: what is seen of a change of the data by whoever is not told of it."""

from dataclasses import dataclass, field

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
