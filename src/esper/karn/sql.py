"""SQL over runs.

    >>> query(Path("runs/digits-1"), "select round, mean_gain from rounds order by round")

The tables: `runs`, `rounds`, `episodes`, `decisions`, `seeds`, `anomalies`, `evaluations`, and `events` (all else,
with its fields as JSON). Every one has `run`. They are copies in memory: no query can change a run or open a file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from esper.karn.seeds import SeedLife, seed_lives
from esper.karn.tables import cell, pack, table_of
from esper.leyline import AnomalyRaised, DecisionTaken, EpisodeFinished, EvaluationFinished, RoundFinished
from esper.nissa import KINDS, Record, RunError, RunListing, describe_run, read_run
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE
from esper.nissa.wire import encode

TABLES = {
    "rounds": RoundFinished,
    "episodes": EpisodeFinished,
    "decisions": DecisionTaken,
    "anomalies": AnomalyRaised,
    "evaluations": EvaluationFinished,
}
"""Tables that hold one kind of event, with its fields as columns."""
_SEALED = (
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_Run = tuple[str, RunListing, list[Record]]


class QueryError(ValueError):
    """SQL that was refused or failed; the message is the database's."""


@dataclass(frozen=True, slots=True)
class Rows:
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def connect(run_dirs: Sequence[Path]) -> duckdb.DuckDBPyConnection:
    """A private database in memory with the tables of these runs, sealed off from files and network."""
    runs = [_load(path, name) for path, name in zip(run_dirs, _names(run_dirs), strict=True)]
    database = duckdb.connect(":memory:")
    for name, event in TABLES.items():
        _create(database, name, table_of(event, _of_kind(runs, event)))
    lives = [({"run": run}, life) for run, _, records in runs for life in seed_lives(records)]
    _create(database, "seeds", table_of(SeedLife, lives).drop_columns(["time"]))
    _create(database, "runs", _listings(runs))
    _create(database, "events", _other_events(runs))
    for setting in _SEALED:
        database.execute(setting)
    return database


def query(run: Path | Sequence[Path], sql: str) -> Rows:
    """What one SELECT says about a run, or about several."""
    with connect([run] if isinstance(run, Path) else run) as database:
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in _READING:
                raise QueryError("expected one SELECT (or DESCRIBE, SHOW, EXPLAIN); runs are only read")
            result = database.execute(statements[0])
            return Rows(tuple(column[0] for column in result.description), result.fetchall())
        except duckdb.Error as error:
            raise QueryError(str(error)) from error


def _names(run_dirs: Sequence[Path]) -> list[str]:
    """The directories' names; whole paths where two share one."""
    names = [path.resolve().name for path in run_dirs]
    return names if len(set(names)) == len(names) else [str(path) for path in run_dirs]


def _load(path: Path, name: str) -> _Run:
    if not (path / CONFIG_FILE).is_file() and not (path / EVENTS_FILE).is_file():
        raise RunError(f"{path} is not a run: it has neither {CONFIG_FILE} nor {EVENTS_FILE}")
    records = read_run(path) if (path / EVENTS_FILE).is_file() else []
    return name, describe_run(path), records


def _of_kind(runs: list[_Run], event: type) -> list[tuple[dict[str, object], object]]:
    return [
        ({"run": run, "time": record.time}, record.event)
        for run, _, records in runs
        for record in records
        if type(record.event) is event
    ]


def _listings(runs: list[_Run]) -> pa.Table:
    columns = ("run", "standing", "started", "last_round", "seconds")
    types = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.float64())
    rows = [(run, of.standing, of.started, of.last_round, of.seconds) for run, of, _ in runs]
    return pack(columns, types, [[cell(row[position]) for row in rows] for position in range(len(columns))])


def _other_events(runs: list[_Run]) -> pa.Table:
    """What has no table of its own, with the fields as JSON text."""
    told = set(KINDS.values()) - set(TABLES.values())
    columns = ("run", "time", "kind", "round", "env", "episode", "epoch", "fields")
    types = (pa.string(), pa.float64(), pa.string(), *(pa.int64() for _ in range(4)), pa.string())
    rows = []
    for run, _, records in runs:
        for record in records:
            if type(record.event) in told:
                line = json.loads(encode(record))
                head = {name: line.pop(name, None) for name in columns[1:-1]}
                rows.append((run, *head.values(), json.dumps(line)))
    return pack(columns, types, [[cell(row[position]) for row in rows] for position in range(len(columns))])


def _create(database: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    database.register("incoming", table)
    database.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    database.unregister("incoming")
