"""However a run ends, its last word says how; SPEC B1."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import AnomalyRaised, HostStep, RoundFinished, RunFinished
from esper.nissa import Checkpoints
from esper.simic.agent import CheckpointError, NonFiniteUpdateError, PPOAgent
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import GrowthVectorEnv, make_env
from esper.simic.trainer import train_ppo_vectorized
from esper.tolaria.worlds.remote import WorkerHung
from esper.tolaria.worlds.toy.host import ToyWorld
from listener import Listener

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
CONFIG = TrainingConfig(
    suite="toy", num_envs=2, num_minibatches=1, hidden_size=16, rounds=6, eval_every=0, pool_cases=3
)


def poison(monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
    """NaN for a reward in these rounds, from 1."""
    observe = PPOAgent.observe

    def poisoned(agent: PPOAgent, reward: Tensor, *ends: NDArray[np.bool_], **more: object) -> None:
        if agent.updates + 1 in rounds:
            reward = torch.full_like(reward, math.nan)
        observe(agent, reward, *ends, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(PPOAgent, "observe", poisoned)


def test_three_updates_that_are_not_finite_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 2, 3, 4)
    listener = Listener()
    with pytest.raises(NonFiniteUpdateError, match="3 updates in a row"):
        train_ppo_vectorized(CONFIG, checkpoints=Checkpoints(tmp_path / "checkpoints"), sink=listener)
    (end,) = listener.of(RunFinished)
    assert listener.events[-1] is end
    assert (end.status, end.rounds) == ("failed", 3)
    assert end.reason is not None
    assert end.reason.startswith("NonFiniteUpdateError: 3 updates in a row")
    anomalies = [event for event in listener.events if isinstance(event, AnomalyRaised)]
    assert [(event.round, event.name) for event in anomalies] == [
        (2, "numerical_instability"),
        (3, "numerical_instability"),
    ]
    saved = torch.load(tmp_path / "checkpoints" / "failed.pt", weights_only=True)
    assert all(weight.isfinite().all() for weight in saved["policy"].values())


def test_two_are_skipped_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 2, 3, 5, 6)
    listener = Listener()
    result = train_ppo_vectorized(CONFIG, checkpoints=Checkpoints(tmp_path / "checkpoints"), sink=listener)
    assert result.rounds == 6
    (end,) = listener.of(RunFinished)
    assert end.status == "finished"
    rounds = [event for event in listener.events if isinstance(event, RoundFinished)]
    assert [event.had_non_finite for event in rounds] == [False, True, True, False, True, True]
    assert not (tmp_path / "checkpoints" / "failed.pt").exists()


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("broken"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_any_exception_is_the_last_word(
    error: BaseException, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[GrowthVectorEnv] = []

    def step(_: GrowthVectorEnv, __: object) -> None:
        raise error

    monkeypatch.setattr(GrowthVectorEnv, "step", step)
    monkeypatch.setattr(GrowthVectorEnv, "close", lambda envs: closed.append(envs))
    listener = Listener()
    with pytest.raises(type(error)):
        train_ppo_vectorized(CONFIG, sink=listener)
    (end,) = listener.of(RunFinished)
    assert (end.status, end.rounds, end.env_steps) == (status, 0, 0)
    assert end.reason in ("RuntimeError: broken", "KeyboardInterrupt")
    assert len(closed) == 1


@pytest.mark.parametrize("what", ["PPOAgent", "GrowthVectorEnv"])
def test_a_run_that_cannot_be_built_leaves_no_processes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Spread(ToyWorld):
        """Stands for worker processes."""

        def __init__(self, factory: object, *, num_hosts: int, **_: object) -> None:
            assert factory is ToyWorld
            super().__init__(num_hosts)

        def close(self) -> None:
            closed.append(True)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("cannot be made")

    monkeypatch.setattr("esper.simic.env.making.ProcessWorld", Spread)
    monkeypatch.setattr(f"esper.simic.building.{what}", refuse)
    with pytest.raises(ValueError, match="cannot be made"):
        train_ppo_vectorized(replace(CONFIG, workers=2))
    assert closed == [True]
    monkeypatch.setattr("esper.simic.env.making.GrowthVectorEnv", refuse)
    with pytest.raises(ValueError, match="cannot be made"):
        make_env("toy", 2, workers=2)
    assert closed == [True, True]


def test_a_resume_that_is_refused_is_no_word_of_the_run(tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        train_ppo_vectorized(CONFIG, resume=tmp_path / "gone.pt", sink=listener)
    assert listener.events == []


def test_a_hung_worker_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    class Spread(ToyWorld):
        def __init__(self, _: object, *, num_hosts: int, timeout: float, **__: object) -> None:
            asked.append(timeout)
            super().__init__(num_hosts)

        def close(self) -> None:
            asked.append("closed")

        def step_many(self, steps: Sequence[HostStep]) -> None:
            raise WorkerHung(f"worker 1 has not answered for hosts {[step.host_idx for step in steps]}")

    monkeypatch.setattr("esper.simic.env.making.ProcessWorld", Spread)
    listener = Listener()
    with pytest.raises(WorkerHung, match="worker 1"):
        train_ppo_vectorized(replace(CONFIG, workers=2, worker_timeout=7.5), sink=listener)
    assert asked == [7.5, "closed"]
    (end,) = listener.of(RunFinished)
    assert end.status == "failed"
    assert end.reason == "WorkerHung: worker 1 has not answered for hosts [0, 1]"


def test_even_one_before_anything_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("esper.simic.trainer.build", build)
    listener = Listener()
    with pytest.raises(ValueError, match="no such thing"):
        train_ppo_vectorized(CONFIG, sink=listener)
    assert [end.reason for end in listener.of(RunFinished)] == ["ValueError: no such thing"]
