"""What a grower refuses, and what it warns of, when it is made; and what a parameter budget has room for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.optim import Optimizer

from esper.kasmina import WrapError
from esper.kasmina.wrapping import WrapOptions
from esper.leyline import ActionSpec, BlueprintCard, LifecycleOp, SeedSlotProtocol, Style, gate_parameters
from esper.tamiyo.deciders import Decider

EPOCHS_TO_BLEND = 2
"""Of a seed's life until the output shows it: one behind the host, and one of its ramp."""


def refuse_unknown(options: Mapping[str, object]) -> None:
    """Raise for a keyword that neither Grower nor wrap has."""
    unknown = set(options) - set(WrapOptions.__annotations__)
    if unknown:
        raise TypeError(f"Grower() got an unexpected keyword argument {min(unknown)!r}")


def refuse_wrapping(options: Mapping[str, object]) -> None:
    """The model was wrapped already: options of wrapping, other than their defaults, would change nothing in it."""
    usual = {"causal": False, "isolation_penalty": 1.0}
    given = [
        name
        for name, value in options.items()
        # the seed is the controller's too
        if value is not None and name != "seed" and not (name in usual and value == usual[name])
    ]
    if given:
        raise WrapError(
            f"the model is a GrowingModel and was wrapped already: leave out {', '.join(given)}, or give them to "
            "esper.wrap"
        )


def require_count(name: str, value: object) -> None:
    """Raise unless it is a whole number >= 1, or None for unknown."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and not whole:
        raise ValueError(f"{name} is {value!r}; expected a whole number >= 1, or None where it is unknown")


def untrained_part(host: nn.Module, optimizer: Optimizer) -> str | None:
    """What to say of an optimiser that leaves out parameters that could be trained; None if it has them all."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trainable = {name: p for name, p in host.named_parameters() if p.requires_grad}
    missing = [name for name, parameter in trainable.items() if id(parameter) not in owned]
    if not missing:
        return None
    total = sum(parameter.numel() for parameter in trainable.values())
    held = total - sum(trainable[name].numel() for name in missing)
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"the optimizer holds {held:,} of the model's {total:,} trainable parameters: {missing[0]}{others} will not "
        "be trained. Make it from model.parameters(), or call requires_grad_(False) on what is meant to stay as it is"
    )


def too_short(who: Decider, epochs: int | None) -> str | None:
    """What to say of a run in which this decider cannot grow anything; None if it can."""
    first_growth = who.settings.first_growth
    if epochs is None or not first_growth or epochs >= first_growth + EPOCHS_TO_BLEND:
        return None
    return (
        f"controller {who.name} germinates nothing before epoch {first_growth}, so in epochs={epochs} no seed can "
        "take part: train longer, or choose a rule such as probe_and_keep"
    )


def nothing_on_the_menu(who: Decider, cards: Mapping[str, Sequence[BlueprintCard]]) -> str | None:
    """What to say of a model whose slots are offered nothing that this decider germinates; None if some are."""
    menu = who.settings.menu
    if menu is None or any(card.name in menu for offered in cards.values() for card in offered):
        return None
    return (
        f"controller {who.name} germinates {', '.join(menu)} only, and no slot is offered that: nothing will grow. "
        "Choose another controller, or a rule such as probe_and_keep"
    )


def require_room(
    slots: Mapping[str, SeedSlotProtocol], parameter_budget: int, menu: Collection[str] | None = None
) -> None:
    """A budget under the smallest seed would never let anything grow. `menu`: the only kinds that will."""
    offers = [
        (name, card)
        for name, slot in slots.items()
        for card in slot.cards
        if menu is None or card.name in menu
    ]
    slot, cheapest = min(offers, key=lambda offer: offer[1].parameters, default=(None, None))
    if cheapest is not None and cheapest.parameters > parameter_budget:
        raise ValueError(
            f"parameter_budget is {parameter_budget:,}, and nothing that is offered is so small: the cheapest is "
            f"{cheapest.name} at {slot} with {cheapest.parameters:,} parameters"
        )


def affordable(slots: Mapping[str, SeedSlotProtocol], action: ActionSpec, room: int) -> ActionSpec:
    """A gate costs parameters that the card does not count: without room for it the seed is born without.

    room: the parameters that may still be added.
    """
    if action.op is not LifecycleOp.GERMINATE or action.style is not Style.GATE:
        return action
    slot = slots[str(action.slot)]
    cost = next(card.parameters for card in slot.cards if card.name == action.blueprint)
    return (
        action if cost + gate_parameters(slot.channels) <= room else replace(action, style=Style.LINEAR_ADD)
    )
