"""Weights & Biases, for those who ask for it. The package is looked for only then."""

import importlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from pydantic import JsonValue
from tensorboard.compat.proto.event_pb2 import Event as ProtoEvent
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from esper.leyline import EvaluationFinished, RoundFinished
from esper.nissa.run_directory import RunError
from esper.nissa.wire import Record, encode

# The numbers that charts show, by names that never change.


@dataclass(frozen=True, slots=True)
class Scalars:
    step: int
    """Environment steps over all envs."""
    values: Mapping[str, float]
    """What is known, by name."""


def scalars(record: Record) -> Scalars | None:
    """What a record adds to the charts; None if nothing."""
    event = record.event
    if isinstance(event, RoundFinished):
        return _known(event.env_steps, _round(event))
    if isinstance(event, EvaluationFinished):
        return _known(event.env_steps, _evaluation(event))
    return None


def _round(event: RoundFinished) -> dict[str, float | None]:
    executed = sum(event.operations.values())
    return {
        "charts/return": event.mean_return,
        "charts/gain": event.mean_gain,
        "charts/accuracy": event.mean_accuracy,
        "charts/control_accuracy": event.mean_control_accuracy,
        "charts/SPS": event.env_epochs_per_second,
        "charts/episodes": event.episodes,
        "charts/lost_episodes": event.lost_episodes,
        "charts/learning_rate": event.learning_rate,
        "charts/entropy_coef": event.entropy_coef,
        "losses/policy_loss": event.policy_loss,
        "losses/value_loss": event.value_loss,
        "losses/entropy": event.entropy,
        "losses/approx_kl": event.approx_kl,
        "losses/clip_fraction": event.clip_fraction,
        "losses/ratio_max": event.ratio_max,
        "losses/ratio_min": event.ratio_min,
        "losses/explained_variance": event.explained_variance,
        "losses/grad_norm": event.grad_norm,
        "losses/minibatches_skipped": event.minibatches_skipped,
        **{f"entropy/{head}": entropy for head, entropy in event.entropy_by_head.items()},
        **{f"operations/{name}": count / executed for name, count in event.operations.items() if executed},
        **{f"reward/{name}": mean for name, mean in event.reward_components.items()},
    }


def _evaluation(event: EvaluationFinished) -> dict[str, float | None]:
    family = f"evaluation/{event.suite}/{event.policy}"
    return {
        f"{family}/return": event.mean_return,
        f"{family}/utility": event.mean_utility,
        f"{family}/gain": event.mean_gain,
        f"{family}/gain_low": event.gain_low,
        f"{family}/gain_high": event.gain_high,
        f"{family}/accuracy": event.mean_accuracy,
    }


def _known(step: int, values: Mapping[str, float | None]) -> Scalars:
    return Scalars(step, {name: float(value) for name, value in values.items() if value is not None})


# What the recorder needs of a place to write to.


class Sink(Protocol):
    """May raise: the recorder says so once and goes on without it."""

    @property
    def name(self) -> str: ...

    def write(self, record: Record) -> None: ...

    def flush(self) -> None:
        """Make what was written visible to readers."""
        ...

    def close(self) -> None: ...


# events.jsonl: every record, appended, one a line.


class JsonlSink:
    name = "events.jsonl"

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        if not _ends_in_a_line(path):
            # A process died in the middle of a line: end it, so that ours stand on their own.
            self._file.write(b"\n")

    def write(self, record: Record) -> None:
        self._file.write(encode(record))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _ends_in_a_line(path: Path) -> bool:
    """Whether nothing, or a whole line, comes before what will be written."""
    with path.open("rb") as written:
        size = written.seek(0, 2)
        if size == 0:
            return True
        written.seek(size - 1)
        return written.read(1) == b"\n"


# TensorBoard's own files, written in this thread: an error shows where it happens.


class TensorBoardSink:
    name = "tensorboard"

    __slots__ = ("_writer",)

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: time first.
        began = time.time_ns()
        path = folder / f"events.out.tfevents.{began // 10**9:010d}.{began % 10**9:09d}.{os.getpid()}.esper"
        self._writer = RecordWriter(path.open("xb"))
        self._write(ProtoEvent(wall_time=began / 1e9, file_version="brain.Event:2"))

    def write(self, record: Record) -> None:
        shown = scalars(record)
        if shown is None:
            return
        values = [Summary.Value(tag=name, simple_value=value) for name, value in shown.values.items()]
        self._write(ProtoEvent(wall_time=record.time, step=shown.step, summary=Summary(value=values)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: ProtoEvent) -> None:
        self._writer.write(event.SerializeToString())


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
