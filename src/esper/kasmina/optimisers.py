"""Keeping an optimiser and its schedulers right while parameters come and go."""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import lr_scheduler as schedulers

from esper.kasmina.slot import Slot
from esper.kasmina.tree import bare_parameters

Scheduler = schedulers.LRScheduler
_OPTIMISERS = (SGD, Adam, AdamW)
_SCHEDULERS = (
    schedulers.LambdaLR,
    schedulers.MultiplicativeLR,
    schedulers.StepLR,
    schedulers.MultiStepLR,
    schedulers.ConstantLR,
    schedulers.LinearLR,
    schedulers.ExponentialLR,
    schedulers.PolynomialLR,
    schedulers.CosineAnnealingLR,
    schedulers.CosineAnnealingWarmRestarts,
    schedulers.CyclicLR,
    schedulers.OneCycleLR,
    schedulers.ReduceLROnPlateau,
    schedulers.SequentialLR,
    schedulers.ChainedScheduler,
)
# What schedulers keep per parameter group: on themselves, as lists, and in the group.
_RATE_LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")
_OTHER_LISTS = ("lr_lambdas", "base_momentums", "max_momentums")
_RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")

Group = dict[str, object]


class OptimiserCare:
    """Each seed has a parameter group of its own; a fossilised one belongs to its submodule's group."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[Scheduler],
        host: nn.Module,
        *,
        seed_lr_multiplier: float,
    ) -> None:
        if not isinstance(optimizer, _OPTIMISERS):
            names = ", ".join(kind.__name__ for kind in _OPTIMISERS)
            raise TypeError(f"optimizer {type(optimizer).__name__} is not supported; use one of {names}")
        if not seed_lr_multiplier > 0:
            raise ValueError(f"seed_lr_multiplier must be > 0, not {seed_lr_multiplier!r}")
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in owned for parameter in host.parameters()):
            raise ValueError(
                "the optimizer holds none of the host's parameters: make it from the model you wrapped, for "
                "instance torch.optim.Adam(model.parameters())"
            )
        self.optimizer = optimizer
        self.schedulers = _flatten(schedulers)
        for scheduler in self.schedulers:
            if type(scheduler) not in _SCHEDULERS:
                names = ", ".join(kind.__name__ for kind in _SCHEDULERS)
                raise TypeError(f"scheduler {type(scheduler).__name__} is not supported; use one of {names}")
            if scheduler.optimizer.param_groups is not optimizer.param_groups:  # a wrapper has the same ones
                raise ValueError(f"scheduler {type(scheduler).__name__} drives another optimizer")
        if not self.schedulers and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            raise ValueError("a scheduler drives this optimizer: pass it too, attach(optimizer, scheduler)")
        self.seed_lr_multiplier = seed_lr_multiplier
        self._watched: tuple[Slot, ...] = ()
        self._handle = optimizer.register_step_pre_hook(self._skip_non_finite)

    def watch(self, slots: Iterable[Slot]) -> None:
        """Skip the update of a seed whose output was not finite since the last step."""
        self._watched = tuple(slots)

    def detach(self) -> None:
        """Take the hook off the optimiser."""
        self._handle.remove()

    def adopt(self, slot: Slot) -> None:
        """Give a slot's seed its own group, with the submodule's settings and its own learning rate."""
        assert slot.seed is not None
        parameters = list(slot.seed.parameters())
        self._take_out(parameters)
        home_index = self.home_index(slot)
        home = self.optimizer.param_groups[home_index]
        group: Group = {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in home.items()
            if key not in ("params", "param_names")
        }
        for key in _RATE_KEYS:
            if key in group:
                group[key] = group[key] * self.seed_lr_multiplier  # type: ignore[operator]
        named = [(f"{slot.prefix}.{name}", p) for name, p in slot.seed.named_parameters()]
        group["params"] = named if "param_names" in home else parameters
        self.optimizer.add_param_group(group)
        for name, values in self._own_lists():  # of the schedulers: an entry for the new last group
            value = values[home_index]
            values.append(value * self.seed_lr_multiplier if name in _RATE_LISTS else value)

    def settle(self, slot: Slot) -> None:
        """Move a fossilised seed into its submodule's group, its optimiser state with it."""
        assert slot.seed is not None
        parameters = list(slot.seed.parameters())
        names = self._take_out(parameters)
        home = self.optimizer.param_groups[self.home_index(slot)]
        home["params"].extend(parameters)
        if "param_names" in home:
            home["param_names"].extend(names)

    def forget(self, parameters: Sequence[Tensor]) -> None:
        """Take parameters out together with their optimiser state."""
        self._take_out(parameters)
        for parameter in parameters:
            self.optimizer.state.pop(parameter, None)

    def home_index(self, slot: Slot) -> int:
        """The group that holds most of the submodule behind the slot; the first if none holds any."""
        assert slot.site.module is not None
        own = {id(parameter) for parameter in bare_parameters(slot.site.module)}
        sizes = [
            sum(parameter.numel() for parameter in group["params"] if id(parameter) in own)
            for group in self.optimizer.param_groups
        ]
        return sizes.index(max(sizes))

    def group_lists(self) -> list[tuple[Scheduler, str, list[Any]]]:
        """Every list that a scheduler keeps per parameter group, with the scheduler and the attribute's name."""
        return [
            (scheduler, name, values)
            for scheduler in self.schedulers
            for name in _RATE_LISTS + _OTHER_LISTS
            if isinstance(values := getattr(scheduler, name, None), list)
        ]

    def _own_lists(self) -> list[tuple[str, list[Any]]]:
        """The same without empty ones; a list that two schedulers share comes once."""
        unique = {id(values): (name, values) for _, name, values in self.group_lists() if values}
        return list(unique.values())

    def _take_out(self, parameters: Sequence[Tensor]) -> list[str]:
        """Take parameters out of their groups, and drop a group that this empties; returns their names."""
        leaving, names = {id(parameter) for parameter in parameters}, []
        for index in reversed(range(len(self.optimizer.param_groups))):
            group = self.optimizer.param_groups[index]
            stays = [id(parameter) not in leaving for parameter in group["params"]]
            if all(stays):
                continue
            if "param_names" in group:
                names += [name for name, stay in zip(group["param_names"], stays, strict=True) if not stay]
            for key in {"params", "param_names"} & set(group):
                group[key] = list(compress(group[key], stays))
            if not group["params"]:
                del self.optimizer.param_groups[index]
                for _, values in self._own_lists():
                    del values[index]
        return names

    @torch.no_grad()  # not inference_mode: writes gradients that the optimiser reads
    def _skip_non_finite(self, *_: object) -> None:
        """Before a step: no update from a forward in which the seed's output was not finite.

        On the CPU the gradients become None, which skips the update exactly. On other devices reading the flag
        would stall every step, so the gradients become zero there and only momentum may still move the seed.
        """
        for slot in self._watched:
            if slot.seed is None or not slot.stage.is_live:
                continue
            flag = slot.take_step_flag()
            gradients = [p for p in slot.seed.parameters() if p.grad is not None]
            if flag.device.type == "cpu":
                if flag:
                    for parameter in gradients:
                        parameter.grad = None
            else:
                for parameter in gradients:
                    assert parameter.grad is not None
                    parameter.grad.masked_fill_(flag, 0.0)


def _flatten(given: Iterable[Scheduler]) -> list[Scheduler]:
    """Schedulers and the ones they are made of."""
    flat = []
    for scheduler in given:
        flat.append(scheduler)
        if isinstance(scheduler, schedulers.SequentialLR | schedulers.ChainedScheduler):
            flat += _flatten(scheduler._schedulers)
    return flat
