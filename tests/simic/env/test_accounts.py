"""What the actor is shown, what only the critic sees, and what both depend on."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.leyline import BaselineCurve
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.env.accounts import PRIVILEGED, Accounts
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import LearnedPlayer, play_cases
from esper.simic.reward import RewardConfig
from esper.simic.trainer import VectorizedPPOTrainer
from esper.tamiyo.controller import RewardRecord
from esper.tamiyo.tracker import Paymaster
from esper.tolaria.worlds.toy.host import ToyBaselines
from esper.tolaria.worlds.toy.instance import toy_case
from watched import paper_host, report

CASES = tuple(toy_case(draw) for draw in (17, 23))
PAID = RewardConfig(rent=0.01, gamma=0.9)


class Broken(ToyBaselines):
    """Baselines whose losses are no numbers from the second epoch on."""

    def curve(self, case: str, seed: int) -> BaselineCurve:
        real = super().curve(case, seed)
        return replace(real, losses=(*real.losses[:2], *[math.nan] * 19))


class Better:
    """Baselines that are better than the real ones."""

    def curve(self, case: str, seed: int) -> BaselineCurve:
        real = ToyBaselines(20).curve(case, seed)
        return replace(real, accuracies=tuple((each or 0.0) + 0.3 for each in real.accuracies))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        return [self.curve(case, seed) for case, seed in wanted]


def begun(**changes: object) -> Episodes:
    episodes = replace(make_world("toy", 2), **changes).episodes(reward=PAID)  # type: ignore[arg-type]
    for env_idx, case in enumerate(CASES):
        episodes.seed(env_idx, env_idx)
        episodes.begin(env_idx, case=case, host_seed=3)
    return episodes


def test_nothing_that_the_actor_sees_depends_on_the_baseline() -> None:
    """The twin that never grows is known in training alone."""
    ours, theirs = begun(), begun(baselines=Better())
    rng, paid_otherwise = np.random.default_rng(0), 0
    for _ in range(19):
        assert not np.array_equal(ours.accounts.privileged(), theirs.accounts.privileged())
        actions = ours.choices.sample(ours.masks(), rng)
        mine, other = ours.step(actions), theirs.step(actions)
        assert np.array_equal(mine.shown_rewards, other.shown_rewards)
        for part, seen in ours.observe().items():
            assert np.array_equal(seen, theirs.observe()[part])
        assert np.array_equal(ours.masks(), theirs.masks())
        paid_otherwise += not np.allclose(mine.components.total, other.components.total)
    assert paid_otherwise > 10


def test_a_baseline_that_broke_has_the_worst_score() -> None:
    reward = RewardConfig(family="loss", mode="sparse", rent=0.0)
    episodes = replace(make_world("toy", 1), baselines=Broken(20)).episodes(reward=reward)
    episodes.seed(0, 0)
    episodes.begin(0, case=CASES[0], host_seed=3)
    untrained = episodes.host(0).report.validation_loss
    for _ in range(20):
        paid = episodes.step(np.zeros((1, 8), dtype=np.int64)).components.total[0]
    assert paid == pytest.approx(3.0 - episodes.host(0).report.validation_loss / untrained)
    assert episodes.accounts.gain_of_condemned(0) == 0.0


def test_the_actor_is_shown_what_a_grower_would_show_it() -> None:
    """The same rule, once an epoch from the first trained one on."""
    episodes, rng = begun(), np.random.default_rng(1)
    record = RewardRecord(family="contribution", mode="shaped", rent=0.01, gamma=0.9, control_variate=True)
    grower, shown, expected = Paymaster(0.01, record), [], []
    for _ in range(19):
        shown.append(episodes.step(episodes.choices.sample(episodes.masks(), rng)).shown_rewards[0])
        host = episodes.host(0)
        grown = any(slot.alpha > 0.0 for slot in host.readings())
        score = host.report.validation_accuracy
        expected.append(grower.pay(score, host.added_parameters, host.host_parameters, grown=grown))
    assert shown == expected
    assert any(expected)


def test_a_loss_is_shown_over_the_observed_untrained_one_and_no_worse_than_the_worst() -> None:
    reward = RewardConfig(family="loss", rent=0.0, gamma=1.0, control_variate=False)
    accounts, host, none = (
        Accounts(reward, 1, horizon=9, shown_reward=reward),
        paper_host("a"),
        np.array([False]),
    )
    shown = []
    for epoch, loss in enumerate((2.0, 1.0, 3.0, 100.0)):
        host.report = replace(report(epoch, loss=loss), judged_loss=5.0, judged_accuracy=0.5)
        if not epoch:
            accounts.begin(0, host, None)
            continue
        accounts.close_epoch({0: host}, none, none)
        shown.append(float(accounts.shown[0]))
    assert shown == [0.0, -1.0, -1.5]  # the scores are -0.5, -1.5 and -3


def test_the_critic_sees_the_baseline_and_the_gain() -> None:
    episodes = begun()
    for _ in range(5):
        episodes.step(np.zeros((2, 8), dtype=np.int64))
    curve = ToyBaselines(20).curve(CASES[1], 3)
    now, end, gain = episodes.accounts.privileged()[1]
    assert now == pytest.approx(curve.accuracies[5])
    assert end == pytest.approx(curve.accuracies[20])
    assert gain == 0.0  # it only waited


def config(**changes: object) -> TrainingConfig:
    settings = {"num_envs": 4, "rounds": 2, "pool_cases": 8, "pool_host_seeds": 1, "hidden_size": 16}
    return TrainingConfig.preset("toy", **{**settings, "num_minibatches": 2, "eval_every": 0, **changes})


def test_a_training_shows_the_critic_the_baseline_and_the_actor_the_forecast() -> None:
    training = build(config())
    trainer = VectorizedPPOTrainer(config(), training)
    trainer.begin()
    agent, envs = training.agent, trainer.envs
    observation, info = envs.reset(seed=1)
    for _ in range(6):
        seen = torch.from_numpy(observation)
        assert torch.equal(seen[:, -3:], torch.from_numpy(training.envs.episodes.accounts.privileged()))
        action = agent.act(seen, torch.from_numpy(info["action_mask"]))
        observation, reward, terminated, truncated, info = envs.step(action.numpy())
        shown = torch.from_numpy(info["shown_reward"])
        agent.observe(torch.from_numpy(reward), terminated, truncated, shown_reward=shown)
        assert torch.equal(agent.state.previous_reward, shown.float())
    trainer.begin()
    trainer.train()
    assert agent.updates == 2


@pytest.mark.parametrize("without", ["privileged_critic", "reward_control_variate"])
def test_a_critic_without_a_baseline_sees_what_the_actor_sees(without: str) -> None:
    training = build(config(**{without: False}))
    assert training.agent.policy.privileged_features == 0
    assert build(config()).agent.policy.privileged_features == len(PRIVILEGED)


def test_a_trained_policy_plays_without_what_the_critic_saw() -> None:
    training = build(config())
    episodes = make_world("toy", 2).episodes(on_illegal="noop")
    played = play_cases(LearnedPlayer(training.agent.actor), episodes, [(case, 0) for case in CASES])
    assert len(played) == 2
