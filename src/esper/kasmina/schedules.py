"""Schedulers of an optimiser whose groups come and go: they see the host's alone, so any goes on undisturbed."""

from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Group = dict[str, Any]
"""A parameter group of an optimiser."""

Scheduler = LRScheduler


class HostGroups:
    """An optimiser as a scheduler sees it: all of it but the parameter groups of seeds."""

    def __init__(self, optimizer: Optimizer, is_seeds: Callable[[Group], bool]) -> None:
        self.optimizer, self._is_seeds = optimizer, is_seeds

    @property
    def param_groups(self) -> list[Group]:
        """The groups that were there when the schedule was made."""
        return [group for group in self.optimizer.param_groups if not self._is_seeds(group)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "optimizer" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)


def hide_seeds(
    schedulers: Iterable[Scheduler], optimizer: Optimizer, is_seeds: Callable[[Group], bool]
) -> None:
    """Show these schedulers, and those they are made of, the optimiser without the groups that `is_seeds` names."""
    drivers = []
    for scheduler in schedulers:
        parts = _parts(scheduler, {})
        if not parts:
            raise TypeError(
                f"scheduler {type(scheduler).__name__} has no attribute 'optimizer': pass the object that sets the "
                "learning rates, made from the optimizer"
            )
        for part in parts:
            driven = part.optimizer.optimizer if isinstance(part.optimizer, HostGroups) else part.optimizer
            if driven.param_groups is not optimizer.param_groups:  # a wrapper has the same ones
                raise ValueError(f"scheduler {type(part).__name__} drives another optimizer")
            drivers.append((part, driven))
    for part, driven in drivers:
        part.optimizer = HostGroups(driven, is_seeds)


def _parts(scheduler: object, seen: dict[int, object]) -> list[Any]:
    """What drives an optimiser among a scheduler and the schedulers it is made of."""
    if id(scheduler) in seen or not hasattr(scheduler, "__dict__"):
        return []
    seen[id(scheduler)] = scheduler
    parts: list[Any] = [scheduler] if "optimizer" in vars(scheduler) else []
    for value in vars(scheduler).values():
        for member in value if isinstance(value, list | tuple) else [value]:
            if callable(getattr(member, "step", None)) and not isinstance(member, Optimizer | HostGroups):
                parts += _parts(member, seen)
    return parts
