"""Weights & Biases, for those who ask for it. The package is looked for only then."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from pydantic import JsonValue

from esper.nissa.errors import RunError
from esper.nissa.metrics import scalars
from esper.nissa.records import Record


class _Run(Protocol):
    """What we use of wandb's run."""

    def log(self, data: dict[str, float], *, step: int) -> None: ...
    def finish(self) -> None: ...


class _Module(Protocol):
    """What we use of wandb."""

    def init(
        self, *, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, JsonValue]
    ) -> _Run: ...


class WandbSink:
    name = "wandb"

    __slots__ = ("_run",)

    def __init__(self, project: str, run_name: str, folder: Path, config: Mapping[str, JsonValue]) -> None:
        try:
            wandb = cast(_Module, importlib.import_module("wandb"))
        except ImportError as error:
            raise RunError(
                "wandb is not installed: run `pip install wandb`, or record without it (TensorBoard is on)"
            ) from error
        self._run = wandb.init(
            project=project, name=run_name, id=run_name, resume="allow", dir=str(folder), config=dict(config)
        )

    def write(self, record: Record) -> None:
        shown = scalars(record)
        if shown is not None:
            self._run.log(dict(shown.values), step=shown.step)

    def flush(self) -> None:
        """It sends on its own."""

    def close(self) -> None:
        self._run.finish()
