"""What a grower does not take on, told when it is made."""

from collections.abc import Mapping

import torch
from torch import nn

from esper.kasmina import WrapError


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


def refuse_wrapping(options: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """A GrowingModel was wrapped by somebody else: options of wrapping would change nothing in it."""
    given = [
        name
        for name, value in options.items()
        if value is not None and not (name in usual and value == usual[name])
    ]
    if given:
        raise WrapError(
            f"the model is a GrowingModel and was wrapped already: leave out {', '.join(given)}, or give them to "
            "esper.wrap"
        )
