"""The runs of a folder, and how each stands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from esper.leyline import RoundFinished, RunFinished, RunStarted
from esper.nissa.lock import is_being_written
from esper.nissa.reading import read_events
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE

Standing = Literal["running", "finished", "interrupted", "failed", "crashed"]
"""Crashed: nobody writes it, and it never said that it ended."""
_TELLING = (RunStarted.kind, RoundFinished.kind, RunFinished.kind)


@dataclass(frozen=True, slots=True)
class RunListing:
    name: str
    path: Path
    standing: Standing
    started: float | None
    """Seconds since the epoch; None when nothing was recorded."""
    last_round: int | None
    seconds: float | None
    """From the first thing recorded about rounds to the last."""


def list_runs(root: Path) -> list[RunListing]:
    """Every run under `root`, by name."""
    if not root.is_dir():
        return []
    return [describe_run(path) for path in sorted(root.iterdir()) if (path / CONFIG_FILE).is_file()]


def describe_run(path: Path) -> RunListing:
    # Asked first: a run that ends meanwhile is then read to its end, and not called crashed.
    running = is_being_written(path)
    started = last_time = last_round = None
    standing: Standing = "crashed"
    if (path / EVENTS_FILE).is_file():
        for record in read_events(path, kinds=_TELLING):
            event = record.event
            started = record.time if started is None else started
            last_time = record.time
            if isinstance(event, RoundFinished):
                last_round = event.round
            elif isinstance(event, RunStarted):
                last_round, standing = event.resumed_from, "crashed"
            elif isinstance(event, RunFinished):
                standing = event.status
    seconds = None if started is None or last_time is None else last_time - started
    return RunListing(path.name, path, "running" if running else standing, started, last_round, seconds)
