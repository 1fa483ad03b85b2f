"""What happens to a growing model, as typed records, and where emitters send them."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from esper.leyline.heads import Style
from esper.leyline.lifecycle import LifecycleOp, Stage


@dataclass(frozen=True, slots=True)
class SeedGerminated:
    kind: ClassVar[str] = "seed_germinated"
    slot: str
    blueprint: str
    style: Style
    parameters: int


@dataclass(frozen=True, slots=True)
class StageChanged:
    kind: ClassVar[str] = "stage_changed"
    slot: str
    before: Stage
    after: Stage
    operation: LifecycleOp | None
    """What was asked for; None when the stage changed by itself on a tick."""


@dataclass(frozen=True, slots=True)
class SeedFading:
    kind: ClassVar[str] = "seed_fading"
    slot: str
    alpha: float
    epochs: int


@dataclass(frozen=True, slots=True)
class NonFiniteSeedOutput:
    """A seed put out NaN or Inf since the last tick. It was kept out of the forward, its updates skipped."""

    kind: ClassVar[str] = "non_finite_seed_output"
    slot: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class HostRolledBack:
    """The governor took a host back to its last good epoch."""

    kind: ClassVar[str] = "host_rolled_back"
    host: int
    case: str
    epoch: int
    """The epoch that condemned it."""
    verdict: str
    rollbacks: int
    """Of this host so far, this one included."""


Event = SeedGerminated | StageChanged | SeedFading | NonFiniteSeedOutput | HostRolledBack


class EventSink(Protocol):
    """Where events go. Emitters are handed one and know nothing else of recording."""

    def emit(self, event: Event) -> None: ...
