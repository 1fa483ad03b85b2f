"""Decay: how long each fossil of a host has contributed less than its rent."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from esper.leyline import DecisionSettings, SlotReading, Stage
from esper.leyline.utility import rent_due


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
