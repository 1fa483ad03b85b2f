"""The recorder: an event sink that writes to many places and never disturbs whoever emits.

It only reads what it is given and touches no generator, so a run with it ends with the same weights as one without.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from esper.leyline import NOWHERE, CheckpointSaved, Event, Place, RoundFinished, RunFinished, RunStarted
from esper.nissa.run_directory import RunDirectory, RunError, read_config
from esper.nissa.sinks import JsonlSink, Sink, WandbSink
from esper.nissa.wire import Record, place_of

FLUSHED_AFTER = (RunStarted, RoundFinished, CheckpointSaved, RunFinished)
"""What a reader, or a run that goes on after a crash, must find."""


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """A sink that could not be written to and is left alone from now on."""

    sink: str
    error: Exception

    def __str__(self) -> str:
        told = f"{type(self.error).__name__}: {self.error}"
        return f"esper: {self.sink} is no longer recorded ({told}); training goes on"


class NullSink:
    """Records nothing."""

    __slots__ = ()

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        pass


def tell_on_stderr(failure: SinkFailed) -> None:
    print(failure, file=sys.stderr)


class Recorder:
    """Hands every event to every sink. Not for several threads at once."""

    __slots__ = ("_clock", "_on_failure", "_sinks")

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        on_failure: Callable[[SinkFailed], None] = tell_on_stderr,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sinks = list(sinks)
        self._on_failure, self._clock = on_failure, clock

    def emit(self, event: Event, place: Place = NOWHERE) -> None:
        record = Record(self._clock(), place_of(event, place), event)
        self._each(lambda sink: sink.write(record))
        if isinstance(event, FLUSHED_AFTER):
            self.flush()

    def flush(self) -> None:
        self._each(lambda sink: sink.flush())

    def close(self) -> None:
        """Harmless when repeated."""
        self._each(lambda sink: sink.close())
        self._sinks.clear()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each(self, do: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                do(sink)
            except Exception as error:  # whatever a sink does wrong, training must not notice
                self._leave(sink, error)

    def _leave(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        with contextlib.suppress(Exception):
            sink.close()
        with contextlib.suppress(Exception):
            self._on_failure(SinkFailed(sink.name, error))


def open_recorder(
    run: RunDirectory, *, tensorboard: bool = True, wandb_project: str | None = None
) -> Recorder:
    """The recorder of a run: its events always, TensorBoard by default, Weights & Biases on demand.

    What cannot be opened now raises, before any work; what fails later is said once.
    """
    sinks: list[Sink] = []
    try:
        sinks.append(JsonlSink(run.events_path))
        if tensorboard:
            from esper.nissa.sinks import TensorBoardSink

            sinks.append(TensorBoardSink(run.tensorboard_path))
        if wandb_project is not None:
            sinks.append(WandbSink(wandb_project, run.name, run.path, read_config(run.path)))
    except BaseException as error:
        for sink in sinks:
            sink.close()
        if isinstance(error, OSError):
            raise RunError(f"run {run.path} cannot be recorded ({error.strerror})") from error
        raise
    return Recorder(sinks)
