"""Keeping an optimiser and its schedulers right while parameters come and go.

Schedulers see the host's parameter groups alone, so any schedule goes on undisturbed.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esper.kasmina.optimiser_trial import PARAMETERS, Group, options_of_newcomer, try_out
from esper.kasmina.sharding import local
from esper.kasmina.slot import Slot
from esper.kasmina.tree import bare_parameters

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


_RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""The options of a group that are learning rates: `lr`, and what schedulers keep there."""


class OptimiserCare:
    """Each seed has a parameter group of its own; a fossilised one belongs to its submodule's group.

    Whatever sets the options of the submodule's group, at every step the seed's has the same, the learning rate times
    `seed_lr_multiplier`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[Scheduler],
        host: nn.Module,
        slots: Iterable[Slot],
        *,
        seed_lr_multiplier: float,
        scaler: GradScaler | None = None,
        guard_gradients: bool = True,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer")
        if not seed_lr_multiplier > 0:
            raise ValueError(f"seed_lr_multiplier must be > 0, not {seed_lr_multiplier!r}")
        owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in owned for parameter in host.parameters()):
            raise ValueError(
                "the optimizer holds none of the host's parameters: make it from the model you wrapped, for "
                "instance torch.optim.Adam(model.parameters())"
            )
        if not schedulers and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            raise ValueError("a scheduler drives this optimizer: pass it too, as scheduler=")
        self.begun_anew = try_out(optimizer)
        """Options of a group that the optimiser's step moves: its own for every group."""
        self.optimizer, self.seed_lr_multiplier = optimizer, seed_lr_multiplier
        self._slots, self._guards = tuple(slots), guard_gradients
        self._homes: dict[str, Tensor | None] = {}  # slot -> the first parameter of its submodule's group
        self.scheduled = bool(schedulers)
        """Whether options of groups are set from outside, in time."""
        hide_seeds(schedulers, optimizer, self._is_seeds)
        self._handle = optimizer.register_step_pre_hook(self._before_step)
        self._stepped = False
        self._scaler = scaler
        if scaler is not None:
            self._plain_step = scaler.step
            scaler.step = self._scaled_step  # type: ignore[method-assign]

    def detach(self) -> None:
        """Take the hooks off the optimiser and the scaler."""
        self._handle.remove()
        if self._scaler is not None and self._scaler.step == self._scaled_step:
            self._scaler.step = self._plain_step  # type: ignore[method-assign]

    def _scaled_step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """The scaler's step. One that it skips, because the host overflowed too, says nothing of the seeds."""
        self._stepped = False
        result = self._plain_step(optimizer, *args, **kwargs)
        if not self._stepped and optimizer.param_groups is self.optimizer.param_groups:
            for slot in self._slots:
                slot.non_finite[0].zero_()
        return result

    def adopt(self, slot: Slot) -> None:
        """Give a slot's seed its own group, with the submodule's settings and its own learning rate."""
        assert slot.seed is not None
        parameters = list(slot.seed.parameters())
        self._take_out(parameters)
        home = self._home(slot)
        group = options_of_newcomer(self.optimizer, home, self.begun_anew)
        named = [(f"{slot.prefix}.{name}", p) for name, p in slot.seed.named_parameters()]
        group["params"] = named if "param_names" in home else parameters
        self.optimizer.add_param_group(group)
        self._follow(self.optimizer.param_groups[-1], home)

    def settle(self, slot: Slot) -> None:
        """Move a fossilised seed into its submodule's group, its optimiser state with it."""
        assert slot.seed is not None
        parameters = list(slot.seed.parameters())
        names = self._take_out(parameters)
        home = self._home(slot)
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

    def _home(self, slot: Slot) -> Group:
        """The submodule's group, found anew."""
        home: Group = self.optimizer.param_groups[self.home_index(slot)]
        self._homes[slot.name] = next(iter(home["params"]), None)
        return home

    def _is_seeds(self, group: Group) -> bool:
        first = {
            id(next(slot.seed.parameters()))
            for slot in self._slots
            if slot.seed is not None and slot.stage.is_live
        }
        return bool(group["params"]) and id(group["params"][0]) in first

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
        return names

    def _before_step(self, *_: object) -> None:
        self._stepped = True
        if growing := [slot for slot in self._slots if slot.seed is not None and slot.stage.is_live]:
            self._care_for(growing)

    @torch.no_grad()  # not inference_mode: writes gradients that the optimiser reads
    def _care_for(self, growing: Sequence[Slot]) -> None:
        """Before a step: each live seed's group as its submodule's is now, and no update from what broke."""
        groups = {id(group["params"][0]): group for group in self.optimizer.param_groups if group["params"]}
        for slot in growing:
            assert slot.seed is not None
            group = groups.get(id(next(slot.seed.parameters())))
            if group is not None:  # a fading seed has none
                self._follow(group, groups.get(id(self._homes.get(slot.name))) or self._home(slot))
            if self._guards:
                self._skip_non_finite(slot, slot.seed)

    def _follow(self, group: Group, home: Group) -> None:
        """Give a seed's group the options that its submodule's has now, the learning rates times the multiplier."""
        for key in home.keys() - PARAMETERS - self.begun_anew:
            value = home[key]
            if key in _RATE_KEYS and value is not None:
                value = value * self.seed_lr_multiplier
            if isinstance(group.get(key), Tensor):  # in place, as captured programs need it
                group[key].copy_(value)
            else:
                group[key] = value

    def _skip_non_finite(self, slot: Slot, seed: nn.Module) -> None:
        """Before a step: no update from a forward in which the seed's output was not finite.

        On the CPU the gradients become None, which skips the update exactly. On other devices reading the flag
        would stall every step, so the gradients become zero there and only momentum may still move the seed.
        A fused optimiser skips what a scaler found to overflow inside its step: that says nothing of the seed.
        """
        overflow = getattr(self.optimizer, "found_inf", None)
        if isinstance(overflow, Tensor):
            slot.non_finite[0].logical_and_(overflow.sum().to(slot.non_finite.device) == 0)
        flag = slot.take_step_flag()
        on_cpu = flag.device.type == "cpu"
        if on_cpu and not flag:
            return
        for parameter in seed.parameters():
            if on_cpu:
                parameter.grad = None
            elif parameter.grad is not None:
                local(parameter.grad).masked_fill_(flag, 0.0)
