"""An event as it is recorded: what, when, and where in the run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import get_args

from esper.leyline import Event, Place


@dataclass(frozen=True, slots=True)
class Record:
    time: float
    """Seconds since the epoch."""
    place: Place
    """Filled from the event where it knows its own."""
    event: Event


KINDS: Mapping[str, type[Event]] = MappingProxyType({event.kind: event for event in get_args(Event)})
"""kind -> the dataclass of such events. Leyline's union is the one list."""


PLACE_FIELDS = tuple(field.name for field in fields(Place))
_OWN_PLACE = {
    event: tuple(field.name for field in fields(event) if field.name in PLACE_FIELDS)
    for event in KINDS.values()
}


def place_of(event: Event, given: Place) -> Place:
    """The given place, with what the event itself knows of it put in."""
    own = {name: getattr(event, name) for name in _OWN_PLACE.get(type(event), ())}
    return replace(given, **own) if own else given
