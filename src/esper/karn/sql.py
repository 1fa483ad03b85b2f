"""SQL over runs.

    >>> query(Path("runs/digits-1"), "select round, mean_gain from rounds order by round")

The tables: `runs`, `rounds`, `episodes`, `decisions`, `seeds`, `anomalies`, `evaluations`, and `events` (all else,
with its fields as JSON). Every one has `run`. They are copies in memory, except that a query reads decisions where
they were written: no query can change a run or open any other file.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from esper.karn.in_place import allowed, can_be_read_in_place, view
from esper.karn.seeds import TELLING_OF_SEEDS, SeedLife, seed_lives
from esper.karn.tables import INTEGER, NUMBER, TEXT, table_of
from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    Place,
    RoundFinished,
)
from esper.nissa import KINDS, Record, RunError, describe_run, read_run
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE
from esper.nissa.wire import encode, whole_text

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
    "seeds": TELLING_OF_SEEDS,
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


class QueryError(ValueError):
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
