"""The recorder: an event sink that writes to several places and never disturbs the code that emits.

It only reads what it is given and draws no random numbers, so it cannot change the weights of a run.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from esper.leyline import NOWHERE, CheckpointSaved, Event, Place, RoundFinished, RunFinished, RunStarted
from esper.nissa.run_directory import EVENTS_FILE, RunDirectory, RunError, read_config
from esper.nissa.sinks import JsonlSink, Sink, TensorBoardSink, WandbSink
from esper.nissa.wire import Record, place_of

FLUSHED_AFTER = (RunStarted, RoundFinished, CheckpointSaved, RunFinished)
"""Events that a reader, or a run resumed after a crash, must find on disk."""


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
