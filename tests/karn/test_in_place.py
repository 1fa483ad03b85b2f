"""Decisions read where they were written are the decisions that were copied."""

import json
import random
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from esper.karn import sql
from esper.karn.sql import QueryError, can_be_read_in_place, connect, query
from esper.leyline import DecisionTaken, RunStarted
from esper.nissa import Record
from run_examples import example
from synthetic_run import BEGAN, line_of, round_lines, write_synthetic_run

DECISION = example(DecisionTaken)
EVERYTHING = "select * from decisions order by env, round, epoch"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_synthetic_run(tmp_path / "run", rounds=3, envs=2, epochs=11)
    odd = [
        replace(DECISION, round=9, slot="it's; drop", value=float("nan"), log_prob=float("-inf")),
        replace(DECISION, round=10, stages=None, alphas=None, contributions=None, probabilities=None),
        replace(DECISION, round=11, observation={"a.b": None, "c": 0.5}, reward_components={}),
    ]
    with (tmp_path / "run" / "events.jsonl").open("ab") as file:
        file.write(b"".join(line_of(each, 5.5) for each in odd))
        file.write(b'not json\n\n[1]\n{"kind":"from_the_future","time":1}\n{"kind":"decision_tak')
    return tmp_path / "run"


def copied(run: Path, asked: str) -> list[tuple[object, ...]]:
    with connect([run]) as database:
        return database.execute(asked).fetchall()


def test_the_same_rows_columns_and_types(run: Path) -> None:
    assert can_be_read_in_place(run)
    assert query(run, EVERYTHING).rows == copied(run, EVERYTHING)
    assert query(run, "describe decisions").rows == copied(run, "describe decisions")
    joined = (
        "select d.op, count(*), avg(r.mean_gain) from decisions d join rounds r using (run, round) "
        "group by op order by op"
    )
    assert query(run, joined).rows == copied(run, joined)


def test_it_is_read_in_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careful(*_args: object, **_given: object) -> list[Record]:
        raise AssertionError("the careful reader is not needed here")

    monkeypatch.setattr(sql, "read_run", careful)
    assert len(query(run, EVERYTHING).rows) == 3 * 2 * 11 + 3


def test_what_an_enumeration_does_not_have_is_no_decision(run: Path) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(b"\n" + line_of(replace(DECISION, round=77), 1.0).replace(b'"PRUNE"', b'"EXPLODE"', 1))
        file.write(line_of(replace(DECISION, round=77), 1.0).replace(b'"cosine"', b'"wavy"', 1))
    assert query(run, "select count(*) from decisions where round = 77").rows == [(0,)]
    assert copied(run, "select count(*) from decisions where round = 77") == [(0,)]


def test_a_resumed_run_is_read_with_care(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()

    def lines(*numbers: int) -> bytes:
        return b"".join(b"".join(round_lines(number, 9, 2, 11, random.Random(number))) for number in numbers)

    resumed = line_of(RunStarted("run", "0", resumed_from=1), BEGAN)
    (run / "events.jsonl").write_bytes(
        line_of(RunStarted("run", "0"), BEGAN) + lines(1, 2) + resumed + lines(2, 3)
    )
    assert not can_be_read_in_place(run)
    assert query(run, "select round, count(*) from decisions group by round order by round").rows == [
        (1, 22),
        (2, 22),
        (3, 22),
    ]


@pytest.mark.parametrize("name", ["a*b", "[ab]", "{x,y}", "a?"])
def test_a_name_that_reads_as_a_pattern(tmp_path: Path, name: str) -> None:
    write_synthetic_run(tmp_path / name, rounds=1, envs=1, epochs=11)
    write_synthetic_run(tmp_path / "ab", rounds=2, envs=1, epochs=11)
    assert not can_be_read_in_place(tmp_path / name)
    assert query(tmp_path / name, "select count(*) from decisions").rows == [(11,)]


def test_a_line_too_long_for_the_view(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.karn.sql._LONGEST_LINE", 200)
    assert len(query(run, EVERYTHING).rows) == 3 * 2 * 11 + 3


def test_several_runs_and_quotes_in_their_names(tmp_path: Path) -> None:
    for name in ("it's", "plain"):
        write_synthetic_run(tmp_path / name, rounds=1, envs=1, epochs=11)
    found = query(
        [tmp_path / "it's", tmp_path / "plain"],
        "select run, count(*) from decisions group by run order by run",
    )
    assert found.rows == [("it's", 11), ("plain", 11)]


@pytest.mark.parametrize(
    "asked",
    [
        "select * from decisions, read_text('{other}')",
        "select * from decisions, read_json('{other}')",
        "select * from decisions, '{other}'",
        "select * from decisions, glob('{folder}/*')",
        "copy (select * from decisions) to '{own}'",
        "copy (select * from decisions) to '{own}' (use_tmp_file false)",
        "set allowed_paths = ['{other}']; select * from decisions",
    ],
)
def test_no_other_file_can_be_reached(run: Path, tmp_path: Path, asked: str) -> None:
    write_synthetic_run(tmp_path / "other", rounds=1)
    before = (run / "events.jsonl").read_bytes()
    places = {"other": tmp_path / "other" / "events.jsonl", "own": run / "events.jsonl", "folder": tmp_path}
    with pytest.raises(QueryError):
        query(run, asked.format(**places))
    assert (run / "events.jsonl").read_bytes() == before


def test_a_wrong_query_is_told_as_such(run: Path) -> None:
    with pytest.raises(QueryError, match="no_such_column"):
        query(run, "select no_such_column from decisions")
    with pytest.raises(QueryError, match="Conversion"):
        query(run, "select cast(op as integer) from decisions")
    with connect([run]) as database, pytest.raises(duckdb.Error):
        database.execute(f"select * from read_text('{run / 'events.jsonl'}')")


@pytest.mark.parametrize("field", ["time", "round", "env", "episode", "epoch", "op"])
@pytest.mark.parametrize("written", [None, {}, "nowhere"])
def test_a_line_that_does_not_say_when_and_what_is_no_decision(
    run: Path, field: str, written: object
) -> None:
    before = query(run, "select count(*) from decisions").rows
    whole = json.loads(line_of(DECISION, 1.0))
    with (run / "events.jsonl").open("a") as file:
        file.write("\n" + json.dumps({**whole, field: written}, separators=(",", ":")) + "\n")
        file.write(json.dumps({name: value for name, value in whole.items() if name != field}) + "\n")
    assert query(run, "select count(*) from decisions").rows == before
