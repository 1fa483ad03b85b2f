"""A task: data, a host to train on them, and the settings of that training. One row of the table of tasks.

Also what an instance of a task may choose: its parameters, which are checked and written as text here.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Literal, get_args
from urllib.parse import unquote

import torch
from torch import nn

from esper.kasmina import GrowingModel, GrowthRules, wrap
from esper.leyline import EventSink
from esper.leyline.utility import Counts
from esper.tolaria.data import TaskData

Parameter = int | float | str
Parameters = dict[str, Parameter]

_KINDS: Mapping[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str}


class ParameterError(ValueError):
    """An instance parameter is unknown, missing, or not what its task allows."""


_LARGEST = 2**63
"""No parameter is as large: whole numbers are rng seeds and counts of 64 bits."""
_LONGEST = 200
"""Characters of a text that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter of a task: what it may be and what it does."""

    kind: Literal["int", "float", "str"]
    doc: str
    """One line."""
    default: Parameter | None = None
    """None: it must be given."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_path: bool = False
    """Names a file: data loaded from it are read again when the file changes."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"ParameterSpec.kind must be one of {', '.join(_KINDS)}, not {self.kind!r}")
        if self.default is not None:
            self.check("default", self.default)

    @property
    def allowed(self) -> str:
        """In words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.is_path:
            return "the path of a file"
        noun = {"int": "a whole number", "float": "a number", "str": "a text that is not empty"}[self.kind]
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        return noun if self.low is None else f"{noun} of at least {self.low:g}"

    def check(self, name: str, value: Parameter) -> Parameter:
        """The value in its canonical type, or an error that names the field, the value and what is allowed."""
        kind = _KINDS[self.kind]
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            with suppress(OverflowError):  # too large for a float: refused below
                value = float(value)
        if type(value) is not kind:
            raise ParameterError(f"{name} must be {self.allowed}, not {value!r}")
        if isinstance(value, str):
            wrong = (bool(self.choices) and value not in self.choices) or not value
        else:
            below = self.low is not None and value < self.low
            above = self.high is not None and value > self.high
            wrong = below or above or not abs(value) < _LARGEST  # NaN too
        if wrong:
            raise ParameterError(f"{name} must be {self.allowed}, not {value!r}")
        return value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0: one value, one text

    def parse(self, name: str, text: str) -> Parameter:
        """The value of a text, checked."""
        try:
            return self.check(name, _KINDS[self.kind](text))
        except ParameterError:
            raise
        except ValueError:
            raise ParameterError(f"{name} must be {self.allowed}, not {text!r}") from None


def shown(text: str) -> str:
    """A text in quotes, for an error; a long one ends in dots."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def parse_parameters(text: str, specs: Mapping[str, ParameterSpec]) -> list[tuple[str, Parameter]]:
    """The parameters that `name:parameter=value,parameter=value` gives, each checked, in the order of the text."""
    name, colon, rest = text.partition(":")
    if colon and not rest:
        raise ParameterError(f"{shown(text)} ends after the colon: write {name} or {name}:parameter=value")
    chosen: list[tuple[str, Parameter]] = []
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ParameterError(f"{shown(part)} in {shown(text)} must be parameter=value")
        require_known(name, specs, {key: value})
        chosen.append((key, specs[key].parse(f"{name}.{key}", unquote(value))))
    return chosen


def complete(
    owner: str, specs: Mapping[str, ParameterSpec], given: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """The given parameters checked, the others at their defaults, in the order of the specs."""
    require_known(owner, specs, given)
    chosen = {}
    for name, spec in specs.items():
        value = given.get(name, spec.default)
        if value is None:
            raise ParameterError(f"task {owner!r} needs {name} ({spec.doc}): write {owner}:{name}=...")
        chosen[name] = spec.check(f"{owner}.{name}", value)
    return chosen


def require_known(owner: str, specs: Mapping[str, ParameterSpec], names: Mapping[str, object]) -> None:
    """Raise ParameterError for a name that the task `owner` has no parameter of."""
    unknown = [name for name in names if name not in specs]
    if unknown:
        has = "has " + ", ".join(specs) if specs else "has none"
        raise ParameterError(f"task {owner!r} has no parameter {unknown[0]!r}; it {has}")


Loader = Callable[[Mapping[str, Parameter]], TaskData]
RateSchedule = Literal["constant", "cosine", "one_cycle", "warm_up_cosine"]
"""How a learning rate goes over the epochs of a task: see `esper.tolaria.engine.host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSpec:
    """The host's optimiser."""

    kind: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float
    """Learning rate of the host."""
    weight_decay: float = 0.0
    momentum: float = 0.9
    """sgd only"""

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adam", "adamw"):
            raise ValueError(f"OptimiserSpec.kind must be sgd, adam or adamw, not {self.kind!r}")
        _require_number("OptimiserSpec.lr", self.lr, above=0.0)
        _require_number("OptimiserSpec.weight_decay", self.weight_decay)
        _require_number("OptimiserSpec.momentum", self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How training pictures vary each time that one is shown; validation and test see them as they are."""

    flip: bool = True
    """Whether half of them are mirrored, left to right."""
    padding: int = 4
    """Pixels of 0 around a picture, out of which one of its own size is cropped at random; 0 crops nothing."""

    def __post_init__(self) -> None:
        _require_count("Augmentation.padding", self.padding, least=0)
        if not self.flip and not self.padding:
            raise ValueError(
                "Augmentation.flip is False and padding 0, which varies nothing: give Task.augmentation=None"
            )

    def require_pictures(self, task: str, sample: tuple[int, ...]) -> None:
        """Raise ValueError unless samples of this shape are pictures that no crop can miss."""
        if len(sample) != 3:
            raise ValueError(
                f"Task {task}: augmentation is for pictures of shape (channel, height, width), and its samples have "
                f"shape {sample}: give augmentation=None"
            )
        if self.padding >= min(sample[1:]):
            raise ValueError(
                f"Task {task}: Augmentation.padding is {self.padding}, with which a crop could miss a picture of "
                f"{sample[1]} x {sample[2]}: give less than {min(sample[1:])}"
            )


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
    tailor: Callable[["Task", Mapping[str, Parameter]], "Task"] | None = None
    """Makes the row of an instance whose parameters also say what the host is, or how it is trained."""
    chosen: Mapping[str, Parameter] | None = None
    """The parameters that this row was tailored to; None for a row of the table."""
    changes: Callable[[Mapping[str, Parameter]], str] | None = None
    """Says what changes in the data and when, as kind@epoch between slashes; None: nothing does."""
    optimiser: OptimiserSpec
    schedule: RateSchedule = "constant"
    """How the learning rate goes from step to step over `epochs`, whatever the horizon of a run."""
    augmentation: Augmentation | None = None
    """How training pictures vary; None: they do not."""
    batch: int
    steps_per_epoch: int | None = None
    """None: one pass over the training set, the remainder of the last batch dropped."""
    epochs: int
    rent: float = 0.01
    """What utility pays for doubling the host's parameters."""
    counts: Counts = "end"
    """What counts: the utility of the product at the end, or the mean utility over the epochs of its life."""
    causal: bool = False
    """Whether positions may not look ahead, as in text."""
    seed_lr_multiplier: float | None = None
    """A seed's learning rate over the host's, before it is a fossil. None: 3, or 1 where the host is frozen."""
    clip_host: float = 5.0
    """Largest gradient norm of the host."""
    clip_seeds: float = 5.0
    """Largest gradient norm of each seed."""
    isolation_penalty: float = 1.0
    """Weight of the penalty that keeps a seed in TRAINING from running away."""
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
        owner = f"Task {self.name}:"
        counts: dict[str, object] = {"batch": self.batch, "epochs": self.epochs}
        if self.steps_per_epoch is not None:
            counts["steps_per_epoch"] = self.steps_per_epoch
        for name, count in counts.items():
            _require_count(f"{owner} {name}", count, least=1)
        _require_number(f"{owner} rent", self.rent)
        _require_number(f"{owner} isolation_penalty", self.isolation_penalty)
        if self.seed_lr_multiplier is not None:
            _require_number(f"{owner} seed_lr_multiplier", self.seed_lr_multiplier, above=0.0)
        _require_number(f"{owner} clip_host", self.clip_host, above=0.0)
        _require_number(f"{owner} clip_seeds", self.clip_seeds, above=0.0)
        named: dict[str, object] = {"slots": self.slots, "blueprints": self.blueprints}
        for name, names in named.items():
            if isinstance(names, str) or not names:
                raise ValueError(f"{owner} {name} must be a tuple of names, not {names!r}")
        if self.counts not in get_args(Counts):
            raise ValueError(
                f"{owner} counts must be one of {', '.join(get_args(Counts))}, not {self.counts!r}"
            )
        if self.schedule not in get_args(RateSchedule):
            raise ValueError(
                f"{owner} schedule must be one of {', '.join(get_args(RateSchedule))}, not {self.schedule!r}"
            )
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f"{owner} precision must be fp32 or bf16, not {self.precision!r}")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    def complete(self, given: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """The given parameters checked, one by one and together, and the others at their defaults."""
        chosen = complete(self.name, self.parameters, given)
        self.check(chosen)
        return chosen

    def tailored(self, given: Mapping[str, Parameter]) -> "Task":
        """The row for these parameters, checked and completed; itself, where they only say what the data are."""
        if self.tailor is None:
            return self
        chosen = self.complete(given)
        return replace(self.tailor(self, chosen), chosen=MappingProxyType(chosen))

    def data(self, given: Mapping[str, Parameter]) -> TaskData:
        """The data for these parameters, checked and completed."""
        return self.load(self.complete(given))

    def grow(
        self,
        data: TaskData,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        events: EventSink | None = None,
    ) -> GrowingModel:
        """A new host, wrapped. Its weights and its seeds' come from the rng seed `seed`; global generators stay."""
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
        """Every field of plain data that a host's numbers depend on, as text.

        Constant rates and pictures that do not vary are left out.
        """
        others = ["host", "load", "check", "tailor", "chosen", "parameters", "summary", "counts", "changes"]
        others += ["schedule"] if self.schedule == "constant" else []
        others += ["augmentation"] if self.augmentation is None else []
        return {each.name: repr(getattr(self, each.name)) for each in fields(self) if each.name not in others}

    def __reduce__(self) -> tuple[Callable[..., "Task"], tuple[object, ...]]:
        """Pickled by name and parameters: code is never stored."""
        return (task, (self.name,)) if self.chosen is None else (_tailored, (self.name, dict(self.chosen)))


_TABLE: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Add a row to the table. From then on its name can be used wherever a task is named."""
    if task.name in _TABLE:
        raise ValueError(f"a task named {task.name!r} is registered already; choose another name")
    _TABLE[task.name] = task
    return task


def forget(name: str) -> None:
    """Remove a row from the table, for instance to run a notebook cell again."""
    task(name)
    del _TABLE[name]


def task(name: str) -> Task:
    """The row of that name."""
    if name not in _TABLE:
        raise ValueError(f"no task is named {name!r}; there are {', '.join(_TABLE)}")
    return _TABLE[name]


def _tailored(name: str, chosen: Mapping[str, Parameter]) -> Task:
    return task(name).tailored(chosen)


def all_tasks() -> tuple[Task, ...]:
    """Every row, in the order of registration."""
    return tuple(_TABLE.values())


def _require_count(what: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} must be a whole number >= {least}, not {value!r}")


def _require_number(what: str, value: object, *, above: float | None = None) -> None:
    """A finite number of at least 0, or above `above`."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
    if not good or not (value >= 0 if above is None else value > above):  # type: ignore[operator]
        expected = ">= 0" if above is None else f"> {above:g}"
        raise ValueError(f"{what} must be a finite number {expected}, not {value!r}")
