"""Where an optimiser's step can be looked into: at its gradients, before it updates anything."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def before_updates(optimizer: Optimizer, look: Callable[[int], None]) -> RemovableHandle:
    """Call `look` in every step once its gradients are there: at once, or after the closure that computes them.

    It is given how often this step has called its closure before. Several look in the order they were made in.
    """
    return optimizer.register_step_pre_hook(_Hook(look))


@dataclass(frozen=True, slots=True)
class _Hook:
    """Can be pickled, as whatever refers to an optimiser with its hooks is."""

    look: Callable[[int], None]

    def __call__(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        by_place = len(args) > 1  # the first is the optimiser
        closure = args[1] if by_place else kwargs.get("closure")
        if closure is None:
            self.look(0)
            return None
        calls = itertools.count()

        def then_look() -> object:
            loss = closure()
            self.look(next(calls))
            return loss

        return (
            ((args[0], then_look, *args[2:]), kwargs)
            if by_place
            else (args, {**kwargs, "closure": then_look})
        )
