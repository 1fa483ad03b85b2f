"""Falls: of validation, which show a change of the data that nobody announced, and of fossils below their rent."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from esper.leyline import DecisionSettings, SlotReading, Stage
from esper.leyline.utility import rent_due

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
