"""The events of a run in its file: how one is written as a line, and how they are read.

Each is one line of strict JSON:

    {"kind": "seed_germinated", "time": 1700000000.5, "env": 3, "episode": 7, "epoch": 2, "slot": "blocks.0", ...}

Enumerations are written by name. NaN and Inf have no place in JSON: null is written, and `non_finite` says what it
was, by field (`loss`) or field and key (`entropy_by_head.op`). Fields that a reader does not know are ignored.
"""

import json
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Literal, cast, get_args, get_type_hints

from pydantic import JsonValue, TypeAdapter
from pydantic_core import CoreSchema, SchemaValidator, from_json

from esper.leyline import NOWHERE, Event, Place, RoundFinished, RunFinished, RunStarted
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE, RunError, is_being_written

KINDS: Mapping[str, type[Event]] = MappingProxyType({event.kind: event for event in get_args(Event)})
"""kind -> the dataclass of such events."""
PLACE_FIELDS = tuple(field.name for field in fields(Place))
NON_FINITE = "non_finite"
_FIELDS = {cls: tuple(field.name for field in fields(cls)) for cls in KINDS.values()}
_OWN_PLACE = {cls: tuple(name for name in PLACE_FIELDS if name in own) for cls, own in _FIELDS.items()}
"""Class of event -> the parts of its place that are fields of the event itself."""


@dataclass(frozen=True, slots=True)
class Record:
    """An event as it is recorded: what happened, when, and where in the run."""

    time: float
    """Seconds since the epoch."""
    place: Place
    """Taken from the event where it contains its place."""
    event: Event
    """What happened."""


class BrokenLine(ValueError):
    """A line that is not a record; the message says why."""


class UnknownKind(ValueError):
    """A record of a kind that this version does not know."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"kind is {kind!r}; this version knows {', '.join(KINDS)}")


def place_of(event: Event, given: Place) -> Place:
    """The given place, with the parts of it that the event itself contains."""
    own = _OWN_PLACE[type(event)]
    if not own:
        return given
    return Place(*[getattr(event if name in own else given, name) for name in PLACE_FIELDS])


def encode(record: Record) -> bytes:
    """The line of a record, with its newline. ASCII only, so that a cut never falls inside a character."""
    event = record.event
    line: dict[str, JsonValue] = {"kind": event.kind, "time": record.time}
    for name in PLACE_FIELDS:
        value = getattr(record.place, name)
        if value is not None:
            line[name] = value
    non_finite: dict[str, JsonValue] = {}
    for name in _FIELDS[type(event)]:
        line[name] = _plain(getattr(event, name), name, non_finite)
    if non_finite:
        line[NON_FINITE] = non_finite
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Record:
    """The record of a line. Raises BrokenLine or UnknownKind."""
    time, data, event = _parse(line)
    own = _OWN_PLACE[type(event)]
    given = {name: data[name] for name in PLACE_FIELDS if name in data and name not in own}
    try:
        place = _PLACE.validate_python(given) if given else NOWHERE
    except ValueError as error:
        raise BrokenLine(f"not a {event.kind}: {error}") from error
    return Record(time, place_of(event, place), event)


def decode_event(line: bytes) -> Event | None:
    """The event of a line, without its time and place, in less time; None if it is broken or of an unknown kind."""
    try:
        return _parse(line)[2]
    except (BrokenLine, UnknownKind):
        return None


def _parse(line: bytes) -> tuple[float, dict[str, JsonValue], Event]:
    """Time, JSON and event of a line."""
    try:
        data = from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise BrokenLine(f"not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise BrokenLine("not a JSON object with a kind")
    kind, time = data["kind"], data.get("time")
    if kind not in KINDS:
        raise UnknownKind(kind)
    # a number too large for a float is read as Inf
    if isinstance(time, bool) or not isinstance(time, int | float) or abs(time) == math.inf:
        raise BrokenLine(f"time is {time!r}; expected a number")
    try:
        return float(time), data, _event(KINDS[kind], data)
    except (ValueError, OverflowError) as error:
        raise BrokenLine(f"not a {kind}: {error}") from error


def _event(cls: type[Event], data: dict[str, JsonValue]) -> Event:
    values: dict[str, object] = {**data}
    for name, members in _ENUMS[cls].items():
        written = values.get(name)
        if isinstance(written, str) and written in members:
            values[name] = members[written]
        elif written is not None:
            raise ValueError(f"{name} is {written!r}; expected {', '.join(members)}")
    marks = data.get(NON_FINITE)
    if isinstance(marks, dict):
        for path, mark in marks.items():
            _put_back(values, path, mark)
    event: Event = _EVENTS[cls].validate_python(values)
    return event


def _plain(value: object, path: str, non_finite: dict[str, JsonValue]) -> JsonValue:
    if isinstance(value, Enum):
        return value.name if isinstance(value, IntEnum) else str(value.value)
    if isinstance(value, str):
        return whole_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        non_finite[path] = str(float(value))
        return None
    if isinstance(value, Mapping):
        return {
            whole_text(str(key)): _plain(entry, f"{path}.{key}", non_finite) for key, entry in value.items()
        }
    raise TypeError(f"{path} is a {type(value).__name__}; expected plain data")


def whole_text(text: str) -> str:
    """The text with ? for lone surrogates (half characters, as odd file names have), which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _put_back(values: dict[str, object], path: str, mark: JsonValue) -> None:
    if not isinstance(mark, str) or mark not in ("nan", "inf", "-inf"):
        return
    number = float(mark)
    name, _, key = path.partition(".")
    entry = values.get(name)
    if key and isinstance(entry, dict) and key in entry:
        values[name] = {**entry, key: number}
    elif not key and name in values:
        values[name] = number


def _enum_fields(cls: type[Event]) -> dict[str, dict[str, Enum]]:
    """Field -> text written for a member -> the member, for fields that hold an enumeration or None."""
    return {
        name: {str(_plain(member, name, {})): member for member in option}
        for name, hint in get_type_hints(cls).items()
        for option in get_args(hint) or (hint,)
        if isinstance(option, type) and issubclass(option, Enum)
    }


def _validator(cls: type[Event] | type[Place]) -> SchemaValidator:
    """Makes the dataclass from an object of its fields. Fields are strict ("3" is not 3), unknown ones ignored."""
    schema = dict(TypeAdapter(cls).core_schema) | {"strict": False, "config": {"strict": True}}
    return SchemaValidator(cast(CoreSchema, schema))


_PLACE = _validator(Place)
_ENUMS = {cls: _enum_fields(cls) for cls in KINDS.values()}
_EVENTS = {cls: _validator(cls) for cls in KINDS.values()}


# Reading runs: their events, while they are written or after they ended, and a list of the runs in a folder


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
    """Seconds at work: from each start to the last round or end recorded before the next; None if nothing was."""


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
    seconds = 0.0
    standing: Standing = "crashed"
    if (path / EVENTS_FILE).is_file():
        for record in read_events(path, kinds=_STANDING_KINDS):
            event = record.event
            started = record.time if started is None else started
            if last_time is not None and not isinstance(event, RunStarted):  # between two starts it is idle
                seconds += record.time - last_time
            last_time = record.time
            if isinstance(event, RoundFinished):
                last_round = event.round
            elif isinstance(event, RunStarted):
                last_round, standing = event.resumed_from, "crashed"
            elif isinstance(event, RunFinished):
                standing = event.status
    lasted = None if started is None else seconds
    return RunListing(path.name, path, "running" if running else standing, started, last_round, lasted)
