"""What the recorder needs of a place to write to."""

from typing import Protocol

from esper.nissa.records import Record


class Sink(Protocol):
    """May raise: the recorder says so once and goes on without it."""

    @property
    def name(self) -> str: ...

    def write(self, record: Record) -> None: ...

    def flush(self) -> None:
        """Make what was written visible to readers."""
        ...

    def close(self) -> None: ...
