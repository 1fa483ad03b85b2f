"""The probe ladder of KNOWN_ANSWERS: seconds each, exact values. Each step assumes the ones before it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.simic.agent import PPOAgent, PPOConfig
from esper.tamiyo import ActorCritic, ActorState, Policy, RecurrentActorCritic
from probes import (
    ActionIsObservation,
    ConditionalHead,
    ConstantReward,
    DelayedMemory,
    EndlessCycle,
    MaskedIdentity,
    MultiIdentity,
    Probe,
    RewardIsObservation,
    TwoHeads,
    TwoStepDiscount,
    run_probe,
)

# A critic that has learned its task leaves advantages near zero: that is the aim here.
pytestmark = pytest.mark.filterwarnings("ignore:advantage std before normalisation:RuntimeWarning")

CONFIG = PPOConfig(lr=1e-2, gamma=0.9, target_kl=None, entropy_coef=0.0, entropy_coef_min=0.0, n_epochs=2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(probe: Probe) -> ActorCritic:
    return ActorCritic(probe.observation_size, probe.layout, widths=(32,), generator=generator())


def train(
    policy: Policy, probe: Probe, updates: int, config: PPOConfig = CONFIG, steps: int = 16
) -> PPOAgent:
    agent = PPOAgent(policy, config, num_envs=probe.num_envs, num_steps=steps, seed=0)
    run_probe(agent, probe, updates)
    return agent


def values(policy: Policy, observations: list[list[float]]) -> list[float]:
    state = ActorState.initial(policy, len(observations), torch.device("cpu"))
    mask = policy.layout.all_legal(len(observations))
    _, _, value, _ = policy.get_action_batch(torch.tensor(observations), mask, state)
    return value.tolist()


def score(agent: PPOAgent, probe: Probe, steps: int) -> float:
    """Mean greedy reward per step."""
    actor = agent.actor(probe.num_envs)
    observation, mask = probe.reset()
    total, reward = 0.0, torch.zeros(probe.num_envs)
    for _ in range(steps):
        outcome = probe.step(actor.act(observation, mask, reward=reward))
        actor.reset(torch.from_numpy(outcome.terminated | outcome.truncated))
        observation, mask, reward = outcome.observation, outcome.mask, outcome.reward * 0
        total += outcome.reward.mean().item()
    return total / steps


def test_constant_reward() -> None:
    probe = ConstantReward(8, generator())
    policy = plain(probe)
    train(policy, probe, 15)
    assert values(policy, [[0.0]]) == pytest.approx([1.0], abs=0.02)


def test_reward_is_the_observation() -> None:
    probe = RewardIsObservation(8, generator())
    policy = plain(probe)
    train(policy, probe, 20)
    assert values(policy, [[-1.0], [1.0]]) == pytest.approx([-1.0, 1.0], abs=0.05)


def test_two_steps_are_discounted() -> None:
    probe = TwoStepDiscount(8, generator())
    policy = plain(probe)
    train(policy, probe, 20)
    assert values(policy, [[0.0], [1.0]]) == pytest.approx([0.9, 1.0], abs=0.05)


def test_the_action_is_the_observation() -> None:
    probe = ActionIsObservation(8, generator())
    agent = train(plain(probe), probe, 10)
    assert score(agent, probe, 20) == 1.0


def test_a_cue_is_remembered() -> None:
    probe = DelayedMemory(16, generator())
    policy = RecurrentActorCritic(2, probe.layout, hidden_size=16, widths=(16,), generator=generator())
    agent = train(policy, probe, 30, replace(CONFIG, lr=2e-2), steps=20)
    assert score(agent, probe, 30) == pytest.approx(1 / 3)  # one answer in three steps, all right


@pytest.mark.slow
def test_a_cue_cannot_be_remembered_without_memory() -> None:
    probe = DelayedMemory(16, generator())
    agent = train(plain(probe), probe, 30, replace(CONFIG, lr=2e-2), steps=20)
    assert score(agent, probe, 90) < 0.15


def test_two_heads_worth_a_half_each() -> None:
    probe = TwoHeads(8, generator())
    agent = train(plain(probe), probe, 15)
    assert score(agent, probe, 20) == 1.0


def test_a_head_that_matters_only_when_another_chose_it() -> None:
    probe = ConditionalHead(8, generator())
    policy = plain(probe)
    agent = train(policy, probe, 30, replace(CONFIG, entropy_coef=0.02))
    assert score(agent, probe, 5) == 1.0
    assert values(policy, [[1.0]])[0] == pytest.approx(1.0, abs=0.2)


CYCLE = replace(CONFIG, gamma=0.98, gae_lambda=1.0, lr=0.2, n_epochs=4, num_minibatches=2)


def cycle_values(updates: int, *, treat_truncation_as_the_end: bool) -> list[float]:
    probe = EndlessCycle(8, generator())
    policy = ActorCritic(4, probe.layout, widths=(), generator=generator())
    agent = PPOAgent(policy, CYCLE, num_envs=8, num_steps=16, seed=0)
    observation, mask = probe.reset()
    for _ in range(updates):
        while not agent.ready:
            outcome = probe.step(agent.act(observation, mask))
            observation, mask = outcome.observation, outcome.mask
            ended = outcome.truncated
            if treat_truncation_as_the_end:
                agent.observe(outcome.reward, ended, np.zeros_like(ended))
            else:
                agent.observe(
                    outcome.reward, outcome.terminated, ended, final_observation=outcome.final_observation
                )
        agent.update(observation)
    return values(policy, torch.eye(4).tolist())


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """V = 1 / (1 - .98) = 50 only if a time limit is not an end."""
    right = cycle_values(40, treat_truncation_as_the_end=False)
    assert right == pytest.approx([50.0] * 4, abs=1.0)
    wrong = cycle_values(10, treat_truncation_as_the_end=True)
    assert max(abs(value - 50.0) for value in wrong) > 1.0
    assert max(wrong) < 10.0


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)))
IDENTITY = replace(CONFIG, lr=2e-3, clip_ratio=0.3, max_grad_norm=5.0, n_epochs=15, num_minibatches=8)


@pytest.mark.parametrize("seed", SEEDS)
def test_identity_of_seventy_actions_of_which_fifty_five_are_masked(seed: int) -> None:
    """2,048 steps; without masks a learner gets about 30 of 100."""
    probe = MaskedIdentity(8, generator(seed))
    policy = ActorCritic(70, probe.layout, widths=(1024,), generator=generator(seed))
    agent = train(policy, probe, 4, IDENTITY, steps=64)
    assert agent.env_steps == 2048
    assert 100 * score(agent, probe, 100) >= 90


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_identity_of_several_heads(seed: int) -> None:
    probe = MultiIdentity(8, generator(seed))
    policy = ActorCritic(6, probe.layout, widths=(), generator=generator(seed))
    agent = train(policy, probe, 15, replace(IDENTITY, lr=2e-2, num_minibatches=4), steps=10)
    assert agent.env_steps == 1200
    assert 100 * score(agent, probe, 100) >= 90
