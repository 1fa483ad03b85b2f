"""The growing model as the parts that decide and run may know it."""

from collections.abc import Mapping
from typing import Protocol

from esper.leyline.heads import Curve, Style
from esper.leyline.lifecycle import Stage
from esper.leyline.slots import BlueprintCard, LegalOperations, SlotConfig, SlotSnapshot


class SeedSlotProtocol(Protocol):
    """One slot, for reading."""

    @property
    def stage(self) -> Stage: ...

    @property
    def cards(self) -> tuple[BlueprintCard, ...]:
        """The blueprints offered here, in a stable order."""
        ...

    def snapshot(self) -> SlotSnapshot: ...


class GrowingModelProtocol(Protocol):
    """A host with slots: everything a controller's decision can be executed with."""

    @property
    def slots(self) -> Mapping[str, SeedSlotProtocol]: ...

    @property
    def slot_config(self) -> SlotConfig: ...

    @property
    def host_parameters(self) -> int: ...

    @property
    def added_parameters(self) -> int: ...

    def legal_operations(self) -> Mapping[str, LegalOperations]: ...

    def germinate(
        self, slot: str, blueprint: str, *, style: Style, tempo: int, alpha_target: float
    ) -> None: ...

    def advance(self, slot: str) -> None: ...

    def set_alpha_target(
        self, slot: str, alpha_target: float, *, style: Style | None, alpha_speed: int, alpha_curve: Curve
    ) -> None: ...

    def prune(self, slot: str, *, alpha_speed: int, alpha_curve: Curve) -> None: ...

    def fossilize(self, slot: str) -> None: ...

    def tick(self) -> None: ...

    def report(
        self, slot: str, *, contribution: float | None = None, gradients_finite: bool | None = None
    ) -> None: ...
