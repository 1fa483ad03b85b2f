"""A growing model in somebody else's loop, as deciders read hosts."""

import math
from collections.abc import Mapping

from esper.kasmina import GrowingModel
from esper.leyline import (
    BlueprintCard,
    EpochReport,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)

UNTRAINED = EpochReport(0, None, None, math.nan, None, None, None)
TYPICAL_SAMPLES = 1000
"""Stands for a training set whose size nobody told: the middle of the observation's scale."""


class LoopHost:
    """Leyline's `HostProtocol`; whoever owns the loop writes `report` after each epoch."""

    def __init__(self, model: GrowingModel, training_samples: int | None) -> None:
        self.model, self.report = model, UNTRAINED
        self._samples = TYPICAL_SAMPLES if training_samples is None else training_samples

    @property
    def slot_config(self) -> SlotConfig:
        return self.model.slot_config

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        return {name: slot.cards for name, slot in self.model.slots.items()}

    @property
    def host_parameters(self) -> int:
        return self.model.host_parameters

    @property
    def added_parameters(self) -> int:
        return self.model.added_parameters

    @property
    def training_samples(self) -> int:
        return self._samples

    def readings(self) -> list[SlotReading]:
        return self.model.readings()

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        return tuple(slot.snapshot() for slot in self.model.slots.values())

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        return self.model.legal_operations()
