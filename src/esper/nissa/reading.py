"""Reading the events of a run: while it is written, after it ended, and when it broke."""

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
_KIND = re.compile(rb'\s*\{\s*"kind"\s*:\s*"([a-z0-9_]*)"')


@dataclass(slots=True)
class ReadingNotes:
    """What a reader had to pass over."""

    broken_lines: list[int] = field(default_factory=list)
    """Their numbers, from 1. The last line of a run that was killed is often one."""
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    """kind -> records of it, written by a newer version."""


def read_events(
    path: Path,
    *,
    follow: bool = False,
    kinds: Collection[str] | None = None,
    notes: ReadingNotes | None = None,
) -> Iterator[Record]:
    """The records of a run directory or of its events.jsonl, in order.

    follow  wait for more, until no process writes the run any longer
    kinds   only these; the others are not even parsed
    notes   is told about lines that were passed over
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
    """The records that count: where a run went on from a checkpoint, or began anew without one, what it had done
    beyond is left out.

    kinds  these, and those that tell where it went on
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
    """One past the last record of this round: what was said after its checkpoint belongs to it, too."""
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
    """Whole lines as they come; at the end also one without its end."""
    pending = b""
    while True:
        # Asked before reading: what was written before the writer left is then not missed.
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


# The runs of a folder, and how each stands.


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
