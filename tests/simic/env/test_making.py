"""What is asked of an environment reaches the part that does it."""

import pickle

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from esper.kasmina.governor import GovernorRules
from esper.leyline import HEAD_NAMES, DecisionSettings
from esper.simic import TrainingConfig
from esper.simic.env import GrowthVectorEnv, make_env
from esper.simic.env.making import Workers, make_world
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.worker import WorldFactory
from world_steps import begin_host


def waiting(envs: GrowthVectorEnv) -> NDArray[np.int64]:
    return np.zeros((envs.num_envs, len(HEAD_NAMES)), dtype=np.int64)


def test_hosts_compute_with_one_thread_wherever_they_are() -> None:
    try:
        torch.set_num_threads(2)
        make_env("toy", 1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def test_an_episode_is_as_long_as_was_asked() -> None:
    envs = make_env("toy", 2, horizon=7)
    envs.reset(seed=0)
    ends = [bool(envs.step(waiting(envs))[2].all()) for _ in range(7)]
    assert ends == [False] * 6 + [True]
    assert make_world("digits", 1, horizon=7).horizon == 7
    assert make_world("digits", 1).horizon == 20


def test_the_governor_judges_by_the_rules_that_were_asked() -> None:
    world = make_world("digits", 1, governor=GovernorRules(collapse_patience=5)).world
    assert isinstance(world, EngineWorld)
    begin_host(world, 0, "digits", 0)
    governor = world.governor(0)
    assert governor is not None
    assert governor.rules == GovernorRules(collapse_patience=5)


def test_the_governor_of_a_worker_judges_by_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EngineWorld] = []

    class Here:
        """What a worker does with what it is sent, without the process."""

        def __init__(self, factory: WorldFactory, *, num_hosts: int, workers: int, **_: object) -> None:
            assert workers == 1
            world = pickle.loads(pickle.dumps(factory))(num_hosts)
            assert isinstance(world, EngineWorld)
            made.append(world)

        def close(self) -> None:
            pass

    monkeypatch.setattr("esper.simic.env.making.ProcessWorld", Here)
    make_world("digits", 1, workers=Workers(1), governor=GovernorRules(collapse_share=0.7))
    begin_host(made[0], 0, "digits", 0)
    governor = made[0].governor(0)
    assert governor is not None
    assert governor.rules == GovernorRules(collapse_share=0.7)


@pytest.mark.parametrize(("threshold", "plateau"), [(0.0, 0), (0.99, 1)])
def test_a_plateau_is_what_was_asked(threshold: float, plateau: int) -> None:
    envs = make_env("toy", 1, decisions=DecisionSettings(plateau_threshold=threshold))
    envs.reset(seed=0)
    envs.step(waiting(envs))
    assert envs.situations()[0].signals.plateau_epochs == plateau


def test_a_configuration_is_enough_to_make_an_environment() -> None:
    config = TrainingConfig.preset("toy", num_envs=2, num_minibatches=None, horizon=9)
    envs = make_env(
        config.suite,
        config.num_envs,
        device=config.device,
        workers=config.workers,
        horizon=config.horizon,
        governor=config.governor(),
        reward=config.reward(task_rent=0.01),
        settle=config.settle,
        decisions=config.decisions,
    )
    envs.reset(seed=0)
    assert envs.episodes.horizon == 9
    assert envs.episodes.reward.gamma == 1.0
    assert envs.episodes.settle == "worth"
