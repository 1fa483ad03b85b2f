"""What a grower refuses, and what it warns of, when it is made; and what a parameter budget has room for.

Of several processes, too: they must have been made alike.
"""

import math
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import replace
from numbers import Real

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from esper.kasmina import ReplicaError, WrapError
from esper.kasmina.governor import GovernorRules
from esper.kasmina.probing import ExampleInput
from esper.kasmina.replicas import Replicas
from esper.kasmina.wrapping import WrapOptions
from esper.leyline import ActionSpec, BlueprintCard, LifecycleOp, SeedSlotProtocol, Style, gate_parameters
from esper.leyline.errors import nearest
from esper.tamiyo.deciders import Decider, RuleDecider
from esper.tamiyo.rules.policy import TimedRule

EPOCHS_TO_BLEND = 2
"""Of a seed's life until the output shows it: one behind the host, and one of its ramp."""


def refuse_unknown(options: Mapping[str, object], own: Collection[str]) -> None:
    """Raise for a keyword that neither Grower nor wrap has."""
    known = [*own, *WrapOptions.__annotations__]
    unknown = set(options) - set(known)
    if unknown:
        raise TypeError(
            f"Grower() got an unexpected keyword argument {min(unknown)!r}{nearest(min(unknown), known)}"
        )


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


def refuse_accumulation(batches: int) -> None:
    """The model was wrapped already, with the penalty of isolated training, which counts once per batch added up."""
    if batches > 1:
        raise WrapError(
            f"accumulate is {batches}, and the model is a GrowingModel that was wrapped already: leave accumulate "
            f"out, and give esper.wrap isolation_penalty=1 / {batches}"
        )


_KINDS: Mapping[str, tuple[type, str]] = {
    "model": (nn.Module, "a torch.nn.Module, made and not its class"),
    "scaler": (GradScaler, "a torch.amp.GradScaler, or None where gradients are not scaled"),
    "governor": (GovernorRules, "a GovernorRules, or None to never go back"),
    "keep_best": (bool, "True or False"),
    "generator": (torch.Generator, "a torch.Generator, or None to take the first choice"),
}
"""option -> the class of its values, and what to say of another value"""


def require_kinds(**options: object) -> None:
    """Raise unless each option is of its class, or None where that means something."""
    for name, value in options.items():
        kind, expected = _KINDS[name]
        if not isinstance(value, kind) and (value is not None or " None " not in expected):
            raise TypeError(f"{name} is {value!r}; expected {expected}")


def require_rent(rent: object) -> None:
    """Raise unless it is a finite number >= 0."""
    if isinstance(rent, bool) or not isinstance(rent, Real) or not 0.0 <= float(rent) < math.inf:
        raise ValueError(f"rent is {rent!r}; expected a finite number >= 0")


def require_count(name: str, value: object, none: str | None = None) -> None:
    """Raise unless it is a whole number >= 1, or None where None means something: `none` says what."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not whole and (value is not None or none is None):
        or_none = f", or None {none}" if none else ""
        raise ValueError(f"{name} is {value!r}; expected a whole number >= 1{or_none}")


def require_numbers(
    epochs: object, training_samples: object, parameter_budget: object, accumulate: object, rent: object
) -> None:
    """Raise unless the numbers that a Grower takes are what they count or cost."""
    require_count("epochs", epochs, "where it is unknown")
    require_count("training_samples", training_samples, "where it is unknown")
    require_count("parameter_budget", parameter_budget, "for no limit")
    require_count("accumulate", accumulate)
    require_rent(rent)


def require_place(
    slots: Sequence[str] | None, example_input: ExampleInput | None
) -> tuple[Sequence[str], ExampleInput]:
    """Both, of a plain model; raises where either is missing, naming the one that is."""
    if slots is not None and example_input is not None:
        return slots, example_input
    questions = {"slots": "where may the model grow", "example_input": "what goes through it"}
    given = {"slots": slots, "example_input": example_input}
    missing = [name for name, value in given.items() if value is None]
    verb = "are" if len(missing) > 1 else "is"
    asked = ", and ".join(questions[name] for name in missing)
    raise WrapError(f"{' and '.join(missing)} {verb} missing: {asked}?")


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


def too_short(who: Decider, epochs: int | None, *, first_decision: int) -> str | None:
    """What to say of a run in which this decider cannot grow anything; None if it can.

    first_decision  the epochs that are trained before it is asked for the first time
    """
    if epochs is None:
        return None
    first_growth = who.settings.first_growth
    if first_growth and epochs < first_growth + EPOCHS_TO_BLEND:
        return (
            f"controller {who.name} germinates nothing before epoch {first_growth}, so in epochs={epochs} no seed "
            f"can take part: train for {first_growth + EPOCHS_TO_BLEND} epochs or more"
        )
    rule = who.rule if isinstance(who, RuleDecider) else None
    if not isinstance(rule, TimedRule) or _begins(rule, epochs, first_decision):
        return None
    longer = range(epochs + 1, epochs + 1_000)
    enough = next((length for length in longer if _begins(rule, length, first_decision)), None)
    advice = "another controller" if enough is None else f"{enough} epochs or more"
    return f"the rule {who.name} begins nothing in so short a run as epochs={epochs}: train with {advice}"


def _begins(rule: TimedRule, epochs: int, first_decision: int) -> bool:
    """Whether it may germinate in a run of so many epochs."""
    return any(epoch >= first_decision for epoch in rule.may_begin(epochs))


def nothing_on_the_menu(who: Decider, cards: Mapping[str, Sequence[BlueprintCard]]) -> str | None:
    """What to say of a model whose slots are offered nothing that this decider germinates; None if some are."""
    menu = who.settings.menu
    if menu is None or any(card.name in menu for offered in cards.values() for card in offered):
        return None
    return (
        f"controller {who.name} germinates {', '.join(menu)} only, and no slot is offered that: nothing will grow. "
        "Choose another controller, or leave it out: the rule by_layout goes by what is offered"
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


def refuse_strangers(model: nn.Module, replicas: Replicas) -> None:
    """Of several processes, each with a plain model: nobody would keep them equal."""
    if replicas.size == 1 and dist.is_available() and dist.is_initialized():
        processes = dist.get_world_size()
        if processes > 1:
            raise WrapError(
                f"torch.distributed runs {processes} processes, and the model is a plain "
                f"{type(model).__name__}: give the Grower DistributedDataParallel(model), or apply "
                "torch.distributed.fsdp.fully_shard first"
            )


def require_as_many(replicas: Replicas, validate: object) -> None:
    """Each process must validate, and where a forward needs all processes, with as many batches."""
    batches = len(validate) if replicas.in_step and isinstance(validate, Sized) else None
    shown = None if validate is None else "given" if batches is None else f"{batches} batches"
    require_alike(replicas, validate=shown)


def require_alike(replicas: Replicas, **given: object) -> None:
    """Raise unless all processes were given the same; without effect in one process."""
    for rank, theirs in enumerate(replicas.gather(given)):
        for name, value in given.items():
            if theirs[name] != value:
                raise ReplicaError(
                    f"{name} is {value} in process {replicas.rank} and {theirs[name]} in process {rank}: make "
                    "the Grower with the same in all of them"
                )
