"""Lives of seeds counted from lines: the fast way, the slow way, and the analyst's way agree."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn.seeds import SeedCount, SeedTally, seed_lives
from esper.leyline import DecisionTaken, LifecycleOp
from esper.nissa.event_file import decode
from run_examples import example
from synthetic_run import line_of, write_synthetic_run

DECISION = example(DecisionTaken)


def line(
    op: str, *, round_number: int = 1, env: int = 0, episode: int = 0, slot: str | None = "a", **more: object
) -> bytes:
    event = replace(
        DECISION,
        round=round_number,
        env=env,
        episode=episode,
        op=LifecycleOp[op],
        slot=slot,
        blueprint="mixer" if op == "GERMINATE" else None,
        contribution=None,
    )
    return line_of(replace(event, **more), 1.0).rstrip(b"\n")  # type: ignore[arg-type]


def tally(*lines: bytes) -> list[SeedCount]:
    seeds = SeedTally()
    for each in lines:
        seeds.decide(each)
    return seeds.counts()


def test_known_answers() -> None:
    assert tally() == []
    assert tally(line("WAIT", slot=None)) == []
    assert tally(
        line("GERMINATE"), line("ADVANCE", contribution=0.5), line("FOSSILIZE", contribution=0.25)
    ) == [SeedCount("mixer", "a", germinated=1, fossilized=1, known=1, total=0.25)]
    counted = tally(
        line("GERMINATE"),
        line("PRUNE", contribution=-0.5),
        line("GERMINATE", epoch=9),
        line("GERMINATE", slot="b"),
        line("GERMINATE", env=1),
    )
    assert counted == [
        SeedCount("mixer", "a", germinated=3, pruned=1, known=1, total=-0.5),
        SeedCount("mixer", "b", germinated=1),
    ]
    assert [row.undecided for row in counted] == [2, 1]
    assert [row.contribution for row in counted] == [-0.5, None]


def test_a_later_episode_does_not_end_the_lives_of_an_earlier_one() -> None:
    (row,) = tally(line("GERMINATE"), line("PRUNE", episode=1), line("GERMINATE", episode=1))
    assert (row.germinated, row.pruned) == (2, 0)


def test_the_slow_way_says_the_same() -> None:
    fast = [line("GERMINATE"), line("PRUNE", contribution=0.125)]
    slow = [json.dumps(json.loads(each)).encode() for each in fast]  # with spaces, as another writer might
    odd = [json.dumps(dict(sorted(json.loads(each).items()))).encode() for each in fast]
    assert tally(*fast) == tally(*slow) == tally(*odd)
    (row,) = tally(line("GERMINATE", slot='quo"te\\'), line("FOSSILIZE", slot='quo"te\\'))
    assert (row.slot, row.fossilized) == ('quo"te\\', 1)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b'{"kind":"decision_taken"',
        b'{"kind":"decision_taken","op":"GERMINATE"}',
        b'{"kind":"decision_taken","op":"GERMINATE","slot":3,"round":1,"env":1,"episode":1}',
        b'{"kind":"decision_taken","op":"GERMINATE","slot":"a","round":"1","env":1,"episode":1}',
        b'{"kind":"decision_taken","op":"GERMINATE","slot":"a","round":-1,"env":1,"episode":1}',
        b'{"kind":"decision_taken","time":1,"round":'
        + b"9" * 5000
        + b',"env":0,"episode":0,"epoch":1,"op":"PRUNE"}',
        line("GERMINATE")[:150],
    ],
)
def test_broken_lines_are_passed_over(broken: bytes) -> None:
    assert tally(broken) == []


@pytest.mark.parametrize("written", [b"1e999", b"1.2.3", b"-", b'"0.5"', b"NaN"])
def test_a_contribution_that_is_no_number_is_unknown(written: bytes) -> None:
    prune = line("PRUNE", contribution=0.125).replace(b'"contribution":0.125', b'"contribution":' + written)
    (row,) = tally(line("GERMINATE"), prune)
    assert (row.pruned, row.contribution) == (1, None)


def test_it_agrees_with_the_analyst(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", rounds=4, envs=3)
    lines = (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()
    decisions = [each for each in lines if b"decision_taken" in each[:30]]
    counted = tally(*decisions)
    lives = seed_lives(map(decode, decisions))
    assert sum(row.germinated for row in counted) == len(lives)
    for fate, number in (("fossilized", "fossilized"), ("pruned", "pruned")):
        assert sum(getattr(row, number) for row in counted) == sum(life.fate == fate for life in lives)
