"""One event of a kind, as the page about events shows it."""

from typing import TypeVar

from esper.leyline import Event
from event_examples import EXAMPLES

Kind = TypeVar("Kind", bound=Event)


def example(kind: type[Kind]) -> Kind:
    event = EXAMPLES[kind.kind].event
    assert isinstance(event, kind)
    return event
