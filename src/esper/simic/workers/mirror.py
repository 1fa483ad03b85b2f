"""A host that lives elsewhere, as last reported."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from esper.leyline import (
    BlueprintCard,
    EpochReport,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)
from esper.simic.workers.messages import (
    HostFacts,
    HostView,
    Plain,
    legal_from_plain,
    snapshot_from_plain,
)


class Asked(Protocol):
    """Whoever can be asked about what is seldom needed."""

    def ask(self, host_idx: int, verb: str) -> Plain: ...


class HostMirror:
    """A host that lives in a worker, as last reported."""

    __slots__ = ("_facts", "_host_idx", "_world", "view")

    def __init__(self, world: Asked, host_idx: int, facts: HostFacts, view: HostView) -> None:
        self._world, self._host_idx, self._facts = world, host_idx, facts
        self.view = view

    @property
    def slot_config(self) -> SlotConfig:
        return self._facts.slot_config

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        return self._facts.cards

    @property
    def host_parameters(self) -> int:
        return self._facts.host_parameters

    @property
    def added_parameters(self) -> int:
        return self.view.added_parameters

    @property
    def training_samples(self) -> int:
        return self.view.training_samples

    @property
    def report(self) -> EpochReport:
        return self.view.report

    def readings(self) -> Sequence[SlotReading]:
        return self.view.readings

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        answer = self._world.ask(self._host_idx, "snapshots")
        assert isinstance(answer, list)
        return tuple(map(snapshot_from_plain, answer))

    def legal_operations(self) -> dict[str, LegalOperations]:
        answer = self._world.ask(self._host_idx, "legal")
        assert isinstance(answer, dict)
        return {slot: legal_from_plain(plain) for slot, plain in answer.items()}
