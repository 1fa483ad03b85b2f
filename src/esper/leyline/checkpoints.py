"""Where checkpoints are kept, as whoever writes them knows it."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from esper.leyline.run_events import CheckpointReason


class CheckpointStore(Protocol):
    """A folder of checkpoints: some periodic ones, the best and the last."""

    @property
    def folder(self) -> Path: ...

    def save(self, write: Callable[[Path], None], *, round_number: int, reason: CheckpointReason) -> Path:
        """Have `write` fill a file and put it in its place; returns where. Older periodic ones may go."""
        ...
