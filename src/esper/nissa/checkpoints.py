"""The checkpoints of a run: periodic ones, the best and the last. Each is whole or not there."""

from collections.abc import Callable
from pathlib import Path

from esper.leyline import CheckpointReason
from esper.nissa.files import PARTIAL, write_atomically

KEPT = 3
"""Periodic checkpoints, by default; older ones are removed."""


class Checkpoints:
    """`checkpoints/round-000040.pt`, `best.pt` and `last.pt`."""

    __slots__ = ("folder", "kept")

    def __init__(self, folder: Path, *, kept: int = KEPT) -> None:
        if kept < 1:
            raise ValueError(f"kept is {kept}; expected >= 1")
        self.folder, self.kept = folder, kept

    def save(
        self, write: Callable[[Path], None], *, round_number: int, reason: CheckpointReason = "periodic"
    ) -> Path:
        """Have `write` (such as `PPOAgent.save`) fill a file, and put it in its place; returns where."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (f"round-{round_number:06d}.pt" if reason == "periodic" else f"{reason}.pt")
        write_atomically(path, write)
        for old in self.periodic()[: -self.kept]:
            old.unlink()
        return path

    def periodic(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("round-*.pt"))

    def newest(self) -> Path | None:
        """What a resumed run goes on from; the best one is for use, not for going on."""
        candidates = [*self.periodic(), *self.folder.glob("last.pt")]
        return max(candidates, key=lambda path: path.stat().st_mtime_ns, default=None)

    def remove_partial(self) -> None:
        """Clear away what a process that died had not finished writing."""
        for partial in self.folder.glob(f"*{PARTIAL}"):
            partial.unlink()
