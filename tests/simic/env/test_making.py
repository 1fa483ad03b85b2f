"""What is asked of an environment reaches the part that does it."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from esper.kasmina.governor import GovernorRules
from esper.leyline import HEAD_NAMES, DecisionSettings
from esper.simic import TrainingConfig
from esper.simic.env import GrowthVectorEnv, make_env
from esper.simic.env.making import make_world
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.worker import Plain, load_named


def waiting(envs: GrowthVectorEnv) -> NDArray[np.int64]:
    return np.zeros((envs.num_envs, len(HEAD_NAMES)), dtype=np.int64)


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
    world.begin(0, "digits", 0)
    governor = world.governor(0)
    assert governor is not None
    assert governor.rules == GovernorRules(collapse_patience=5)


def test_the_governor_of_a_worker_judges_by_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EngineWorld] = []

    class Here:
        """What a worker does with what it is sent, without the process."""

        def __init__(
            self, factory: str, *, num_hosts: int, workers: int, options: dict[str, Plain], **_: object
        ) -> None:
            assert workers == 1
            world = load_named(factory)(num_hosts, **json.loads(json.dumps(options)))
            assert isinstance(world, EngineWorld)
            made.append(world)

        def close(self) -> None:
            pass

    monkeypatch.setattr("esper.simic.env.making.ProcessWorld", Here)
    make_world("digits", 1, workers=1, governor=GovernorRules(collapse_share=0.7))
    made[0].begin(0, "digits", 0)
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
