"""SQL over runs.

    >>> query(Path("runs/digits-1"), "select round, mean_gain from rounds order by round")

The tables: `runs`, `rounds`, `episodes`, `decisions`, `seeds`, `anomalies`, `evaluations`, and `events` (all else,
with its fields as JSON). Every one has `run`. They are copies in memory, except that a query reads decisions where
they were written: no query can change a run or open any other file.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

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
from esper.nissa import KINDS, Record, RunError, describe_run, read_run
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE
from esper.nissa.wire import encode, whole_text

# Typed records as columns. The types come from the events' own annotations.
#
# What SQL has no honest form for is NULL: NaN and Inf, and integers that do not fit.


LARGEST = 2**63 - 1
RENAMED = {"case": "instance"}
"""Field -> its column, where the field's name is a word of SQL."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one annotation are kept in a column."""

    arrow: pa.DataType
    convert: Callable[[Any], object]
    """Of a value that is not None and was checked when it was read."""

    def array(self, values: Sequence[object]) -> pa.Array:
        convert = self.convert
        return pa.array([None if v is None else convert(v) for v in values], type=self.arrow)


TEXT = Form(pa.string(), lambda text: text)
NUMBER = Form(pa.float64(), lambda number: number if math.isfinite(number) else None)
INTEGER = Form(pa.int64(), lambda number: number if -LARGEST <= number <= LARGEST else None)
FLAG = Form(pa.bool_(), lambda flag: flag)
_PLAIN: Mapping[object, Form] = {str: TEXT, float: NUMBER, int: INTEGER, bool: FLAG}


def form_of(hint: object) -> Form:
    """The column form of an annotation, with or without None."""
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is Literal:
        return TEXT
    if get_origin(hint) is Mapping:
        return _mapping(form_of(options[1]))
    if options:
        return form_of(options[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = {member: member.name if issubclass(hint, IntEnum) else member.value for member in hint}
        return Form(pa.string(), names.__getitem__)
    return _PLAIN[hint]


def table_of(cls: type, rows: Sequence[object], **given: tuple[Form, Sequence[object]]) -> pa.Table:
    """One row for each dataclass object, after the columns that are given beside them."""
    columns = {name: form.array(values) for name, (form, values) in given.items()}
    hints = get_type_hints(cls)
    for field in fields(cls):
        name = field.name
        columns[RENAMED.get(name, name)] = form_of(hints[name]).array([getattr(row, name) for row in rows])
    return pa.table(columns)


def _mapping(values: Form) -> Form:
    convert = values.convert

    def pairs(mapping: Mapping[str, object]) -> list[tuple[str, object]]:
        return [(key, None if value is None else convert(value)) for key, value in mapping.items()]

    return Form(pa.map_(pa.string(), values.arrow), pairs)


# Decisions read from where they were written, as far as a query needs them: a run has a million.
#
# A view over the file parses only the columns that a query names; a copy of everything takes minutes. What
# the view cannot say exactly, a run that went on from a checkpoint or a path that reads as a pattern, is left
# to the copy. Of a line that is not quite an event the view shows what it can, where the copy passes over it;
# ours are all whole.


_PATTERN = frozenset("*?[]{}")
_LONGEST_LINE = 1 << 24
_PIECE = 1 << 22
_STARTED = f'{{"kind":"{RunStarted.kind}"'.encode()
_TYPES = {pa.string(): "VARCHAR", pa.float64(): "DOUBLE", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN"}


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


def view(name: str, event: type[Event], runs: Sequence[tuple[str, Path]]) -> str:
    """The statement that defines a view of one kind of event over the files of these runs."""
    parts = [_part(event, run, path.resolve() / EVENTS_FILE) for run, path in runs]
    return f"CREATE VIEW {name} AS " + " UNION ALL ".join(parts)


def allowed(runs: Sequence[tuple[str, Path]]) -> str:
    """The setting that leaves a sealed database these files and no others."""
    paths = ", ".join(_quoted(str(path.resolve() / EVENTS_FILE)) for _, path in runs)
    return f"SET allowed_paths = [{paths}]"


def _part(event: type[Event], run: str, path: Path) -> str:
    hints = get_type_hints(event)
    hints.pop("kind")  # a class variable
    columns = {"kind": "VARCHAR", "time": "DOUBLE"}
    columns |= {name: _type(form_of(hint).arrow) for name, hint in hints.items()}
    listed = ", ".join(f"{name}: {_quoted(kind)}" for name, kind in columns.items())
    picked = ", ".join(f'"{name}" AS "{RENAMED.get(name, name)}"' for name in hints)
    wanted = " AND ".join(
        [f"kind = {_quoted(event.kind)}", "time IS NOT NULL", *_required(hints), *_members(hints)]
    )
    return (
        f"SELECT {_quoted(run)} AS run, time, {picked} FROM read_json({_quoted(str(path))}, "
        f"format = 'newline_delimited', columns = {{{listed}}}, ignore_errors = true, "
        f"maximum_object_size = {_LONGEST_LINE}) WHERE {wanted}"
    )


def _required(hints: dict[str, object]) -> list[str]:
    """A line that does not say what every event says is none. Numbers with a point may be null: NaN is written so."""
    return [
        f"{name} IS NOT NULL"
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, int | str | Enum)
    ]


def _members(hints: dict[str, object]) -> list[str]:
    """A line that names what an enumeration does not have is no event."""
    found = []
    for name, hint in hints.items():
        for option in get_args(hint) or (hint,):
            if isinstance(option, type) and issubclass(option, Enum):
                convert = form_of(option).convert
                names = ", ".join(_quoted(str(convert(member))) for member in option)
                found.append(f"({name} IS NULL OR {name} IN ({names}))")
    return found


def _type(arrow: pa.DataType) -> str:
    if pa.types.is_map(arrow):
        return f"MAP(VARCHAR, {_type(arrow.item_type)})"
    return _TYPES[arrow]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


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
"""Table -> the kinds of event that it is made from; `runs` has its own reader."""
TABLES = tuple(KINDS_OF)
DECISIONS = "decisions"
"""The one table that is large."""
_SEALED = ("SET enable_external_access = false", "SET lock_configuration = true")
"""No files, no network, no variables of the Python that calls; and no way back."""
_FROM_THE_FILE = (duckdb.InvalidInputException, duckdb.IOException, duckdb.ConversionException)
"""How DuckDB complains about what it reads, and not about the query."""
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


class QueryError(EsperError, ValueError):
    """SQL that was refused or failed; the message is the database's."""


@dataclass(frozen=True, slots=True)
class Rows:
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    path: Path
    records: list[Record]


def connect(run_dirs: Sequence[Path], *, tables: Collection[str] = TABLES) -> duckdb.DuckDBPyConnection:
    """A private database in memory with tables of these runs, sealed off from files and network.

    tables  only these; a run's many decisions are then read only when they are asked for
    """
    database = duckdb.connect(":memory:")
    _copy(database, _runs(run_dirs), tables)
    _seal(database)
    return database


def query(run: Path | Sequence[Path], sql: str) -> Rows:
    """What one SELECT says about a run, or about several."""
    runs = _runs([run] if isinstance(run, Path) else run)
    try:
        tables = _tables_in(sql)
        if DECISIONS in tables and runs and all(can_be_read_in_place(path) for _, path in runs):
            try:
                return _answer(runs, sql, tables, in_place=True)
            except _FROM_THE_FILE:  # a line that only the careful reader can pass over
                pass
        return _answer(runs, sql, tables, in_place=False)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error


def _answer(runs: Sequence[tuple[str, Path]], sql: str, tables: Collection[str], *, in_place: bool) -> Rows:
    """`sql` is one SELECT, which can write nothing, not even the files that it may read."""
    with duckdb.connect(":memory:") as database:
        _copy(database, runs, [table for table in tables if not in_place or table != DECISIONS])
        if in_place:
            database.execute(view(DECISIONS, EVENT_TABLES[DECISIONS], runs))
            database.execute(allowed(runs))
        _seal(database)
        result = database.execute(sql)
        return Rows(tuple(column[0] for column in result.description), result.fetchall())


def _copy(
    database: duckdb.DuckDBPyConnection, run_dirs: Sequence[tuple[str, Path]], tables: Collection[str]
) -> None:
    kinds = {kind for table in tables for kind in KINDS_OF[table]}
    runs = [_Run(name, path, _records(path, kinds)) for name, path in run_dirs]
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
    """With their names: the directories' own, or whole paths where two share one."""
    for path in run_dirs:
        if not (path / CONFIG_FILE).is_file() and not (path / EVENTS_FILE).is_file():
            raise RunError(f"{path} is not a run: it has neither {CONFIG_FILE} nor {EVENTS_FILE}")
    names = [path.resolve().name for path in run_dirs]
    if len(set(names)) != len(names):
        names = [str(path) for path in run_dirs]
    return [(whole_text(name), path) for name, path in zip(names, run_dirs, strict=True)]


def _records(path: Path, kinds: Collection[str]) -> list[Record]:
    return read_run(path, kinds=kinds) if kinds and (path / EVENTS_FILE).is_file() else []


def _table(name: str, runs: list[_Run]) -> pa.Table:
    if name == "runs":
        return _standings(runs)
    if name == "seeds":
        lives = [(run.name, life) for run in runs for life in seed_lives(run.records)]
        return table_of(SeedLife, [life for _, life in lives], run=(TEXT, [name for name, _ in lives]))
    if name == "events":
        return _other_events(runs)
    return _of_kind(runs, EVENT_TABLES[name])


def _of_kind(runs: list[_Run], event: type[Event]) -> pa.Table:
    found = [(run.name, record) for run in runs for record in run.records if type(record.event) is event]
    return table_of(
        event,
        [record.event for _, record in found],
        run=(TEXT, [name for name, _ in found]),
        time=(NUMBER, [record.time for _, record in found]),
    )


def _standings(runs: list[_Run]) -> pa.Table:
    listings = [describe_run(run.path) for run in runs]
    return pa.table(
        {
            "run": TEXT.array([run.name for run in runs]),
            "standing": TEXT.array([listing.standing for listing in listings]),
            "started": NUMBER.array([listing.started for listing in listings]),
            "last_round": INTEGER.array([listing.last_round for listing in listings]),
            "seconds": NUMBER.array([listing.seconds for listing in listings]),
        }
    )


def _other_events(runs: list[_Run]) -> pa.Table:
    """What has no table of its own, with the fields as JSON text."""
    found = [(run.name, record) for run in runs for record in run.records if record.event.kind in _OTHER]
    return table_of(
        Place,
        [record.place for _, record in found],
        run=(TEXT, [name for name, _ in found]),
        time=(NUMBER, [record.time for _, record in found]),
        kind=(TEXT, [record.event.kind for _, record in found]),
        fields=(TEXT, [encode(record).decode() for _, record in found]),
    )
