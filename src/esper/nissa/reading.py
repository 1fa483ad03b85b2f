"""Reading runs: their events, while they are written or after they ended, and a list of the runs in a folder."""

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

from esper.leyline import RoundFinished, RunFinished, RunStarted
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE, RunError, is_being_written
from esper.nissa.wire import BrokenLine, Record, UnknownKind, decode

POLL_SECONDS = 0.2
"""Time between two looks at a file that is followed."""
Standing = Literal["running", "finished", "interrupted", "failed", "crashed"]
"""State of a run. Crashed: no process writes it, and it has no RunFinished."""
_STANDING_KINDS = (RunStarted.kind, RoundFinished.kind, RunFinished.kind)
_KIND = re.compile(rb'\s*\{\s*"kind"\s*:\s*"([a-z0-9_]*)"')


@dataclass(slots=True)
class ReadingNotes:
    """What a reader skipped."""

    broken_lines: list[int] = field(default_factory=list)
    """Numbers of lines that are not records, from 1. The last line of a killed run is often one."""
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    """kind -> records of that kind, which a newer version wrote."""


def read_events(
    path: Path,
    *,
    follow: bool = False,
    kinds: Collection[str] | None = None,
    notes: ReadingNotes | None = None,
) -> Iterator[Record]:
    """The records of a run directory or of its events.jsonl, in order.

    follow  wait for more until no process writes the run any longer
    kinds   only these; other lines are not parsed
    notes   receives what was skipped
    """
    path = path / EVENTS_FILE if path.is_dir() else path
    notes = ReadingNotes() if notes is None else notes
    wanted = None if kinds is None else frozenset(kind.encode() for kind in kinds)
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    with file:
        for number, line in enumerate(_lines(file, path.parent if follow else None), start=1):
            record = _read(line, number, wanted, notes)
            if record is not None:
                yield record


def read_run(
    path: Path, *, kinds: Collection[str] | None = None, notes: ReadingNotes | None = None
) -> list[Record]:
    """The records that count: where a run resumed from a checkpoint, or started again without one, what it had
    recorded beyond that point is left out.

    kinds  only these, and the kinds that say where it resumed
    """
    records: list[Record] = []
    wanted = None if kinds is None else {*kinds, RunStarted.kind, RoundFinished.kind}
    for record in read_events(path, kinds=wanted, notes=notes):
        if isinstance(record.event, RunStarted):
            resumed_from = record.event.resumed_from
            del records[0 if resumed_from is None else _end_of_round(records, resumed_from) :]
        records.append(record)
    return records


def _end_of_round(records: list[Record], round_number: int) -> int:
    """Index after the last record of this round."""
    for index in range(len(records) - 1, -1, -1):
        if records[index].place.round == round_number:
            return index + 1
    return len(records)


def _read(line: bytes, number: int, wanted: frozenset[bytes] | None, notes: ReadingNotes) -> Record | None:
    if not line.strip():
        return None
    if wanted is not None:
        found = _KIND.match(line)
        if found is not None and found[1] not in wanted:
            return None
    try:
        record = decode(line)
    except UnknownKind as unknown:
        notes.unknown_kinds[unknown.kind] += 1
        return None
    except BrokenLine:
        notes.broken_lines.append(number)
        return None
    return record if wanted is None or record.event.kind.encode() in wanted else None


def _lines(file: BinaryIO, followed_run: Path | None) -> Iterator[bytes]:
    """Whole lines as they are written; at the end also a last line without a newline."""
    pending = b""
    while True:
        # Checked before reading, so that what was written just before the writer ended is not missed.
        more_may_come = followed_run is not None and is_being_written(followed_run)
        while piece := file.readline():
            pending += piece
            if pending.endswith(b"\n"):
                yield pending
                pending = b""
        if not more_may_come:
            break
        time.sleep(POLL_SECONDS)
    if pending:
        yield pending


@dataclass(frozen=True, slots=True)
class RunListing:
    """A run in a list of runs."""

    name: str
    """Name of the run."""
    path: Path
    """Directory of the run."""
    standing: Standing
    """State of the run."""
    started: float | None
    """Seconds since the epoch; None if nothing was recorded."""
    last_round: int | None
    """Last round finished; None if none was."""
    seconds: float | None
    """Seconds between the first and the last start, round or end recorded; None if nothing was."""


def list_runs(root: Path) -> list[RunListing]:
    """Every run in the folder `root`, by name."""
    if root.exists() and not root.is_dir():
        raise RunError(f"{root} is a file; expected a folder of runs")
    if not root.is_dir():
        return []
    return [describe_run(path) for path in sorted(root.iterdir()) if (path / CONFIG_FILE).is_file()]


def describe_run(path: Path) -> RunListing:
    """The state of one run, from its events and its lock."""
    # Checked first: a run that ends meanwhile is then read to its end and not reported as crashed.
    running = is_being_written(path)
    started = last_time = last_round = None
    standing: Standing = "crashed"
    if (path / EVENTS_FILE).is_file():
        for record in read_events(path, kinds=_STANDING_KINDS):
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
