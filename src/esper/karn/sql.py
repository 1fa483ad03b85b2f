"""SQL over runs.

    >>> query(Path("runs/digits-1"), "select round, mean_gain from rounds order by round")

The tables: `runs`, `rounds`, `episodes`, `decisions`, `seeds`, `anomalies`, `evaluations`, and `events` (all else,
with its fields as JSON). Every one has the column `run`. The tables are copies in memory, made with the types of the
events' annotations; NaN, Inf and integers beyond 64 bits are NULL. No query can change a run or open another file.

Decisions are many (a run has a million), so a query reads them where they were written, through a view that parses
only the columns it names. What the view cannot get right, a resumed run or a path that reads as a pattern, is
copied like the rest. Of a line that is not quite an event the view shows what it can; the copy skips it.
"""

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum, IntEnum
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import duckdb
import pyarrow as pa

from esper.karn.seeds import SEED_KINDS, SeedLife, seed_lives
from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    Place,
    RoundFinished,
    RunStarted,
)
from esper.leyline.errors import EsperError
from esper.nissa import KINDS, Record, RunError, RunListing, describe_run, read_run
from esper.nissa.event_file import encode, whole_text
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE

EVENT_TABLES: Mapping[str, type[Event]] = {
    "rounds": RoundFinished,
    "episodes": EpisodeFinished,
    "decisions": DecisionTaken,
    "anomalies": AnomalyRaised,
    "evaluations": EvaluationFinished,
}
"""Tables that hold one kind of event, with its fields as columns."""
_OTHER = tuple(kind for kind, event in KINDS.items() if event not in EVENT_TABLES.values())
KINDS_OF: Mapping[str, tuple[str, ...]] = {
    **{table: (event.kind,) for table, event in EVENT_TABLES.items()},
    "seeds": SEED_KINDS,
    "events": _OTHER,
    "runs": (),
}
"""Table -> the kinds of event it is made from."""
TABLES = tuple(KINDS_OF)
DECISIONS = "decisions"
RENAMED = {"case": "instance"}
"""Field -> its column, where the field's name is a word of SQL."""
LARGEST = 2**63 - 1
_SEALED = ("SET enable_external_access = false", "SET lock_configuration = true")
"""No files, no network, no variables of the Python that calls; and no way back."""
_FROM_THE_FILE = (duckdb.InvalidInputException, duckdb.IOException, duckdb.ConversionException)
"""DuckDB's errors about what it reads, and not about the query."""
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_TYPES: Mapping[object, tuple[pa.DataType, str]] = {
    str: (pa.string(), "VARCHAR"),
    float: (pa.float64(), "DOUBLE"),
    int: (pa.int64(), "BIGINT"),
    bool: (pa.bool_(), "BOOLEAN"),
}
"""Annotation -> (type in Arrow, type in DuckDB)."""


class QueryError(EsperError, ValueError):
    """SQL that was refused or failed."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a query."""

    columns: tuple[str, ...]
    """Names of the columns."""
    rows: list[tuple[object, ...]]
    """Values, one tuple for each row."""


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    path: Path
    records: list[Record]


def connect(run_dirs: Sequence[Path], *, tables: Collection[str] = TABLES) -> duckdb.DuckDBPyConnection:
    """A private database in memory with tables of these runs, sealed off from files and network.

    tables  only these; a run's many decisions are then read only if they are asked for
    """
    database = duckdb.connect(":memory:")
    _copy(database, _runs(run_dirs), tables)
    _seal(database)
    return database


def query(run: Path | Sequence[Path], sql: str) -> Rows:
    """The answer to one SELECT about a run, or about several."""
    runs = _runs([run] if isinstance(run, Path) else run)
    tables: Collection[str] = TABLES
    try:
        tables = _tables_in(sql)
        if DECISIONS in tables and runs and all(can_be_read_in_place(path) for _, path in runs):
            try:
                return _answer(runs, sql, tables, in_place=True)
            except _FROM_THE_FILE:  # a line that only the copy can skip
                pass
        return _answer(runs, sql, tables, in_place=False)
    except duckdb.Error as error:
        raise QueryError(_mended(str(error), sql, tables)) from error


def _mended(told: str, sql: str, tables: Collection[str]) -> str:
    """The database's message without the line that points into the query, which has one line here.

    Of the columns it names a few that are spelled alike; it goes on with how to see all.
    """
    told = re.sub(r"\s+LINE \d+:.*", "", told, flags=re.DOTALL)
    if "syntax error" in told:  # a field whose name is a word of SQL
        meant = [name for name in RENAMED if re.search(rf"\b{name}\b(?!.*\bwhen\b)", sql, re.I | re.S)]
        return told + "".join(f"; the column of {name} is called {RENAMED[name]}" for name in meant)
    unknown = re.search(r'(?:Referenced column|column named) "([^"]+)"', told)
    if unknown is None:
        return told
    name, columns = unknown[1], {table: _table(table, []).column_names for table in tables}
    if owners := [table for table in tables if name in columns[table]]:  # asked of another, or of an alias
        missing = f"there is no column {name} in what it is asked of, as there is in {' and '.join(owners)}"
        candidates = told.partition("Candidate bindings:")[2]
        close = re.findall(r'"([^"]+)"', candidates)
    else:
        missing = f"there is no column {name}"
        close = get_close_matches(name, dict.fromkeys(chain(*columns.values())), n=4, cutoff=0.5)
    alike = f"; spelled most like it are {', '.join(close)}" if close else ""
    see = "`describe TABLE` lists all columns of one"
    if len(columns) == 1:
        ((table, own),) = columns.items()
        see = f"{table} has {len(own)} columns, which `describe {table}` lists"
    return f"{missing}{alike}; {see}"


def _answer(runs: Sequence[tuple[str, Path]], sql: str, tables: Collection[str], *, in_place: bool) -> Rows:
    """`sql` is one SELECT, which can write nothing, not even the files that it may read."""
    with duckdb.connect(":memory:") as database:
        _copy(database, runs, [table for table in tables if not in_place or table != DECISIONS])
        if in_place:
            paths = {name: _quoted(str(path.resolve() / EVENTS_FILE)) for name, path in runs}
            parts = [_view(EVENT_TABLES[DECISIONS], name, path) for name, path in paths.items()]
            database.execute(f"CREATE VIEW {DECISIONS} AS " + " UNION ALL ".join(parts))
            database.execute(f"SET allowed_paths = [{', '.join(paths.values())}]")
        _seal(database)
        return _interruptible(database, sql)


def _interruptible(database: duckdb.DuckDBPyConnection, sql: str) -> Rows:
    """Execute it in a thread: the main one would not hear Ctrl-C before the database is done."""

    def execute() -> Rows:
        result = database.execute(sql)
        return Rows(tuple(column[0] for column in result.description), result.fetchall())

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(execute)
        try:
            return answer.result()
        except KeyboardInterrupt:
            while not answer.done():  # it may be about to begin
                database.interrupt()
                time.sleep(0.05)
            raise


def _copy(
    database: duckdb.DuckDBPyConnection, run_dirs: Sequence[tuple[str, Path]], tables: Collection[str]
) -> None:
    kinds = {kind for table in tables for kind in KINDS_OF[table]}
    runs = [
        _Run(name, path, read_run(path, kinds=kinds) if kinds and (path / EVENTS_FILE).is_file() else [])
        for name, path in run_dirs
    ]
    for table in tables:
        database.register("incoming", _table(table, runs))
        database.execute(f"CREATE TABLE {table} AS SELECT * FROM incoming")
        database.unregister("incoming")


def _tables_in(sql: str) -> Collection[str]:
    """Our tables that a SELECT names; all of them when it names none. Anything but one SELECT is refused."""
    with duckdb.connect(":memory:") as parser:
        _seal(parser)  # to look for names it plans the query, and a plan may already touch files
        statements = parser.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _READING:
            raise QueryError("expected one SELECT (or DESCRIBE, SHOW, EXPLAIN); runs are only read")
        try:
            named = {name.lower() for name in parser.get_table_names(sql)}
        except duckdb.Error:  # it cannot be planned without its tables, or at all: then with all of them
            return TABLES
    return [table for table in TABLES if table in named] or TABLES


def _seal(database: duckdb.DuckDBPyConnection) -> None:
    for setting in _SEALED:
        database.execute(setting)


def _runs(run_dirs: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of each run; names are those of the directories, or whole paths if two are the same."""
    for path in run_dirs:
        if not (path / CONFIG_FILE).is_file() and not (path / EVENTS_FILE).is_file():
            raise RunError(f"{path} is not a run: it has neither {CONFIG_FILE} nor {EVENTS_FILE}")
    names = [path.resolve().name for path in run_dirs]
    if len(set(names)) != len(names):
        names = [str(path) for path in run_dirs]
    return [(whole_text(name), path) for name, path in zip(names, run_dirs, strict=True)]


# Copies


def _table(name: str, runs: list[_Run]) -> pa.Table:
    if name == "runs":
        listings = [(run.name, describe_run(run.path)) for run in runs]
        table = _columns(RunListing, [listing for _, listing in listings], run=[name for name, _ in listings])
        return table.select(["run", "standing", "started", "last_round", "seconds"])
    if name == "seeds":
        lives = [(run.name, life) for run in runs for life in seed_lives(run.records)]
        return _columns(SeedLife, [life for _, life in lives], run=[name for name, _ in lives])
    kinds = KINDS_OF[name]
    found = [(run.name, record) for run in runs for record in run.records if record.event.kind in kinds]
    given: dict[str, Sequence[object]] = {
        "run": [name for name, _ in found],
        "time": [record.time for _, record in found],
    }
    if name in EVENT_TABLES:
        return _columns(EVENT_TABLES[name], [record.event for _, record in found], **given)
    given["kind"] = [record.event.kind for _, record in found]
    given["fields"] = [encode(record).decode() for _, record in found]
    return _columns(Place, [record.place for _, record in found], **given)


def _columns(cls: type, rows: Sequence[object], **given: Sequence[object]) -> pa.Table:
    """One row for each dataclass object, after the columns that are given beside them (`time`, and texts)."""
    columns = {
        name: pa.array(map(_cell, values), _TYPES[float if name == "time" else str][0])
        for name, values in given.items()
    }
    hints = get_type_hints(cls)
    for field in fields(cls):
        values = [_cell(getattr(row, field.name)) for row in rows]
        columns[RENAMED.get(field.name, field.name)] = pa.array(values, _type(hints[field.name])[0])
    return pa.table(columns)


def _cell(value: object) -> object:
    """A value as Arrow takes it; None for what SQL has no form for."""
    if isinstance(value, Enum):
        return value.name if isinstance(value, IntEnum) else value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -LARGEST <= value <= LARGEST else None
    if isinstance(value, Mapping):
        return [(key, _cell(entry)) for key, entry in value.items()]
    return str(value) if isinstance(value, Path) else value


def _type(hint: object) -> tuple[pa.DataType, str]:
    """The types in Arrow and DuckDB of an annotation, with or without None."""
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is Mapping:
        arrow, name = _type(options[1])
        return pa.map_(pa.string(), arrow), f"MAP(VARCHAR, {name})"
    if get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, Enum | Path)):
        return _TYPES[str]
    return _type(options[0]) if options else _TYPES[hint]


# Decisions read in place


_PATTERN = frozenset("*?[]{}")
_LONGEST_LINE = 1 << 24
_PIECE = 1 << 22
_STARTED = f'{{"kind":"{RunStarted.kind}"'.encode()


def can_be_read_in_place(run: Path) -> bool:
    """Whether every line of a run counts, and its path means one file."""
    path = run / EVENTS_FILE
    if not path.is_file() or _PATTERN & set(str(path.resolve())):
        return False
    starts, rest = 0, b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            starts += (rest + piece).count(_STARTED)
            rest = piece[-len(_STARTED) + 1 :]
    return starts <= 1


def _view(event: type[Event], run: str, path: str) -> str:
    """A SELECT of the events of one kind from one file; `path` is quoted."""
    hints = get_type_hints(event)
    hints.pop("kind")  # a class variable
    columns = {"kind": "VARCHAR", "time": "DOUBLE"} | {name: _type(hint)[1] for name, hint in hints.items()}
    listed = ", ".join(f"{name}: {_quoted(kind)}" for name, kind in columns.items())
    picked = ", ".join(f'"{name}" AS "{RENAMED.get(name, name)}"' for name in hints)
    wanted = [f"kind = {_quoted(event.kind)}", "time IS NOT NULL"]
    for name, hint in hints.items():
        # Required fields; floats may be null, since NaN is written so.
        if isinstance(hint, type) and issubclass(hint, int | str | Enum):
            wanted.append(f"{name} IS NOT NULL")
        for option in get_args(hint) or (hint,):
            if isinstance(option, type) and issubclass(option, Enum):
                names = ", ".join(_quoted(str(_cell(member))) for member in option)
                wanted.append(f"({name} IS NULL OR {name} IN ({names}))")
    return (
        f"SELECT {_quoted(run)} AS run, time, {picked} FROM read_json({path}, "
        f"format = 'newline_delimited', columns = {{{listed}}}, ignore_errors = true, "
        f"maximum_object_size = {_LONGEST_LINE}) WHERE {' AND '.join(wanted)}"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
