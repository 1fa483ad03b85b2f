"""A limit on added parameters: what it leaves of what could be germinated."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from esper.leyline import BlueprintCard, LegalOperations, LifecycleOp, SlotReading

_GERMINATE = 1 << LifecycleOp.GERMINATE


def readings_within(
    readings: Sequence[SlotReading], cards: Sequence[Sequence[BlueprintCard]], room: float
) -> list[SlotReading]:
    """The same readings, GERMINATE illegal where no card of the slot has room."""
    return [
        reading
        if any(card.parameters <= room for card in offered)
        else reading._replace(legal=reading.legal & ~_GERMINATE)
        for reading, offered in zip(readings, cards, strict=True)
    ]


def legal_within(
    legal: Mapping[str, LegalOperations], cards: Mapping[str, Sequence[BlueprintCard]], room: float
) -> dict[str, LegalOperations]:
    """The same in words: blueprints without room are not legal, nor is GERMINATE where none has any."""
    kept: dict[str, LegalOperations] = {}
    for slot, here in legal.items():
        cheap = {card.name for card in cards[slot] if card.parameters <= room}
        blueprints = tuple(name for name in here.blueprints if name in cheap)
        operations = here.operations if blueprints else here.operations - {LifecycleOp.GERMINATE}
        kept[slot] = replace(here, operations=operations, blueprints=blueprints)
    return kept
