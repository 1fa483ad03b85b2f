"""What a grower does not take on, told when it is made."""

from collections.abc import Iterable

import torch
from torch import nn

from esper.kasmina import GrowingModel, WrapError
from esper.leyline import BlueprintCard


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


def require_room(model: GrowingModel, parameter_budget: int | None) -> None:
    require_count("parameter_budget", parameter_budget)
    if parameter_budget is None:
        return
    offers: Iterable[tuple[str, BlueprintCard]] = (
        (name, card) for name, slot in model.slots.items() for card in slot.cards
    )
    slot, cheapest = min(offers, key=lambda offer: offer[1].parameters)
    if cheapest.parameters > parameter_budget:
        raise ValueError(
            f"parameter_budget is {parameter_budget:,}, and nothing that is offered is so small: the cheapest is "
            f"{cheapest.name} at {slot} with {cheapest.parameters:,} parameters"
        )


def require_count(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and not whole:
        raise ValueError(f"{name} is {value!r}; expected a whole number >= 1, or None where it is unknown")
