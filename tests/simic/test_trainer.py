"""The training loop: it learns, tells, remembers, stops when asked to, and goes on as if it never had."""

import math
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from esper.leyline import (
    CheckpointSaved,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    LifecycleOp,
    RoundFinished,
    RunFinished,
)
from esper.nissa import Checkpoints
from esper.simic import trainer as loop
from esper.simic.agent import CheckpointError
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import News, Working
from esper.simic.trainer import TrainingResult, VectorizedPPOTrainer, train_ppo_vectorized
from listener import Listener
from stopped_training import StoppedTraining

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


def _config(**changes: object) -> TrainingConfig:
    settings: dict[str, object] = {
        "suite": "toy_slots",
        "num_envs": 6,
        "num_minibatches": 2,
        "rounds": 5,
        "gamma": 1.0,
        "hidden_size": 16,
        "eval_every": 2,
        "eval_episodes": 4,
        "run_checkpoint_every": 2,
        "pool_cases": 40,
        "run_telemetry": "debug",  # which also asserts that ratios begin at 1
    }
    return TrainingConfig.of(settings | changes)


def _weights(directory: Path, name: str = "last") -> dict[str, Tensor]:
    checkpoint = torch.load(directory / "checkpoints" / f"{name}.pt", weights_only=True)
    weights: dict[str, Tensor] = checkpoint["policy"]
    return weights


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Recorded(NamedTuple):
    """A run of five rounds, and everything that it reported."""

    directory: Path
    listener: Listener
    result: TrainingResult


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    directory, listener = tmp_path_factory.mktemp("recorded"), Listener()
    checkpoints = Checkpoints(directory / "checkpoints")
    return Recorded(
        directory, listener, train_ppo_vectorized(_config(), checkpoints=checkpoints, sink=listener)
    )


def test_a_run_tells_what_it_did(recorded: Recorded) -> None:
    directory, listener, result = recorded
    assert (result.rounds, result.env_steps, result.interrupted) == (5, 5 * 6 * 20, None)
    rounds = [event for event in listener.events if isinstance(event, RoundFinished)]
    assert [event.round for event in rounds] == [1, 2, 3, 4, 5]
    assert all(sum(event.operations.values()) == 6 * 20 for event in rounds)
    assert all(event.episodes == 6 and event.mean_gain is not None for event in rounds)
    assert len(listener.of(EpisodeFinished)) == 5 * 6
    decisions = [event for event in listener.events if isinstance(event, DecisionTaken)]
    assert len(decisions) == 5 * 6 * 20
    for env in range(6):
        mine = [event for event in decisions if event.env == env]
        assert [(event.episode, event.epoch) for event in mine] == [
            (e, t + 1) for e in range(5) for t in range(20)
        ]
        earned = sum(event.reward for event in mine if event.episode == 0)
        (episode,) = (e for e in listener.of(EpisodeFinished) if e.env == env and e.episode == 0)
        assert earned == pytest.approx(episode.episode_return)
    germinated = [event for event in decisions if event.op is LifecycleOp.GERMINATE]
    assert germinated
    assert all(event.blueprint and event.slot and event.alpha_speed is None for event in germinated)
    assert [event.round for event in listener.events if isinstance(event, EvaluationFinished)] == [2, 4, 5]
    reasons = [event.reason for event in listener.events if isinstance(event, CheckpointSaved)]
    assert reasons.count("periodic") == 2
    assert "best" in reasons
    last = listener.events[-1]
    assert isinstance(last, RunFinished)
    assert last.status == "finished"
    for name in ("last", "best", "round-000002", "round-000004"):
        assert (directory / "checkpoints" / f"{name}.pt").exists()


def test_telemetry_and_checkpoints_change_nothing(recorded: Recorded) -> None:
    quiet = build(_config(run_telemetry="off", eval_every=0))
    trainer = VectorizedPPOTrainer(_config(run_telemetry="off", eval_every=0), quiet)
    trainer.begin()
    trainer.train()
    assert _same(_weights(recorded.directory), dict(quiet.agent.policy.state_dict()))


def test_a_long_round_reports_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    config, news = _config(rounds=2, run_telemetry="off"), list[News]()
    monkeypatch.setattr(loop, "QUIET_SECONDS", math.inf)
    train_ppo_vectorized(config, progress=news.append)
    before = ["drawing the instances...", "looking which baselines are on disk..."]
    assert [one.part for one in news if isinstance(one, Working)] == before
    news.clear()
    monkeypatch.setattr(loop, "QUIET_SECONDS", 0.0)
    train_ppo_vectorized(config, progress=news.append)
    news = [one for one in news if not (isinstance(one, Working) and one.part in before)]
    work = [one for one in news if isinstance(one, Working)]
    horizon = build(config).envs.episodes.horizon
    for number in (1, 2):
        collecting = [one for one in work if (one.round, one.part) == (number, "collecting")]
        assert [(one.done, one.total) for one in collecting] == [
            (step, horizon) for step in range(1, horizon + 1)
        ]
    judging = [one for one in work if one.part == "judging"]
    assert [(one.round, one.done, one.total) for one in judging] == [
        (2, step, horizon) for step in range(1, horizon + 1)
    ]
    assert len(work) == 3 * horizon
    order = [type(one) for one in news if isinstance(one, Working | RoundFinished)]
    assert order == [*[Working] * horizon, RoundFinished] * 2 + [Working] * horizon


@pytest.mark.parametrize("saved", ["round-000002", "round-000004"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, saved: str, recorded: Recorded) -> None:
    resumed = train_ppo_vectorized(
        _config(),
        checkpoints=Checkpoints(tmp_path / "checkpoints"),
        resume=recorded.directory / "checkpoints" / f"{saved}.pt",
    )
    assert _same(_weights(recorded.directory), _weights(tmp_path))
    whole = recorded.result
    assert (resumed.env_steps, resumed.best_score) == (whole.env_steps, whole.best_score)


def test_without_a_baseline_the_best_checkpoint_is_chosen_by_utility(tmp_path: Path) -> None:
    listener = Listener()
    result = train_ppo_vectorized(
        _config(reward_control_variate=False, rounds=4),
        checkpoints=Checkpoints(tmp_path / "checkpoints"),
        sink=listener,
    )
    judged = [event for event in listener.events if isinstance(event, EvaluationFinished)]
    assert [event.mean_gain for event in judged] == [None, None]
    assert result.best_score == max(event.mean_utility for event in judged if event.mean_utility is not None)
    assert (tmp_path / "checkpoints" / "best.pt").is_file()


def test_environments_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    train_ppo_vectorized(_config(rounds=1), checkpoints=Checkpoints(tmp_path / "checkpoints"))
    path = tmp_path / "checkpoints" / "last.pt"
    saved = torch.load(path, weights_only=True)
    saved["extra"]["envs"]["version"] = 2
    torch.save(saved, path)
    with pytest.raises(
        CheckpointError, match=r"last.pt: the saved environments have version 2; these have 7"
    ):
        train_ppo_vectorized(_config(), resume=path)


def test_workers_change_nothing(tmp_path: Path) -> None:
    config = _config(rounds=2, eval_every=0)
    train_ppo_vectorized(config, checkpoints=Checkpoints(tmp_path / "none" / "checkpoints"))
    train_ppo_vectorized(
        _config(rounds=2, eval_every=0, workers=2), checkpoints=Checkpoints(tmp_path / "two" / "checkpoints")
    )
    assert _same(_weights(tmp_path / "none"), _weights(tmp_path / "two"))


def _until_round(rounds: int, config: TrainingConfig, directory: Path) -> StoppedTraining:
    """A training in a process of its own that has finished some rounds."""
    training = StoppedTraining(config, directory)
    while rounds:
        rounds -= training.next_event() == "RoundFinished"
    return training


def _finish(config: TrainingConfig, directory: Path) -> TrainingResult:
    return train_ppo_vectorized(
        config,
        checkpoints=Checkpoints(directory / "checkpoints"),
        resume=directory / "checkpoints" / "last.pt",
    )


@pytest.fixture(scope="module")
def twelve_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    directory = tmp_path_factory.mktemp("whole")
    train_ppo_vectorized(TWELVE_ROUNDS, checkpoints=Checkpoints(directory / "checkpoints"))
    return directory


TWELVE_ROUNDS = _config(rounds=12, eval_every=0, num_envs=3, num_minibatches=1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    tmp_path: Path, number: signal.Signals, twelve_rounds: Path
) -> None:
    training = _until_round(3, TWELVE_ROUNDS, tmp_path)
    time.sleep(0.05)  # somewhere in a rollout
    returned, said = training.stop(number)
    if number is signal.SIGKILL:
        assert returned == -signal.SIGKILL
    else:
        assert returned == 0
        assert f"stopped by {'Ctrl-C' if number is signal.SIGINT else number.name}" in said
    resumed = _finish(TWELVE_ROUNDS, tmp_path)
    assert resumed.rounds == 12
    assert _same(_weights(twelve_rounds), _weights(tmp_path))
