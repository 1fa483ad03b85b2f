"""What a parameter budget has room for."""

from collections.abc import Collection
from dataclasses import replace

from esper.kasmina import GrowingModel
from esper.leyline import ActionSpec, LifecycleOp, Style


def require_room(model: GrowingModel, parameter_budget: int, menu: Collection[str] | None = None) -> None:
    """A budget under the smallest seed would never let anything grow. `menu`: the only kinds that will."""
    offers = [
        (name, card)
        for name, slot in model.slots.items()
        for card in slot.cards
        if menu is None or card.name in menu
    ]
    slot, cheapest = min(offers, key=lambda offer: offer[1].parameters, default=(None, None))
    if cheapest is not None and cheapest.parameters > parameter_budget:
        raise ValueError(
            f"parameter_budget is {parameter_budget:,}, and nothing that is offered is so small: the cheapest is "
            f"{cheapest.name} at {slot} with {cheapest.parameters:,} parameters"
        )


def affordable(model: GrowingModel, action: ActionSpec, parameter_budget: int) -> ActionSpec:
    """A gate costs parameters that the card does not count: without room for it the seed is born without."""
    if action.op is not LifecycleOp.GERMINATE or action.style is not Style.GATE:
        return action
    slot = model.slots[str(action.slot)]
    cost = next(card.parameters for card in slot.cards if card.name == action.blueprint)
    gate = slot.site.channels + 1
    room = parameter_budget - model.added_parameters
    return action if cost + gate <= room else replace(action, style=Style.LINEAR_ADD)
