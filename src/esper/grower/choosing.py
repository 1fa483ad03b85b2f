"""Which rule decides where no controller was named."""

from torch import nn

from esper.kasmina import GrowingModel
from esper.leyline import Situation
from esper.tamiyo.rules.by_layout import suited_candidates
from esper.tamiyo.rules.policy import affordable

USUAL, USUAL_FOR_FROZEN = "by_layout", "frozen_spread"


def usual_rule(model: GrowingModel) -> str:
    """The rule for a host that trains as a whole, or for one that is frozen but perhaps for its head."""
    return USUAL_FOR_FROZEN if is_frozen(model.host, list(model.slots)) else USUAL


def is_frozen(host: nn.Module, slots: list[str]) -> bool:
    """Whether most parameters do not require gradients, and none of those up to the last slot.

    Submodules count in the order in which the host registered them.
    """
    learning = sum(parameter.numel() for parameter in host.parameters() if parameter.requires_grad)
    if 2 * learning >= sum(parameter.numel() for parameter in host.parameters()):
        return False
    modules = [name for name, _ in host.named_modules(remove_duplicate=False)]  # all names of shared ones
    inside = tuple(f"{slot}." for slot in slots)
    last = max(place for place, name in enumerate(modules) if name in slots or name.startswith(inside))
    owners = {name.rpartition(".")[0] for name, each in host.named_parameters() if each.requires_grad}
    return all(modules.index(owner) > last for owner in owners)


def nothing_suits(rule: str, situation: Situation) -> str | None:
    """What to say of slots for which `by_layout` has no candidate, or none that the parameter budget has room for.

    None if it has some, or another rule decides.
    """
    if rule != USUAL:
        return None
    candidates = suited_candidates(situation)
    if candidates:
        return _too_dear(candidates, situation)
    slots = ", ".join(slot.name for slot in situation.slots)
    return (
        f"the rule {USUAL} has nothing that suits {slots}, and nothing will grow: name blocks with weights and an "
        "activation, such as Sequential(Linear, ReLU), as slots, or pass controller='probe_and_keep'"
    )


def _too_dear(candidates: list[tuple[str, str]], situation: Situation) -> str | None:
    """What to say where the parameter budget has room for none of the candidates; None if it has."""
    signals = situation.signals
    cards = [(slot, card) for slot, kind in candidates for card in situation.cards[slot] if card.name == kind]
    if any(affordable(card, signals) for _, card in cards):
        return None
    slot, least = min(cards, key=lambda each: each[1].parameters)
    return (
        f"parameter_budget is {signals.parameter_budget:,}, and nothing will grow: the smallest that the rule "
        f"{USUAL} would try is {least.name} at {slot} with {least.parameters:,} parameters. Raise the budget to "
        f"{signals.added_parameters + least.parameters:,} or more, or choose another controller"
    )
