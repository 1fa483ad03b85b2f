"""`frozen_spread`: for hosts that do not learn themselves, a small residual in every slot but the last."""

from dataclasses import dataclass, field

from esper.leyline import ActionSpec, BlueprintCard, Layout, LifecycleOp, Situation, Stage
from esper.tamiyo.rules.policy import Remembering, refusal

_GRID = ("conv_small", ("conv_light", "conv_small", "bottleneck", "lora", "norm"))
_VECTORS = ("mlp_small", ("mlp", "mlp_small", "lora_large", "lora", "norm"))
ADAPTERS = {
    Layout.IMAGE: _GRID,
    Layout.IMAGE_LAST: _GRID,
    Layout.VOLUME: _GRID,
    Layout.VOLUME_LAST: _GRID,
    Layout.SERIES: _GRID,
    Layout.TOKENS: _VECTORS,
    Layout.TIME_MAJOR: _VECTORS,
    Layout.FLAT: _VECTORS,
    Layout.ROWS: _VECTORS,
}
"""layout -> the usual kind of residual, and the kinds that a parameter budget is spent on."""
EPOCHS_TO_FULL_STRENGTH = 5
"""From germination: one behind the host, three of the ramp, and one to learn in."""
HEAD_START = 2
"""Epochs that the head has to itself, a tenth of the run at most. Blended before the head has met its data, a
residual can throw accuracy back to chance for longer than the governor waits."""


@dataclass
class _Spread:
    """What is still to be grown in an episode."""

    places: list[tuple[str, str]] | None = None
    """(slot, blueprint); None before the first decision."""
    grown: list[str] = field(default_factory=list)
    """Slots in the order of germination."""


class FrozenSpreadPolicy(Remembering[_Spread]):
    """Grows a residual of the layout's usual kind in every slot but the last, one after another from the input on.

    It begins when the head has learned a little. With a parameter budget each place has an equal share of it, and
    gets the largest kind that the share has room for. Nothing is judged but at the end of the run: a residual is born
    with a scale of zero, and a host that does not learn cannot come to depend on it. Where more are to come than may
    live at once, the oldest is fossilised.
    """

    def __init__(self) -> None:
        super().__init__(_Spread)

    def act(self, situation: Situation) -> ActionSpec:
        """Advance what is ready, germinate the next, or make room for it."""
        memory = self.memory
        if memory.places is None:
            memory.places = even_spread(situation)
        for name in memory.grown:
            advance = ActionSpec(LifecycleOp.ADVANCE, name)
            if refusal(advance, situation) is None:
                return advance
        signals = situation.signals
        if not memory.places or signals.epoch not in self.may_begin(signals.horizon):
            return ActionSpec()
        slot, blueprint = memory.places[0]
        germinate = ActionSpec(LifecycleOp.GERMINATE, slot, blueprint)
        if refusal(germinate, situation) is None:
            memory.places.pop(0)
            memory.grown.append(slot)
            return germinate
        for name in memory.grown:
            fossilize = ActionSpec(LifecycleOp.FOSSILIZE, name)
            if refusal(fossilize, situation) is None:
                return fossilize
        return ActionSpec()

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""
        return range(min(HEAD_START, horizon // 10), horizon - EPOCHS_TO_FULL_STRENGTH + 1)


def even_spread(situation: Situation) -> list[tuple[str, str]]:
    """(slot, blueprint) for every slot but the last (or the only one) that has room for a kind of its layout."""
    slots = [slot for slot in situation.slots if slot.stage is Stage.DORMANT]
    slots = slots[:-1] or slots
    budget = situation.signals.parameter_budget
    share = None if budget is None else (budget - situation.signals.added_parameters) / max(len(slots), 1)
    chosen = ((slot.name, _adapter(slot.layout, situation.cards[slot.name], share)) for slot in slots)
    return [(name, card.name) for name, card in chosen if card is not None]


def _adapter(layout: Layout, offered: tuple[BlueprintCard, ...], share: float | None) -> BlueprintCard | None:
    """The usual kind; with a share of a budget the largest kind that fits; None where nothing does."""
    usual, kinds = ADAPTERS[layout]
    cards = {card.name: card for card in offered if card.name in kinds}
    if share is None:
        return cards.get(usual) or next((cards[kind] for kind in kinds if kind in cards), None)
    fitting = [card for card in cards.values() if card.parameters <= share]
    return max(fitting, key=lambda card: card.parameters, default=None)
