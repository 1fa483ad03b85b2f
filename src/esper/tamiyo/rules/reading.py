"""Questions that rules ask of a situation."""

from esper.leyline import (
    CAUSAL_TABLE,
    ActionSpec,
    BlueprintCard,
    HostSignals,
    LifecycleOp,
    Situation,
    SlotSnapshot,
)
from esper.leyline.utility import rent_due


def refusal(action: ActionSpec, situation: Situation) -> str | None:
    """Why an action cannot be executed now, or None if it can."""
    if action.op is LifecycleOp.WAIT:
        return None
    legal = None if action.slot is None else situation.legal.get(action.slot)
    if legal is None:
        return f"slot is {action.slot!r}; the slots are {', '.join(situation.legal)}"
    if action.op not in legal.operations:
        allowed = ", ".join(op.name for op in sorted(legal.operations))
        return f"{action.op.name} is not legal at {action.slot!r} now; legal: {allowed}"
    choices = {"blueprint": legal.blueprints, "style": legal.styles, "alpha_target": legal.alpha_targets}
    for head in CAUSAL_TABLE[action.op]:
        value = getattr(action, head)
        if head in choices and value not in choices[head]:
            return f"{head} is {value!r}; legal at {action.slot!r}: {', '.join(map(str, choices[head]))}"
    return None


def standing(signals: HostSignals) -> float | None:
    """How well the host does on validation, in one number: its accuracy, or the negative loss without one."""
    if signals.validation_accuracy is not None:
        return signals.validation_accuracy
    return None if signals.validation_loss is None else -signals.validation_loss


def affordable(card: BlueprintCard, signals: HostSignals) -> bool:
    """Whether the parameter budget, if there is one, has room for it."""
    budget = signals.parameter_budget
    return budget is None or signals.added_parameters + card.parameters <= budget


def pays(seed: SlotSnapshot, signals: HostSignals, *, margin: float, rent: float) -> bool | None:
    """Whether a seed's leave-one-out contribution exceeds margin + rent x its share of the host; None unknown."""
    if seed.contribution is None:
        return None
    return seed.contribution > margin + rent_due(rent, seed.parameters, signals.host_parameters)


def has_live_seed(situation: Situation) -> bool:
    """Whether any slot has a seed that is neither fossilised nor gone."""
    return any(slot.stage.is_live for slot in situation.slots)


def cheapest_first(situation: Situation) -> list[tuple[str, BlueprintCard]]:
    """Every (slot, card) that the host offers, by parameters; of equals, the slot nearest the output first."""
    depth = {slot.name: position for position, slot in enumerate(situation.slots)}
    offers = [(slot, card) for slot, cards in situation.cards.items() for card in cards]
    return sorted(offers, key=lambda offer: (offer[1].parameters, -depth[offer[0]]))
