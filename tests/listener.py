"""A sink that keeps the events of a training in memory."""

from typing import TypeVar

from esper.leyline import NOWHERE, Event, Place

Kind = TypeVar("Kind")


class Listener:
    """What was emitted, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        del place
        self.events.append(event)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]
