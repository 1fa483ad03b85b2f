"""The recorder: an event sink that writes to several places and never disturbs the code that emits.

It only reads what it is given and draws no random numbers, so it cannot change the weights of a run. The places are
events.jsonl, TensorBoard and Weights & Biases; the last two are imported only when a sink of theirs is opened.
"""

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, cast

from pydantic import JsonValue

from esper.leyline import (
    NOWHERE,
    CheckpointSaved,
    EvaluationFinished,
    Event,
    Place,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from esper.leyline.errors import install
from esper.nissa.event_file import Record, encode, place_of
from esper.nissa.run_directory import EVENTS_FILE, RunDirectory, RunError, read_config

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event as ProtoEvent

FLUSHED_AFTER = (RunStarted, RoundFinished, CheckpointSaved, RunFinished)
"""Events that a reader, or a run resumed after a crash, must find on disk."""


# Sinks


class Sink(Protocol):
    """A place to write records to. May raise: the recorder then reports it once and goes on without the sink."""

    @property
    def name(self) -> str:
        """Name of the sink, for messages."""

    def write(self, record: Record) -> None:
        """Write one record; it may be buffered."""

    def flush(self) -> None:
        """Make what was written visible to readers."""

    def close(self) -> None:
        """Flush, and free the files or connections."""


class JsonlSink:
    """events.jsonl: every record, appended, one a line."""

    name = "events.jsonl"

    __slots__ = ("_file", "close", "flush")

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self.flush, self.close = self._file.flush, self._file.close
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":  # a process died inside a line: end it before ours
                self._file.write(b"\n")

    def write(self, record: Record) -> None:
        """Append one line."""
        self._file.write(encode(record))


class TensorBoardSink:
    """TensorBoard's own files, written in this thread so that an error shows where it happens."""

    name = "tensorboard"

    __slots__ = ("_writer", "close", "flush")

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as ProtoEvent
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: time first.
        began = time.time_ns()
        path = folder / f"events.out.tfevents.{began // 10**9:010d}.{began % 10**9:09d}.{os.getpid()}.esper"
        self._writer = RecordWriter(path.open("xb"))
        self.flush, self.close = self._writer.flush, self._writer.close
        self._write(ProtoEvent(wall_time=began / 1e9, file_version="brain.Event:2"))

    def write(self, record: Record) -> None:
        """Write the scalars of a round or an evaluation."""
        from tensorboard.compat.proto.event_pb2 import Event as ProtoEvent
        from tensorboard.compat.proto.summary_pb2 import Summary

        step, shown = scalars(record)
        if shown:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in shown.items()]
            self._write(ProtoEvent(wall_time=record.time, step=step, summary=Summary(value=values)))

    def _write(self, event: "ProtoEvent") -> None:
        self._writer.write(event.SerializeToString())


class _Run(Protocol):
    """What is used of wandb's run."""

    def log(self, data: dict[str, float], *, step: int) -> None: ...
    def finish(self) -> None: ...


class _Module(Protocol):
    """What is used of wandb."""

    def init(
        self, *, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, JsonValue]
    ) -> _Run: ...


class WandbSink:
    """Weights & Biases, which sends on its own."""

    name = "wandb"

    __slots__ = ("_run", "close")

    def __init__(self, project: str, run_name: str, folder: Path, config: Mapping[str, JsonValue]) -> None:
        try:
            wandb = cast(_Module, importlib.import_module("wandb"))
        except ImportError as error:
            raise RunError(
                f"wandb is not installed: {install('wandb')}, or record without it (TensorBoard is on)"
            ) from error
        self._run = wandb.init(
            project=project, name=run_name, id=run_name, resume="allow", dir=str(folder), config=dict(config)
        )
        self.close = self._run.finish

    def write(self, record: Record) -> None:
        """Log the scalars of a round or an evaluation."""
        step, shown = scalars(record)
        if shown:
            self._run.log(shown, step=step)

    def flush(self) -> None:
        """Nothing to do."""


_CHARTS: Mapping[str, str] = {
    "return": "mean_return",
    "gain": "mean_gain",
    "accuracy": "mean_accuracy",
    "control_accuracy": "mean_control_accuracy",
    "SPS": "env_epochs_per_second",
    "episodes": "episodes",
    "lost_episodes": "lost_episodes",
    "learning_rate": "learning_rate",
    "entropy_coef": "entropy_coef",
}
"""Name under `charts/` -> field of RoundFinished."""
_LOSSES = (
    "policy_loss",
    "value_loss",
    "q_loss",
    "advantage_weight",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "ratio_max",
    "ratio_min",
    "explained_variance",
    "grad_norm",
    "minibatches_skipped",
)
"""Fields of RoundFinished under `losses/`."""


def scalars(record: Record) -> tuple[int, dict[str, float]]:
    """Environment steps over all envs, and name of a chart -> value that the record adds to it, if that is known.

    The names never change.
    """
    event, values = record.event, dict[str, float | None]()
    if isinstance(event, RoundFinished):
        executed = sum(event.operations.values())
        values |= {f"charts/{name}": getattr(event, field) for name, field in _CHARTS.items()}
        values |= {f"losses/{field}": getattr(event, field) for field in _LOSSES}
        values |= {f"entropy/{head}": entropy for head, entropy in event.entropy_by_head.items()}
        values |= {f"operations/{op}": times / executed for op, times in event.operations.items() if executed}
        values |= {f"reward/{name}": mean for name, mean in event.reward_components.items()}
    elif isinstance(event, EvaluationFinished):
        family = f"evaluation/{event.suite}/{event.policy}"
        for name in ("mean_return", "mean_utility", "mean_gain", "gain_low", "gain_high", "mean_accuracy"):
            values[f"{family}/{name.removeprefix('mean_')}"] = getattr(event, name)
    else:
        return 0, {}
    step = event.env_steps or event.round  # an offline run takes no steps: its rounds are counted
    return step, {name: float(value) for name, value in values.items() if value is not None}


# The recorder


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """A sink that could not be written to and is no longer used."""

    sink: str
    """Name of the sink."""
    error: Exception
    """What it raised."""

    def __str__(self) -> str:
        reason = f"{type(self.error).__name__}: {self.error}"
        return f"esper: {self.sink} is no longer recorded ({reason}); training goes on"


class NullSink:
    """Records nothing."""

    __slots__ = ()

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        """Drop the event."""


def report_on_stderr(failure: SinkFailed) -> None:
    """Print a failure to stderr."""
    print(failure, file=sys.stderr)


class Recorder:
    """Writes every event to every sink. Not for several threads at once."""

    __slots__ = ("_clock", "_on_failure", "_sinks")

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        on_failure: Callable[[SinkFailed], None] = report_on_stderr,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sinks = list(sinks)
        self._on_failure, self._clock = on_failure, clock

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        """Record one event. Never raises because of a sink."""
        record = Record(self._clock(), place_of(event, place), event)
        self._each(lambda sink: sink.write(record))
        if isinstance(event, FLUSHED_AFTER):
            self.flush()

    def flush(self) -> None:
        """Make what was recorded visible to readers."""
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        """Close all sinks. May be called again."""
        self._each(lambda sink: sink.close())
        self._sinks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                do(sink)
            except Exception as error:  # whatever a sink does wrong, training must not notice
                self._sinks.remove(sink)
                with contextlib.suppress(Exception):
                    sink.close()
                with contextlib.suppress(Exception):
                    self._on_failure(SinkFailed(sink.name, error))


def open_recorder(
    run: RunDirectory, *, tensorboard: bool = True, wandb_project: str | None = None
) -> Recorder:
    """The recorder of a run: its events always, TensorBoard by default, Weights & Biases if a project is named.

    What cannot be opened raises RunError now, before any work; what fails later is reported once.
    """
    sinks: list[Sink] = []
    try:
        sinks.append(JsonlSink(run.path / EVENTS_FILE))
        if tensorboard:
            sinks.append(TensorBoardSink(run.path / "tensorboard"))
        if wandb_project is not None:
            sinks.append(WandbSink(wandb_project, run.name, run.path, read_config(run.path)))
    except BaseException as error:
        for sink in sinks:
            sink.close()
        if isinstance(error, OSError):
            raise RunError(f"run {run.path} cannot be recorded ({error.strerror})") from error
        raise
    return Recorder(sinks)
