"""Keeping an optimiser right while parameters come and go.

Whether parameters may come and go under an optimiser is tried on a few small stand-ins before anything is trained.
What growth needs is that each parameter is updated by itself: from its own gradient, its own state and the options of
its group. So a blank copy of the optimiser trains one stand-in per group, once alone and once with a newcomer of
each rank; what stood there before may not notice.
"""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from esper.kasmina.replicas import local
from esper.kasmina.schedules import Group, Scheduler, hide_seeds
from esper.kasmina.slot import Slot
from esper.kasmina.steps import before_updates
from esper.kasmina.tree import bare_parameters, is_frozen

# The trial

_STEPS = 3
_HOST_SHAPE = (3, 5)
_SEED_SHAPES = ((5,), (3, 5), (5, 3, 2), (5, 3, 2, 2), (5, 3, 2, 2, 2))
"""A seed's parameters: scales and biases, matrices, kernels over one, two or three axes."""
PARAMETERS = frozenset({"params", "param_names"})
"""The entries of a group that say what it holds; the others are options."""
_MADE_ANEW = frozenset({"state", "param_groups", "step"})
"""Attributes of an optimiser that a blank copy has its own of; a scheduler's wrapper of `step` calls the original."""


class OptimizerRefused(TypeError):
    """Parameters cannot come and go under this optimiser."""

    def __init__(self, optimizer: Optimizer, reason: str) -> None:
        super().__init__(
            f"optimizer {type(optimizer).__name__} cannot train a network that grows: {reason}. Any optimizer that "
            "updates each parameter by itself can: torch.optim.AdamW, SGD, NAdam, RMSprop, ..."
        )


def try_out(optimizer: Optimizer) -> frozenset[str]:
    """Refuse an optimiser that does not update each parameter by itself.

    Returns the options of a group that `step` itself moves (a count of steps, running sums): a new group begins them
    anew.
    """
    _refuse_hidden_parameters(optimizer)
    for number, group in enumerate(optimizer.param_groups):
        if isinstance(group.get("lr"), bool) or not isinstance(group.get("lr"), int | float | Tensor):
            raise OptimizerRefused(
                optimizer,
                f"its group {number} has lr={group.get('lr')!r}, and a seed learns at a multiple of that",
            )
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            alone, _, moved = _train(optimizer)
            grown, twin, _ = _train(optimizer, begun_anew=moved)
        except Exception as error:
            raise OptimizerRefused(optimizer, _why(optimizer, error)) from error
    if not all(torch.equal(one, other) for one, other in zip(alone, grown, strict=True)):
        raise OptimizerRefused(
            optimizer, "it updates parameters together, so that a seed would change how the host learns"
        )
    _require_state_per_parameter(optimizer, twin)
    return moved


def state_of(optimizer: Optimizer, group: Group, parameter: Tensor) -> Mapping[str, object]:
    """The state that an optimiser keeps of a parameter like this one in a group, once it has stepped."""
    twin = blank_copy(optimizer)
    stand_in = nn.Parameter(torch.zeros_like(parameter))
    twin.param_groups = [_options(group) | {"params": [stand_in]}]
    stand_in.grad = torch.zeros_like(stand_in)
    _step(twin)
    state: Mapping[str, object] = twin.state[stand_in]
    return state


def blank_copy(optimizer: Optimizer) -> Optimizer:
    """The same optimiser with no parameters, no state and no hooks; stepping it leaves the original as it is.

    Everything else it holds is copied, but for parameters, and handles that have no copies (process groups, locks).
    """
    twin: Optimizer = object.__new__(type(optimizer))
    same = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    memo = {id(optimizer): twin, **same}
    for name, value in vars(optimizer).items():
        if isinstance(value, OrderedDict) and name.endswith("_hooks"):
            twin.__dict__[name] = OrderedDict()
        elif name not in _MADE_ANEW:
            twin.__dict__[name] = _copied(value, memo)
    twin.state, twin.param_groups = defaultdict(dict), []
    return twin


def _copied(value: object, memo: dict[int, Any]) -> object:
    """A deep copy; of what has none, a handle of something outside, the thing itself."""
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, RuntimeError):
        if isinstance(value, dict):
            return {key: _copied(member, memo) for key, member in value.items()}
        return [_copied(member, memo) for member in value] if isinstance(value, list) else value


def options_of_newcomer(optimizer: Optimizer, home: Group, begun_anew: frozenset[str]) -> Group:
    """The options of a new group beside `home`: the same, but for what `step` moves, which begins anew."""
    options = {key: value for key, value in _options(home).items() if key not in begun_anew}
    first = {key: value for key, value in optimizer.defaults.items() if key in begun_anew}
    return options | copy.deepcopy(first)


def _train(
    optimizer: Optimizer, *, begun_anew: frozenset[str] | None = None
) -> tuple[list[Tensor], Optimizer, frozenset[str]]:
    """A stand-in for each group after a few steps; the optimiser used; which options of its groups moved.

    With `begun_anew`, as `options_of_newcomer` takes it, newcomers join every group after the first step.
    """
    twin = blank_copy(optimizer)
    hosts = [nn.Parameter(_numbers(_HOST_SHAPE, group, 0)) for group in optimizer.param_groups]
    twin.param_groups = [
        _options(group) | {"params": [host]}
        for group, host in zip(optimizer.param_groups, hosts, strict=True)
    ]
    if callable(train := getattr(twin, "train", None)):  # schedule-free ones step in training mode alone
        train()
    before = [_options(group) for group in twin.param_groups]
    for step in range(1, _STEPS + 1):
        if begun_anew is not None and step == 2:
            for home in twin.param_groups[: len(hosts)]:
                newcomers = [nn.Parameter(_numbers(shape, home, 0)) for shape in _SEED_SHAPES]
                options = options_of_newcomer(twin, home, begun_anew)
                twin.add_param_group(options | {"lr": home["lr"] * 2.0, "params": newcomers})
        for group in twin.param_groups:
            for parameter in group["params"]:
                parameter.grad = _numbers(parameter.shape, group, step)
        _step(twin)
    moved = {
        key
        for group, then in zip(twin.param_groups, before, strict=False)
        for key in group.keys() - PARAMETERS
        if key not in then or not _same(group[key], then[key])
    }
    return [host.detach() for host in hosts], twin, frozenset(moved)


def _step(twin: Optimizer) -> None:
    with torch.enable_grad():
        twin.step()


def _numbers(shape: tuple[int, ...], group: Group, step: int) -> Tensor:
    """Some numbers where and as the parameters of the group are, at each step larger.

    As gradients they keep their direction, in which an optimiser that adapts one rate to all parameters goes faster.
    """
    like = group["params"][0] if group["params"] else torch.zeros(())
    count = torch.Size(shape).numel()
    numbers = torch.sin(torch.arange(1.0, count + 1.0)).view(shape) * (1.0 + 0.1 * step)
    return numbers.to(device=like.device, dtype=like.dtype)


def _options(group: Group) -> Group:
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in PARAMETERS}


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _refuse_hidden_parameters(optimizer: Optimizer) -> None:
    """What holds parameters anywhere but in its groups would not notice that they changed there."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            raise OptimizerRefused(
                optimizer,
                f"it wraps another one ({name}: {type(value).__name__}); pass that one if the wrapper does no more "
                "than call it, as Accelerate's does",
            )
        if isinstance(value, nn.Module):
            raise OptimizerRefused(optimizer, f"it holds a module ({name}: {type(value).__name__})")
        if name not in ("state", "param_groups") and any(id(member) in owned for member in _members(value)):
            raise OptimizerRefused(
                optimizer,
                f"it keeps a list of all parameters ({name}) and steps them as one, and new ones would not be in it",
            )


def _members(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, list | tuple | set):
        yield from value
    else:
        yield value


def _require_state_per_parameter(optimizer: Optimizer, twin: Optimizer) -> None:
    for holder in (optimizer, twin):
        owned = {id(parameter) for group in holder.param_groups for parameter in group["params"]}
        for key, state in holder.state.items():
            if id(key) not in owned:
                raise OptimizerRefused(
                    optimizer, f"its state is not kept per parameter: it has an entry {_short(key)}"
                )
            for name, value in state.items():
                if not is_plain(value):
                    raise OptimizerRefused(
                        optimizer,
                        f"its state {name!r} is a {type(value).__name__}, not a tensor, a number or text",
                    )


def is_plain(value: object) -> bool:
    """A tensor, or what can be written as text and read back."""
    return value is None or isinstance(value, Tensor | bool | int | float | str)


def _short(key: object) -> str:
    return f"for a tensor of shape {tuple(key.shape)}" if isinstance(key, Tensor) else f"{key!r:.40}"


def _why(optimizer: Optimizer, error: Exception) -> str:
    """What a trial step that raised says of the optimiser."""
    if isinstance(error, KeyError):
        return f"it makes state when it is made itself, and has none for parameters that come later: {error}"
    found = f"on vectors, matrices and kernels with dense gradients it raised {type(error).__name__}: {error}"
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(parameter.ndim == 2 for parameter in held):
        found += (
            ". Every seed has vectors too: if another optimizer trains the rest of the host, pass that one, "
            "and seeds learn by it"
        )
    return found


# Care

_RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""The options of a group that are learning rates: `lr`, and what schedulers keep there."""

SEED_RATE, SEED_RATE_ON_FROZEN_HOSTS = 3.0, 1.0
"""A seed's learning rate over that of the part it grows at, where none is given; and where no part learns but the
head: at three times its rate seeds outrun it (docs/adapters.md)."""


def home_index(slot: Slot, groups: Sequence[Group], first: Tensor | None = None) -> int:
    """The group that begins with `first`; else the one that holds most of a slot's submodule, or the first of all."""
    for index, group in enumerate(groups):
        if group["params"] and group["params"][0] is first:
            return index
    assert slot.site.module is not None
    own = {id(parameter) for parameter in bare_parameters(slot.site.module)}
    sizes = [
        sum(parameter.numel() for parameter in group["params"] if id(parameter) in own) for group in groups
    ]
    return sizes.index(max(sizes))


def _names(slot: Slot) -> list[str]:
    """Of the parameters of a slot's seed, in the growing model."""
    return [] if slot.seed is None else [f"{slot.prefix}.{name}" for name, _ in slot.seed.named_parameters()]


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
        seed_lr_multiplier: float | None,
        scaler: GradScaler | None = None,
        guard_gradients: bool = True,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; expected a torch.optim.Optimizer")
        self._slots, self._guards = tuple(slots), guard_gradients
        if seed_lr_multiplier is None:
            frozen = is_frozen(host, [slot.name for slot in self._slots])
            seed_lr_multiplier = SEED_RATE_ON_FROZEN_HOSTS if frozen else SEED_RATE
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
        self.homes: dict[str, Tensor | None] = {}
        """The slots whose seed has a group of its own -> the first parameter of the group that it follows, if any."""
        hide_seeds(schedulers, optimizer, self.is_seeds)
        self.handles = [before_updates(optimizer, self._before_update)]
        self._stepped = False
        self._scaler = scaler
        if scaler is not None:
            self._plain_step = scaler.step
            scaler.step = self._scaled_step  # type: ignore[method-assign]

    def detach(self) -> None:
        """Take the hooks off the optimiser and the scaler."""
        for handle in self.handles:
            handle.remove()
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

    def adopt(self, slot: Slot, home: Group | None = None) -> None:
        """Give a slot's seed its own group, with the settings of the submodule's, or of `home`, and its own rate."""
        assert slot.seed is not None
        self._take_out(slot, drop=True)
        home = self._take_home(slot, home or self.found_home(slot))
        slot.maximizes = bool(home.get("maximize"))
        group = options_of_newcomer(self.optimizer, home, self.begun_anew)
        named = list(zip(_names(slot), slot.seed.parameters(), strict=True))
        group["params"] = named if "param_names" in home else list(slot.seed.parameters())
        self.optimizer.add_param_group(group)
        self._follow(self.optimizer.param_groups[-1], home)

    def settle(self, slot: Slot, home: Group | None = None) -> None:
        """Move a fossilised seed into its submodule's group, or into `home`, its optimiser state with it."""
        assert slot.seed is not None
        names = self._take_out(slot, drop=self._leaves_home(slot))
        home = home or self.found_home(slot)
        home["params"].extend(slot.seed.parameters())
        if "param_names" in home:
            home["param_names"].extend(names or _names(slot))

    def forget(self, slot: Slot) -> None:
        """Take a slot's seed, if there is one, out together with its optimiser state."""
        if slot.seed is None:
            return
        self._take_out(slot, drop=self._leaves_home(slot))
        for parameter in slot.seed.parameters():
            self.optimizer.state.pop(parameter, None)

    def found_home(self, slot: Slot) -> Group:
        """The submodule's group, found anew."""
        groups = self.optimizer.param_groups
        return groups[home_index(slot, groups)]

    def _take_home(self, slot: Slot, home: Group) -> Group:
        """Let the seed's group follow this one; returns it."""
        self.homes[slot.name] = next(iter(home["params"]), None)
        return home

    def _leaves_home(self, slot: Slot) -> bool:
        """Note that a slot's seed has no group of its own any more; returns whether it had one."""
        had = slot.name in self.homes
        self.homes.pop(slot.name, None)
        return had

    def is_seeds(self, group: Group) -> bool:
        """Whether a group is a seed's own; all others are the host's, also those where just fossils are."""
        first = {
            id(next(slot.seed.parameters()))
            for slot in self._slots
            if slot.seed is not None and slot.name in self.homes
        }
        return bool(group["params"]) and id(group["params"][0]) in first

    def _take_out(self, slot: Slot, *, drop: bool) -> list[str]:
        """Take a slot's seed out of the groups; returns the names of its parameters.

        drop  whether a group that this empties was its own, and goes too
        """
        assert slot.seed is not None
        leaving, names = {id(parameter) for parameter in slot.seed.parameters()}, []
        for index in reversed(range(len(self.optimizer.param_groups))):
            group = self.optimizer.param_groups[index]
            stays = [id(parameter) not in leaving for parameter in group["params"]]
            if all(stays):
                continue
            if "param_names" in group:
                names += [name for name, stay in zip(group["param_names"], stays, strict=True) if not stay]
            for key in {"params", "param_names"} & set(group):
                group[key] = list(compress(group[key], stays))
            if drop and not group["params"]:
                del self.optimizer.param_groups[index]
        return names

    def _before_update(self, _: int) -> None:
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
                home = groups.get(id(self.homes.get(slot.name)))
                self._follow(group, home or self._take_home(slot, self.found_home(slot)))
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
