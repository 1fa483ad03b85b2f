"""What a grower does not take on, and what it has doubts about, told when it is made."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from esper.kasmina import WrapError
from esper.leyline import BlueprintCard
from esper.tamiyo.deciders import Decider, LearnedDecider

EPOCHS_TO_BLEND = 2
"""Of a seed's life until the output shows it: one behind the host, and one of its ramp."""


def refuse_parallel(model: nn.Module) -> None:
    """Growth changes a model's parameters; replicas would have to change together."""
    kind = type(model).__name__
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) or kind.startswith(
        "FullyShard"
    ):
        raise WrapError(
            f"the model is a {kind}: growing several replicas together is not supported yet. Grow the plain model in "
            "one process on one device, and distribute what finish() gives back"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
        if processes > 1:
            raise WrapError(
                f"torch.distributed runs {processes} processes: growing several replicas together is not supported "
                "yet. Grow in one process, and distribute what finish() gives back"
            )


def require_count(name: str, value: object) -> None:
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
    if epochs is None or not isinstance(who, LearnedDecider):
        return None
    first_growth = who.controller.card.first_growth
    if not first_growth or epochs >= first_growth + EPOCHS_TO_BLEND:
        return None
    return (
        f"controller {who.name} germinates nothing before epoch {first_growth}, so in epochs={epochs} no seed can "
        "take part: train longer, or choose a rule such as probe_and_keep"
    )


def nothing_on_the_menu(who: Decider, cards: Mapping[str, Sequence[BlueprintCard]]) -> str | None:
    """What to say of a model whose slots are offered nothing that this decider germinates; None if some are."""
    menu = who.controller.card.menu if isinstance(who, LearnedDecider) else None
    if menu is None or any(card.name in menu for offered in cards.values() for card in offered):
        return None
    return (
        f"controller {who.name} germinates {', '.join(menu)} only, and no slot is offered that: nothing will grow. "
        "Choose another controller, or a rule such as probe_and_keep"
    )
