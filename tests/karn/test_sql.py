"""SQL over small runs: known answers, empty and broken runs, hostile content, nothing to reach from inside."""

import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

import duckdb
import pyarrow as pa
import pytest

from esper.karn.sql import QueryError, connect, query
from esper.leyline import DecisionTaken, EpisodeFinished, Event, Place, RoundFinished, RunStarted
from esper.nissa import Record, RunError
from esper.nissa.event_file import encode, place_of
from event_examples import EXAMPLES, QUERIES

TABLES = ["anomalies", "decisions", "episodes", "evaluations", "events", "rounds", "runs", "seeds"]
EPISODE = cast(EpisodeFinished, EXAMPLES["episode_finished"].event)
ROUND = cast(RoundFinished, EXAMPLES["round_finished"].event)
DECISION = cast(DecisionTaken, EXAMPLES["decision_taken"].event)


def write(run: Path, events: Iterable[Event]) -> Path:
    run.mkdir()
    records = [Record(float(n), place_of(event, Place()), event) for n, event in enumerate(events)]
    (run / "events.jsonl").write_bytes(b"".join(encode(record) for record in records))
    return run


@pytest.fixture
def full(tmp_path: Path) -> Path:
    run = tmp_path / "full"
    run.mkdir()
    (run / "events.jsonl").write_bytes(b"".join(map(encode, EXAMPLES.values())))
    return run


@pytest.mark.parametrize("kind", QUERIES)
def test_the_queries_of_the_page_find_their_event(full: Path, kind: str) -> None:
    found = query(full, QUERIES[kind])
    if kind == "checkpoint_saved":  # the example is periodic, and the query asks for the best
        assert found.rows == []
    else:
        assert len(found.rows) >= 1


def test_every_kind_has_a_query() -> None:
    assert set(QUERIES) == set(EXAMPLES)


def test_known_answers(full: Path) -> None:
    assert query(full, "select run, round, env_steps, mean_gain, had_non_finite from rounds").rows == [
        ("full", 4, 2560, 0.0625, False)
    ]
    assert query(full, "select instance, utility, rolled_back from episodes").rows == [
        ("mnist1d:size=1000", 0.8125, None)
    ]
    assert query(
        full, "select op, slot, blueprint, alpha_curve, reward_components['potential_after'] from decisions"
    ).rows == [("PRUNE", "blocks.1", None, "cosine", 0.0625)]
    assert query(full, "select entropy_by_head['op'], entropy_by_head['style'] from rounds").rows == [
        (1.25, None)
    ]
    assert query(full, "select name, threshold from anomalies").rows == [("ratio_explosion", 5.0)]
    assert query(full, "select suite, gain_low from evaluations").rows == [("cpu", 0.03125)]
    assert query(full, "select standing, last_round from runs").rows == [("finished", 4)]
    assert query(full, "select * from rounds limit 0").columns[:4] == ("run", "time", "round", "env_steps")


def test_several_runs_are_told_apart(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [replace(ROUND, round=1)])
    two = write(tmp_path / "two", [replace(ROUND, round=1), replace(ROUND, round=2)])
    counted = query([one, two], "select run, count(*) from rounds group by run order by run")
    assert counted.rows == [("one", 1), ("two", 2)]
    (tmp_path / "elsewhere").mkdir()
    namesake = write(tmp_path / "elsewhere" / "one", [])
    assert query([one, namesake], "select count(distinct run) from runs").rows == [(2,)]


def test_a_resumed_run_counts_each_round_once(tmp_path: Path) -> None:
    rounds = [replace(ROUND, round=number) for number in (1, 2)]
    run = write(tmp_path / "one", [*rounds, RunStarted("one", "0", resumed_from=1), rounds[1]])
    assert query(run, "select round from rounds order by round").rows == [(1,), (2,)]


@pytest.mark.parametrize("content", [None, b"", b'{"kind": "round_fin', b"\n\n", b"\xff\xfe\0\n[[[[\n"])
def test_empty_and_broken_runs_have_empty_tables(tmp_path: Path, content: bytes | None) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    if content is not None:
        (run / "events.jsonl").write_bytes(content)
    with connect([run]) as database:
        for table in TABLES:
            assert len(database.execute(f"select * from {table}").fetchall()) == (table == "runs")
        assert database.execute("select standing from runs").fetchall() == [("crashed",)]


def test_only_the_tables_that_are_asked_for_are_read(full: Path) -> None:
    with connect([full], tables=["seeds"]) as database:
        assert database.execute("show tables").fetchall() == [("seeds",)]
        assert len(database.execute("from seeds").fetchall()) == 1
    joined = "select count(*) from ROUNDS r join (select * from seeds where true) s on r.run = s.run"
    assert query(full, joined).rows == [(1,)]
    assert query(full, "with rounds as (select 7 as x) select x from rounds").rows == [(7,)]


def test_all_tables_are_there_and_have_the_run(full: Path) -> None:
    with connect([full]) as database:
        tables = [row[0] for row in database.execute("show tables").fetchall()]
        assert tables == TABLES
        for table in tables:
            assert database.execute(f"select distinct run from {table}").fetchall() == [("full",)]


def test_no_runs_at_all_is_an_empty_database() -> None:
    assert query([], "select count(*) from seeds").rows == [(0,)]


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        connect([tmp_path])


HOSTILE = [
    "'; drop table rounds; --",
    '"',
    "\ud800 lone",
    "\0nul",
    "\N{SNOWMAN}\u2028\r\n",
    "${HOME} {0} %s",
    "x" * 100_000,
    "",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_is_only_content(tmp_path: Path, text: str) -> None:
    episode = replace(
        EPISODE, case=text, host_seed=2**200, validation_loss=float("inf"), operations={text: -(2**99)}
    )
    started = RunStarted(name=text, esper=text)
    run = write(tmp_path / "run", [started, episode, replace(DECISION, slot=text), ROUND])
    shown = text.encode("utf-8", "replace").decode()
    assert query(run, "select instance, host_seed, validation_loss from episodes").rows == [
        (shown, None, None)
    ]
    assert query(run, "select slot from decisions").rows == [(shown,)]
    counts = query(run, "select (select count(*) from rounds), (select count(*) from events)")
    assert counts.rows == [(1, 1)]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_text('{secret}')",
        "select * from read_csv('{secret}')",
        "select * from read_json('{secret}')",
        "select * from read_blob('{secret}')",
        "select * from glob('{folder}/*')",
        "select * from '{secret}'",
        "copy rounds to '{folder}/out.csv'",
        "copy (select 1) to '{folder}/out.parquet'",
        "export database '{folder}/out'",
        "attach '{folder}/out.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "pragma enable_external_access",
        "drop table rounds",
        "insert into rounds select * from rounds",
        "delete from rounds",
        "create table mine as select 1",
        "select 1; select 2",
        "",
        "selekt",
    ],
)
def test_sql_can_only_read_the_tables(full: Path, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret.json").write_text('{"a": 1}')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(QueryError):
        query(full, sql.format(secret=tmp_path / "secret.json", folder=tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_connection_is_sealed_too(full: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"a": 1}')
    secret_variable = pa.table({"a": [1]})  # without the seal, SQL sees the caller's variables
    with connect([full]) as database:
        for sql in (
            f"select * from read_text('{tmp_path / 'secret.json'}')",
            f"copy rounds to '{tmp_path / 'out.csv'}'",
            "select * from secret_variable",
            "set enable_external_access = true",
            "set python_enable_replacements = true",
        ):
            with pytest.raises(duckdb.Error):
                database.execute(sql)
    assert secret_variable.num_rows == 1


@pytest.mark.parametrize(
    "sql", ["describe rounds", "show tables", "explain select 1", "with x as (select 1) from x"]
)
def test_looking_around_is_allowed(full: Path, sql: str) -> None:
    assert query(full, sql).rows


def test_ctrl_c_ends_a_query_at_once(full: Path) -> None:
    endless = (
        "with recursive again as (select 1 as n union all select n from again) select count(*) from again"
    )
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where it is ignored, as in the background
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            query(full, endless)
    finally:
        signal.signal(signal.SIGINT, before)
