"""TensorBoard's own files, written in this thread: an error shows where it happens."""

import os
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event as ProtoEvent
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from esper.nissa.metrics import scalars
from esper.nissa.records import Record


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
