"""What happens to a growing model, as typed records, and where emitters send them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from esper.leyline.heads import Style
from esper.leyline.lifecycle import LifecycleOp, Stage
from esper.leyline.run_events import RunEvent


@dataclass(frozen=True, slots=True)
class SeedGerminated:
    """A seed was born."""

    kind: ClassVar[str] = "seed_germinated"
    slot: str
    """Where."""
    blueprint: str
    """What it is."""
    style: Style
    """How it composes."""
    parameters: int
    """Added by it and its gate."""


@dataclass(frozen=True, slots=True)
class StageChanged:
    """A slot moved on in the life of its seed."""

    kind: ClassVar[str] = "stage_changed"
    slot: str
    """Which."""
    before: Stage
    """The stage it left."""
    after: Stage
    """The stage it entered."""
    operation: LifecycleOp | None
    """What was asked for; None when the stage changed by itself on a tick."""


@dataclass(frozen=True, slots=True)
class SeedFading:
    """A seed that is being pruned begins to lose its alpha."""

    kind: ClassVar[str] = "seed_fading"
    slot: str
    """Where."""
    alpha: float
    """That it fades from."""
    epochs: int
    """Until it is gone."""


@dataclass(frozen=True, slots=True)
class NonFiniteSeedOutput:
    """A seed put out NaN or Inf since the last tick. It was kept out of the forward, its updates skipped."""

    kind: ClassVar[str] = "non_finite_seed_output"
    slot: str
    """Where."""
    stage: Stage
    """The seed's."""


@dataclass(frozen=True, slots=True)
class HostRolledBack:
    """The governor took a host back to its last good epoch."""

    kind: ClassVar[str] = "host_rolled_back"
    host: int
    """Index in its world."""
    case: str
    """The task instance, as text."""
    epoch: int
    """The epoch that condemned it."""
    verdict: str
    """Why."""
    rollbacks: int
    """Of this host so far, this one included."""


HostEvent = SeedGerminated | StageChanged | SeedFading | NonFiniteSeedOutput | HostRolledBack
"""Told by whoever owns a host, who does not know what run it is part of."""
Event = HostEvent | RunEvent


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run something happened. What does not apply is None."""

    round: int | None = None
    """Of PPO, from 1."""
    env: int | None = None
    """Index of the environment, or of the host."""
    episode: int | None = None
    """Count of that env's episodes, from 0."""
    epoch: int | None = None
    """Of that episode, from 1."""


NOWHERE = Place()


class EventSink(Protocol):
    """Where events go. Emitters are handed one and know nothing else of recording."""

    def emit(self, event: Event) -> None: ...


class RunSink(EventSink, Protocol):
    """Where the events of a run go. Those that do not say where they happened can be given a place."""

    def emit(self, event: Event, place: Place = NOWHERE) -> None: ...


HostSinks = Callable[[int], EventSink]
"""Index of a host -> where what happens to it is told."""


class HostLog:
    """Keeps what hosts tell until somebody takes it, who then says where in a run it happened."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: list[tuple[int, HostEvent]] = []

    def sink(self, host_idx: int) -> EventSink:
        return _OneHost(self._told, host_idx)

    def take(self) -> list[tuple[int, HostEvent]]:
        """(host, what happened to it) since the last time, in order."""
        told = self._told[:]
        self._told.clear()  # the list itself stays: sinks hold on to it
        return told


class _OneHost:
    __slots__ = ("_host_idx", "_told")

    def __init__(self, told: list[tuple[int, HostEvent]], host_idx: int) -> None:
        self._told, self._host_idx = told, host_idx

    def emit(self, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self._told.append((self._host_idx, event))


class PlacedSink:
    """Hands a host's events on to a run, with their place; whoever steps the host moves `place` along."""

    __slots__ = ("place", "sink")

    def __init__(self, sink: RunSink, place: Place = NOWHERE) -> None:
        self.sink, self.place = sink, place

    def emit(self, event: Event) -> None:
        self.sink.emit(event, self.place)
