"""A worker that dies, at whatever moment, costs its own episodes; what they had shown until then is learned from."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.leyline import EpisodeFinished, RoundFinished
from esper.nissa import Checkpoints
from esper.simic.agent import compute_gae
from esper.simic.building import Training, build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import FlatVectorEnv
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Rewards, RulePlayer
from esper.simic.gymnasium_loop import collect
from esper.simic.offline.recorder import record_episodes
from esper.simic.reports import News
from esper.simic.trainer import VectorizedPPOTrainer
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import rule_policy
from esper.tolaria.worlds.processes import ProcessWorld
from listener import Listener

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
LOST, OTHERS = [0, 2], [1, 3]
"""Envs of the first worker, which is killed, and of the second."""


def _config(**changes: object) -> TrainingConfig:
    settings: dict[str, object] = {
        "suite": "toy",
        "num_envs": 4,
        "num_minibatches": 2,
        "rounds": 3,
        "hidden_size": 16,
        "eval_every": 0,
        "workers": 2,
        "normalize_rewards": True,
        "run_telemetry": "debug",  # which also asserts that ratios begin at 1
    }
    return TrainingConfig.of(settings | changes)


def kill_first(training: Training) -> None:
    world = training.envs.episodes.world
    assert isinstance(world, ProcessWorld)
    victim = world.process_ids[0]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    world._links[0].process.join()


def rollout(workers: int, after: Callable[[int, Training], None]) -> Training:
    """A full rollout that nothing was learned from yet; `after` is called with the number of each step."""
    training = build(_config(workers=workers))
    agent, envs = training.agent, FlatVectorEnv(training.envs, privileged=True)
    observation, info = envs.reset(seed=1)
    agent.begin_episodes()
    for number, _ in enumerate(collect(agent, envs, observation, info), start=1):
        after(number, training)
    envs.close()
    return training


def test_what_was_seen_before_a_worker_died_bootstraps_and_the_others_do_not_notice() -> None:
    """Killed in the twelfth of twenty steps."""
    training = rollout(2, lambda number, training: kill_first(training) if number == 11 else None)
    whole = rollout(0, lambda *_: None).agent.buffer
    agent, buffer = training.agent, training.agent.buffer
    expected_valid = np.ones((4, 20), dtype=np.bool_)
    expected_valid[LOST, 11] = False
    assert np.array_equal(buffer.valid, expected_valid)
    assert torch.equal(buffer.reward[OTHERS], whole.reward[OTHERS])
    assert torch.equal(buffer.reward[LOST, :11], whole.reward[LOST, :11])
    finished = agent._finish(torch.zeros(4, agent.buffer.observation.shape[-1]))
    assert finished.row_lengths.tolist() == [19, 20, 19, 20]
    reward, value = agent.reward_normalizer.normalize(buffer.reward)[LOST], buffer.value[LOST]
    never = torch.zeros(2, 11, dtype=torch.bool)
    advantage, returns = compute_gae(
        reward[:, :11],
        value[:, :11],
        value[:, 1:12],  # the last is of the state that the lost step was decided in
        never,
        never,
        gamma=agent.config.gamma,
        gae_lambda=agent.config.gae_lambda,
    )
    for row, start in enumerate((0, 39)):
        torch.testing.assert_close(finished.advantage[start : start + 11], advantage[row])
        torch.testing.assert_close(finished.returns[start : start + 11], returns[row])
    assert finished.begins[[11, 50]].all()  # the next episode
    assert float(agent.reward_normalizer.count) == 78


def train(
    directory: Path, progress: Callable[[News, Training], None], *, resume: str | None = None
) -> tuple[Listener, dict[str, torch.Tensor]]:
    """Three rounds; `progress` is called with every event of the run. Returns events and final weights."""
    config, listener = _config(run_checkpoint_every=1), Listener()
    training = build(config)
    trainer = VectorizedPPOTrainer(
        config,
        training,
        checkpoints=Checkpoints(directory / "checkpoints"),
        sink=listener,
        progress=lambda event: progress(event, training),
    )
    if resume is None:
        trainer.begin()
    else:
        trainer.resume(directory / "checkpoints" / resume)
    trainer.train()
    training.envs.close()
    return listener, {name: weight.clone() for name, weight in training.agent.policy.state_dict().items()}


@pytest.mark.parametrize("moment", ["before the save", "after the save"])
def test_a_worker_that_dies_between_two_rounds_costs_its_episodes(moment: str, tmp_path: Path) -> None:
    """Before the save the hosts cannot be saved any more: new episodes are, and a resumed run has the same ones."""
    kind = {"before the save": "RoundFinished", "after the save": "CheckpointSaved"}[moment]

    def progress(event: News, training: Training) -> None:
        if type(event).__name__ == kind and event.round == 1:  # type: ignore[union-attr]
            kill_first(training)

    listener, weights = train(tmp_path, progress)
    lost = [event for event in listener.events if isinstance(event, EpisodeFinished) and event.lost]
    assert [(event.env, event.round, event.epochs) for event in lost] == [(env, 2, 0) for env in LOST]
    rounds = [event for event in listener.events if isinstance(event, RoundFinished)]
    assert [event.lost_episodes for event in rounds] == [0, 2, 0]
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    if moment == "before the save":
        _, again = train(tmp_path, lambda *_: None, resume="round-000001.pt")
        assert all(torch.equal(weight, again[name]) for name, weight in weights.items())


def test_a_rule_goes_on_when_a_worker_dies_before_it_is_asked() -> None:
    training = build(_config())

    class Killing(RulePlayer):
        asked = 0

        def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
            self.asked += 1
            if self.asked == 5:
                kill_first(training)
            return super().act(episodes, rewards)

    player = Killing(lambda env_idx: rule_policy("random", rng=np.random.default_rng(env_idx)))
    wanted = [("toy:draw=1", env_idx) for env_idx in range(4)]
    recording, played = record_episodes(player, training.envs.episodes, wanted, policy="random")
    training.envs.close()
    assert [episode.lost for episode in played] == [True, False, True, False]
    assert recording.length.tolist() == [4, 20, 4, 20]
