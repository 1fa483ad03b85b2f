"""events.jsonl: every record, appended, one a line."""

from pathlib import Path

from esper.nissa.records import Record
from esper.nissa.wire import encode


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
