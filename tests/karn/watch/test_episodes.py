"""One episode found again in the file, with what grew where."""

from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn.watch.episodes import frames, read_episode
from esper.karn.watch.state import RunState
from esper.leyline import DecisionTaken, EpisodeFinished, LifecycleOp, RoundFinished, Style
from run_examples import example
from synthetic_run import BEGAN, line_of, write_synthetic_run

DECISION, EPISODE, ROUND = example(DecisionTaken), example(EpisodeFinished), example(RoundFinished)


def test_an_episode_is_found_among_the_others(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", rounds=5, envs=12, epochs=11)
    state = RunState()
    with (tmp_path / "run" / "events.jsonl").open("rb", buffering=0) as file:
        state.read(file)
        for env, episode in ((0, 0), (1, 3), (11, 4)):  # env 1 is not env 11
            row = state.episode(env, episode)
            assert row is not None
            told = read_episode(state, file, row)
            assert [frame.epoch for frame in told] == list(range(1, 12))
            assert {(frame.decision.env, frame.decision.episode) for frame in told} == {(env, episode)}
    assert state.episode(99, 0) is None


@pytest.mark.parametrize("split", [True, False])
def test_an_episode_that_spans_rounds(tmp_path: Path, split: bool) -> None:
    path, state = tmp_path / "events.jsonl", RunState()
    halves = [(1, (1, 2)), (2, (3, 4))] if split else [(2, (1, 2, 3, 4))]
    lines = []
    for number, epochs in halves:
        if number == 2:
            lines.append(line_of(replace(EPISODE, round=2, env=0, episode=0), 1.0))
        decided = (replace(DECISION, round=number, env=0, episode=0, epoch=epoch) for epoch in epochs)
        lines += [line_of(decision, 1.0) for decision in decided]
        lines.append(line_of(replace(ROUND, round=number), 1.0))
    path.write_bytes(b"".join(lines))
    with path.open("rb", buffering=0) as file:
        state.read(file)
        told = read_episode(state, file, state.episodes[0])
    assert [frame.epoch for frame in told] == [1, 2, 3, 4]


def decision(epoch: int, op: LifecycleOp, **more: object) -> DecisionTaken:
    plain = replace(DECISION, epoch=epoch, op=op, slot=None, blueprint=None, contributions={})
    return replace(plain, **more)  # type: ignore[arg-type]


def test_what_grows_is_known_from_its_birth() -> None:
    told = frames(
        [
            decision(
                1,
                LifecycleOp.GERMINATE,
                slot="b",
                blueprint="mixer",
                style=Style.GATE,
                stages={"b": "DORMANT", "a": "DORMANT"},
                alphas={},
            ),
            decision(
                2, LifecycleOp.PRUNE, slot="b", stages={"b": "TRAINING", "a": "DORMANT"}, alphas={"b": 0.0}
            ),
            decision(3, LifecycleOp.WAIT, stages={"b": "EMBARGOED", "a": "DORMANT"}, alphas={}),
        ]
    )
    assert [slot.name for slot in told[0].slots] == ["b", "a"]  # the network's order
    assert [frame.slots[0].blueprint for frame in told] == [None, "mixer", None]
    assert [frame.slots[0].alpha for frame in told] == [None, 0.0, None]


def test_an_older_record_without_slots() -> None:
    bare = {"stages": None, "alphas": None, "contributions": None}
    told = frames(
        [
            decision(1, LifecycleOp.GERMINATE, slot="x", blueprint="norm", **bare),
            decision(2, LifecycleOp.WAIT, **bare),
        ]
    )
    (slot,) = told[1].slots
    assert (slot.name, slot.stage, slot.alpha, slot.contribution, slot.blueprint) == (
        "x",
        None,
        None,
        None,
        "norm",
    )
    assert frames([]) == []


def test_an_epoch_no_episode_can_reach_is_passed_over(tmp_path: Path) -> None:
    row_of = example(EpisodeFinished)
    decision = replace(example(DecisionTaken), round=1, env=row_of.env, episode=row_of.episode)
    path = tmp_path / "events.jsonl"
    path.write_bytes(
        b"".join(line_of(replace(decision, epoch=epoch), BEGAN) for epoch in (1, 10**400, -3))
        + line_of(replace(row_of, round=1), BEGAN)
        + line_of(replace(example(RoundFinished), round=1), BEGAN)
    )
    state = RunState()
    with path.open("rb", buffering=0) as file:
        state.read(file)
        assert [frame.epoch for frame in read_episode(state, file, state.episodes[0])] == [1]
