"""A task: data, a host to train on them, and how. One row of a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

import torch
from torch import nn

from esper.kasmina import GrowingModel, GrowthRules, wrap
from esper.leyline import EventSink
from esper.tolaria.data import TaskData
from esper.tolaria.tasks.parameters import Parameter, ParameterSpec, complete

Loader = Callable[[Mapping[str, Parameter]], TaskData]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSpec:
    """The host's optimiser."""

    kind: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.9
    """sgd only"""

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adam", "adamw"):
            raise ValueError(f"OptimiserSpec.kind must be sgd, adam or adamw, not {self.kind!r}")
        for name, least in (("lr", None), ("weight_decay", 0.0), ("momentum", 0.0)):
            _require_number("OptimiserSpec", name, getattr(self, name), least)


def _any_combination(parameters: Mapping[str, Parameter]) -> None:
    """Parameters that are right one by one are right together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One row of the table of tasks."""

    name: str
    summary: str
    """One line."""
    host: Callable[[TaskData], nn.Module]
    """Builds an untrained host for the data."""
    slots: tuple[str, ...]
    """Names or patterns of its submodules, as `esper.wrap` takes them."""
    blueprints: tuple[str, ...]
    """Names or patterns of what may be grown."""
    load: Loader
    """Reads or generates the data; the parameters it is given are checked and complete."""
    parameters: Mapping[str, ParameterSpec] = field(default_factory=dict)
    check: Callable[[Mapping[str, Parameter]], None] = _any_combination
    """Raises ParameterError where parameters do not go together."""
    optimiser: OptimiserSpec
    batch: int
    steps_per_epoch: int | None = None
    """None: one pass over the training set, the remainder of the last batch dropped."""
    epochs: int
    rent: float = 0.01
    """What utility pays for doubling the host's parameters."""
    causal: bool = False
    seed_lr_multiplier: float = 3.0
    clip_host: float = 5.0
    clip_seeds: float = 5.0
    isolation_penalty: float = 1.0
    rules: GrowthRules = field(default_factory=GrowthRules)
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 is autocast on CUDA; CPUs stay with fp32."""
    channels_last: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(
                f"Task.name must be letters, digits and underscores (instances are written "
                f"name:parameter=value), not {self.name!r}"
            )
        for counted in ("batch", "epochs", "steps_per_epoch"):
            _require_count(self.name, counted, getattr(self, counted), optional=counted == "steps_per_epoch")
        for name in ("rent", "isolation_penalty"):
            _require_number(f"Task {self.name}", name, getattr(self, name), 0.0)
        for name in ("seed_lr_multiplier", "clip_host", "clip_seeds"):
            _require_number(f"Task {self.name}", name, getattr(self, name), None)
        for name in ("slots", "blueprints"):
            if isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(
                    f"Task {self.name}: {name} must be a tuple of names, not {getattr(self, name)!r}"
                )
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"Task {self.name}: precision must be fp32 or bf16, not {self.precision!r}")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        # A row made from another one by `replace` checks by its own parameters, not by the other's.
        loader = self.load.loader if isinstance(self.load, _Completing) else self.load
        object.__setattr__(self, "load", _Completing(self, loader))

    def complete(self, given: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """The given parameters checked, one by one and together, and the others at their defaults."""
        chosen = complete(self.name, self.parameters, given)
        self.check(chosen)
        return chosen

    def grow(
        self,
        data: TaskData,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        events: EventSink | None = None,
    ) -> GrowingModel:
        """A new host, wrapped. Its weights and its seeds' come from `seed`; nobody else's randomness moves."""
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also reseed every CUDA generator.
            torch.default_generator.manual_seed(seed)
            host = self.host(data)
        model = wrap(
            host,
            self.slots,
            data.phases[0].train.inputs[:2].cpu(),
            causal=self.causal,
            blueprints=self.blueprints,
            rules=self.rules,
            isolation_penalty=self.isolation_penalty,
            seed=seed,
            events=events,
        )
        return model.to(device)

    def settings(self) -> dict[str, str]:
        """Every field that is plain data, as text."""
        code = ("host", "load", "check", "parameters", "summary")
        return {each.name: repr(getattr(self, each.name)) for each in fields(self) if each.name not in code}

    def __reduce__(self) -> tuple[Callable[[str], "Task"], tuple[str]]:
        return task, (self.name,)  # pickled by name: code is never stored


@dataclass(frozen=True, slots=True)
class _Completing:
    """A loader behind the checks and defaults of its row."""

    row: Task
    loader: Loader

    def __call__(self, given: Mapping[str, Parameter]) -> TaskData:
        return self.loader(self.row.complete(given))


_TABLE: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Add a row to the table. From then on its name can be used wherever a task is named."""
    if task.name in _TABLE:
        raise ValueError(f"a task named {task.name!r} is registered already; choose another name")
    _TABLE[task.name] = task
    return task


def forget(name: str) -> None:
    """Take a row out of the table, for instance to run a notebook cell again."""
    task(name)
    del _TABLE[name]


def task(name: str) -> Task:
    if name not in _TABLE:
        raise ValueError(f"no task is named {name!r}; there are {', '.join(_TABLE)}")
    return _TABLE[name]


def all_tasks() -> tuple[Task, ...]:
    """Every row, in the order of registration."""
    return tuple(_TABLE.values())


def _require_number(owner: str, name: str, value: object, least: float | None) -> None:
    """A finite number of at least `least`; None: above 0."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
    if not good or not (value > 0 if least is None else value >= least):  # type: ignore[operator]
        raise ValueError(
            f"{owner}: {name} must be a finite number {'> 0' if least is None else f'>= {least:g}'}, not {value!r}"
        )


def _require_count(owner: str, name: str, value: object, *, optional: bool) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"Task {owner}: {name} must be a whole number >= 1, not {value!r}")
