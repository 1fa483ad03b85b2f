"""A run read piece by piece is the run read at once, and says what the analyst's reader says."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn.watch.charts import curve_of
from esper.karn.watch.runs import Hub, RunsFolder
from esper.karn.watch.state import RunState
from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    LifecycleOp,
    RoundFinished,
    RunStarted,
)
from esper.nissa import read_run
from run_examples import example
from synthetic_run import BEGAN, line_of, round_lines, write_synthetic_run

EPISODE, ROUND = example(EpisodeFinished), example(RoundFinished)


def state_of(path: Path, state: RunState | None = None) -> RunState:
    state = RunState() if state is None else state
    with path.open("rb", buffering=0) as file:
        state.read(file)
        state.count_seeds(file, 1e9)
    return state


def known(state: RunState) -> tuple[object, ...]:
    """Everything but how often it was looked at."""
    return (
        state.rounds,
        state.sums,
        state.episodes,
        state.evaluations,
        state.anomalies,
        state.blocks,
        state.events,
        state.finished,
        state.unreadable_lines,
        state.seed_counts(),
        state.seeds_counted,
    )


@pytest.fixture
def events(tmp_path: Path) -> Path:
    write_synthetic_run(tmp_path / "run", rounds=12, envs=3, epochs=11)
    return tmp_path / "run" / "events.jsonl"


def test_it_agrees_with_the_analysts_reader(events: Path) -> None:
    state, records = state_of(events), read_run(events)
    told = [record.event for record in records]
    assert state.events == len(records)
    assert state.rounds == [event for event in told if isinstance(event, RoundFinished)]
    assert state.anomalies == [event for event in told if isinstance(event, AnomalyRaised)]
    assert state.evaluations == [event for event in told if isinstance(event, EvaluationFinished)]
    episodes = [event for event in told if isinstance(event, EpisodeFinished)]
    assert [(row.env, row.episode, row.gain) for row in state.episodes] == [
        (event.env, event.episode, event.gain) for event in episodes
    ]
    gains = [event.gain for event in episodes if event.round == 5 and event.gain is not None]
    assert state.sums[5]["gain"].mean == pytest.approx(sum(gains) / len(gains))
    assert state.unreadable_lines == 0


def test_it_does_not_matter_when_it_is_looked_at(events: Path, tmp_path: Path) -> None:
    whole, rng = events.read_bytes(), random.Random(1)
    growing, state, versions = tmp_path / "growing.jsonl", RunState(), []
    growing.write_bytes(b"")
    for cut in [*sorted(rng.sample(range(len(whole)), 25)), len(whole)]:
        with growing.open("ab") as file:
            file.write(whole[growing.stat().st_size : cut])
        state_of(growing, state)
        versions.append(state.version)
    assert known(state) == known(state_of(events))
    assert versions == sorted(versions)
    before = state.version
    state_of(growing, state)
    assert state.version == before  # nothing new


def test_the_decisions_of_a_round(events: Path) -> None:
    state = state_of(events)
    assert list(state.blocks) == list(range(1, 13))
    with events.open("rb") as file:
        lines = state.decisions(file, 7)
        assert len(lines) == 3 * 11
        assert all(b'"round":7,' in line for line in lines)
        assert state.decisions(file, 99) == []


def test_seeds_are_counted_in_parts(events: Path) -> None:
    state, shares = RunState(), []
    with events.open("rb", buffering=0) as file:
        state.read(file)
        assert state.seeds_counted == 0.0
        while state.count_seeds(file, 1e-9):
            shares.append(state.seeds_counted)
    assert shares == sorted(shares)
    assert len(shares) == 12
    assert state.seeds_counted == 1.0
    assert sum(row.germinated for row in state.seed_counts()) == 12 * 3 * 2


def test_what_was_recorded_beyond_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    def lines(*numbers: int) -> bytes:
        return b"".join(b"".join(round_lines(number, 9, 2, 11, random.Random(number))) for number in numbers)

    start = line_of(RunStarted("run", "0.1.0"), BEGAN)
    resumed = line_of(RunStarted("run", "0.1.0", resumed_from=2), BEGAN + 50)
    broken, straight = tmp_path / "broken.jsonl", tmp_path / "straight.jsonl"
    broken.write_bytes(start + lines(1, 2, 3, 4) + resumed + lines(3, 4, 5))
    straight.write_bytes(start + lines(1, 2, 3, 4, 5))
    one, other = state_of(broken), state_of(straight)
    assert [row.round for row in one.rounds] == [1, 2, 3, 4, 5]
    assert one.episodes == other.episodes
    assert one.sums == other.sums
    assert one.seed_counts() == other.seed_counts()
    growing, watched = tmp_path / "growing.jsonl", RunState()
    growing.write_bytes(start + lines(1, 2, 3, 4))
    state_of(growing, watched)  # its seeds are counted before it is known that some do not count
    with growing.open("ab") as more:
        more.write(resumed + lines(3, 4, 5))
    assert known(state_of(growing, watched)) == known(one)
    with broken.open("rb") as file, straight.open("rb") as file_of_other:
        for number in range(1, 6):
            assert one.decisions(file, number) == other.decisions(file_of_other, number)


def test_a_run_that_began_anew_without_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    start = line_of(RunStarted("run", "0.1.0"), BEGAN)
    path.write_bytes(
        start + line_of(replace(ROUND, round=1), 1.0) + start + line_of(replace(ROUND, round=1), 2.0)
    )
    assert [row.round for row in state_of(path).rounds] == [1]


def test_hostile_and_broken_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    odd = replace(EPISODE, case="<script>alert(1)</script>" * 100, gain=float("nan"), utility=1e308)
    bad = [
        b"\xff\xfe not text",
        b"[1,2]",
        b'{"kind":"episode_finished"}',
        b'{"kind":"episode_finished","round":1e9,"env":0,"episode":0}',
        b'{"kind":"round_finished","round":1}',
        b'{"kind":"round_finished",',
        b'{"kind":"anomaly_raised","time":1,"round":"x"}',
    ]
    from_the_future = b'{"kind":"something_new","time":1}'
    path.write_bytes(
        b"".join(each + b"\n" for each in [*bad, from_the_future, b"", b"   "])
        + line_of(odd, 1.0)
        + line_of(replace(ROUND, round=4, approx_kl=float("inf")), 2.0)
        + b'{"kind":"round_finished","ti'
    )
    state = state_of(path)
    assert state.unreadable_lines == len(bad) + 1  # blanks that are no empty line
    (row,) = state.episodes
    assert (row.case, math.isnan(row.gain or 0.0)) == (odd.case, True)  # as it was recorded
    assert state.sums[row.round or 0]["gain"].count == 0
    assert state.rounds[0].approx_kl == float("inf")


def test_a_run_without_events(tmp_path: Path) -> None:
    state = Hub(RunsFolder(tmp_path)).look("none").state
    assert (state.rounds, state.events, state.seeds_counted) == ([], 0, 1.0)


def test_seeds_after_a_rewind_are_those_of_the_run_read_anew(tmp_path: Path) -> None:
    """What happened to a seed, at its slot and in its env, after the checkpoint is forgotten while it is watched."""
    path = tmp_path / "events.jsonl"
    decision = replace(example(DecisionTaken), env=0, contribution=None)

    def told(number: int, episode: int, *ops: tuple[LifecycleOp, float | None]) -> bytes:
        lines = (
            line_of(
                replace(
                    decision, round=number, episode=episode, epoch=at, op=op, slot="a", contribution=known
                ),
                BEGAN,
            )
            for at, (op, known) in enumerate(ops, start=1)
        )
        return b"".join(lines) + line_of(replace(ROUND, round=number), BEGAN)

    germinate, prune, fossilize = LifecycleOp.GERMINATE, LifecycleOp.PRUNE, LifecycleOp.FOSSILIZE
    path.write_bytes(
        told(1, 1, (germinate, None), (LifecycleOp.ADVANCE, 0.25))
        + told(2, 1, (prune, -0.5), (germinate, None))
        + told(3, 2, (germinate, None))
    )
    watched = state_of(path)
    with path.open("ab") as file:
        file.write(line_of(replace(example(RunStarted), resumed_from=1), BEGAN))
    (row,) = state_of(path, watched).seed_counts()
    assert (row.germinated, row.pruned, row.fossilized, row.contribution) == (1, 0, 0, 0.25)
    with path.open("ab") as file:
        file.write(told(2, 1, (fossilize, 0.75)))
    (row,) = state_of(path, watched).seed_counts()
    assert (row.germinated, row.pruned, row.fossilized, row.contribution) == (1, 0, 1, 0.75)
    assert state_of(path).seed_counts() == [row]


def test_a_round_that_was_cut_short_is_no_part_of_the_one_that_repeats_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    cut_short = line_of(replace(example(DecisionTaken), round=2, epoch=1), BEGAN)
    repeated = line_of(replace(example(DecisionTaken), round=2, epoch=2), BEGAN)
    path.write_bytes(
        line_of(replace(ROUND, round=1), BEGAN)
        + cut_short
        + line_of(replace(example(RunStarted), resumed_from=1), BEGAN)
        + repeated
        + line_of(replace(ROUND, round=2), BEGAN)
    )
    state = state_of(path)
    with path.open("rb", buffering=0) as file:
        assert state.decisions(file, 2) == [repeated.rstrip()]


def test_what_was_lost_says_nothing_of_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    kept = replace(EPISODE, round=1, gain=0.5, lost=False)
    path.write_bytes(
        b"".join(
            line_of(each, BEGAN) for each in (kept, replace(kept, env=kept.env + 1, gain=-9.0, lost=True))
        )
        + line_of(replace(ROUND, round=1), BEGAN)
    )
    state = state_of(path)
    assert (state.sums[1]["gain"].count, state.sums[1]["gain"].mean) == (1, 0.5)
    assert len(state.episodes) == 2  # it happened all the same


def test_a_curve_and_its_interval(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b"".join(
            line_of(replace(EPISODE, round=1, env=env, gain=gain, lost=False), BEGAN)
            for env, gain in enumerate((-1.0, 1.0))
        )
        + line_of(replace(ROUND, round=1, peak_memory_bytes=10**400), BEGAN)
    )
    state = state_of(path)
    curve = curve_of(state, "gain")
    assert curve.values == [0.0]
    assert curve.low == [pytest.approx(-12.706, rel=1e-3)]  # Student's t with one degree of freedom
    assert curve.high == [pytest.approx(12.706, rel=1e-3)]
    assert curve_of(state, "peak_memory").values == [None]  # no machine has so much
