"""A task with its parameters chosen, as a value that can be written down: `mnist1d:noise=0.2,size=1000`."""

import hashlib
import inspect
import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from esper.tolaria.data import TaskData
from esper.tolaria.tasks.task import Parameter, ParameterError, Task, all_tasks, parse_parameters, task

_CACHED = 8
_GIVEN: dict[tuple[object, ...], TaskData] = {}
"""Source -> data that live outside of this process."""
_CACHE: "OrderedDict[tuple[object, ...], TaskData]" = OrderedDict()


@dataclass(frozen=True, slots=True)
class Instance:
    """One case of a task. Parameters at their defaults are left out, so that equal cases are equal."""

    task: str
    parameters: tuple[tuple[str, Parameter], ...] = ()
    """(name, value), sorted by name"""

    def __post_init__(self) -> None:
        row = task(self.task)
        given = dict(self.parameters)
        if len(given) != len(self.parameters):
            raise ParameterError(f"{self.task}: a parameter is given twice in {self.parameters!r}")
        complete = row.complete(given)
        chosen = sorted(
            (name, complete[name]) for name in given if complete[name] != row.parameters[name].default
        )
        object.__setattr__(self, "parameters", tuple(chosen))

    @classmethod
    def of(cls, task: str, parameters: Mapping[str, Parameter] | None = None) -> "Instance":
        """An instance from a mapping of parameters."""
        return cls(task, tuple((parameters or {}).items()))

    @classmethod
    def parse(cls, text: str) -> "Instance":
        """The inverse of `str`. In a value, `%2C` stands for a comma and `%25` for a percent sign."""
        name = text.partition(":")[0]
        return cls(name, tuple(parse_parameters(text, task(name).parameters)))

    def __str__(self) -> str:
        parts = ",".join(f"{name}={_written(value)}" for name, value in self.parameters)
        return f"{self.task}:{parts}" if parts else self.task

    @property
    def cap(self) -> float | None:
        """Parameters that may be added over the host's, of a task with a parameter `cap`; None is any number."""
        cap = task(self.task).complete(dict(self.parameters)).get("cap")
        return None if cap is None else float(cap)

    @property
    def changes(self) -> str:
        """What changes in its data and when, as kind@epoch between slashes; empty where nothing does."""
        row = task(self.task)
        return "" if row.changes is None else row.changes(row.complete(dict(self.parameters)))

    @property
    def row(self) -> Task:
        """The row of its task, with the host and the training that its parameters choose."""
        return task(self.task).tailored(dict(self.parameters))

    def load(self) -> TaskData:
        """The data, on the CPU; the last few are kept in this process. Do not write into them."""
        row, key = task(self.task), self.source()
        if key in _GIVEN:
            return _GIVEN[key]
        if key in _CACHE:
            _CACHE.move_to_end(key)
            return _CACHE[key]
        data = row.data(dict(self.parameters))
        for phase in data.phases:
            if len(phase.train) < row.batch:
                raise ParameterError(
                    f"{self}: {len(phase.train)} training samples (from epoch {phase.start_epoch}) do not fill "
                    f"one batch of {row.batch}"
                )
        _CACHE[key] = data
        while len(_CACHE) > _CACHED:
            _CACHE.popitem(last=False)
        return data

    def load_anew(self) -> TaskData:
        """The data, in memory of their own that nobody else holds."""
        return task(self.task).data(dict(self.parameters))

    def source(self) -> tuple[object, ...]:
        """What the data come from: while it is equal, so are they."""
        row = task(self.task)
        return row, self, os.environ.get("ESPER_DATA"), self._stamps(row)

    def fingerprint(self) -> str:
        """A hash of everything that determines the numbers: the task's settings, its host's code, the data."""
        row, data = self.row, self.load()
        with torch.random.fork_rng(devices=[]):
            host = row.host(data)
        own = {type(part) for part in host.modules() if not type(part).__module__.startswith("torch.")}
        parts = {
            "instance": str(self),
            "settings": row.settings(),
            "host": [_source(row.host), *sorted(_source(part) for part in own)],
            "shapes": [[name, list(value.shape)] for name, value in host.state_dict().items()],
            "data": data.digest(),
        }
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _stamps(self, row: Task) -> tuple[tuple[int, int], ...]:
        """When the files that parameters name were last written, and how long they are."""
        paths = [
            Path(str(value)).expanduser() for name, value in self.parameters if row.parameters[name].is_path
        ]
        return tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file())


def give(data: Mapping[Instance, TaskData]) -> None:
    """Let these instances load data that live elsewhere, such as in memory that several processes share.

    They take the place of those that were given before, and of this process's own.
    """
    _GIVEN.clear()
    for instance, shared in data.items():
        key = instance.source()
        _GIVEN[key] = shared
        _CACHE.pop(key, None)


def _written(value: Parameter) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text.replace("%", "%25").replace(",", "%2C")


def _source(code: object) -> str:
    """Where it is defined, with its source where Python can find that."""
    if isinstance(code, partial):  # its own text holds an address
        return f"{_source(code.func)}\n{code.args!r} {sorted(code.keywords.items())!r}"
    home = f"{getattr(code, '__module__', '')}.{getattr(code, '__qualname__', type(code).__qualname__)}"
    try:
        return f"{home}\n{inspect.getsource(code)}"  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed in at a prompt, or a callable object
        return home


def data_changes(case: str) -> str:
    """`Instance.changes` of a case as text; empty for what is no task's, such as the toy's."""
    named = {row.name for row in all_tasks()}
    return Instance.parse(case).changes if case.partition(":")[0] in named else ""
