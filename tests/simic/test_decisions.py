"""What is told of a decision is what was decided, and knowing it changes nothing."""

import math

import numpy as np
import pytest
import torch

from esper.leyline import CAUSAL_TABLE, HEAD_NAMES, LifecycleOp, Place
from esper.simic.building import build
from esper.simic.decisions import DecisionLog, joint_log_probs
from esper.simic.training_config import TrainingConfig

ENVS, STEPS = 3, 20


def test_a_rollout_told() -> None:
    config = TrainingConfig(suite="toy", num_envs=ENVS, num_minibatches=1, hidden_size=16, gamma=1.0)
    training = build(config)
    agent, envs = training.agent, training.envs
    _, info = envs.reset(seed=1)
    log, chosen, rewards = DecisionLog(envs), [], []
    for epoch in range(1, STEPS + 1):
        actions = agent.act(envs.flat_observation, torch.from_numpy(info["action_mask"])).numpy()
        log.before(actions)
        _, reward, terminated, truncated, info = envs.step(actions)
        agent.observe(torch.from_numpy(reward), terminated, truncated)
        log.after([Place(4, env, 7, epoch) for env in range(ENVS)], [0.5] * ENVS)
        chosen.append(actions)
        rewards.append(reward)
    before = agent.action_generator.get_state()
    events = [event for step in log.steps(agent) for event in step]
    assert torch.equal(agent.action_generator.get_state(), before)
    assert len(events) == ENVS * STEPS
    ops = np.stack(chosen)[:, :, 0].reshape(-1)
    assert [event.op for event in events] == ops.tolist()
    assert [event.reward for event in events] == pytest.approx(np.stack(rewards).reshape(-1).tolist())
    assert {(event.round, event.episode) for event in events} == {(4, 7)}
    values = agent.buffer.value.T.flatten().tolist()
    assert [event.value for event in events] == values
    assert all(event.log_prob is not None and event.log_prob <= 0.0 for event in events)
    assert any(event.op is LifecycleOp.GERMINATE and event.contribution is None for event in events)
    for event in events:
        for head in set(HEAD_NAMES) - {"op"} - set(CAUSAL_TABLE[event.op]):
            assert getattr(event, head) is None


def test_log_probs_are_those_of_the_choices() -> None:
    """Uniform logits: the joint probability is one over the number of legal choices, head by head."""
    training = build(TrainingConfig(suite="toy", num_envs=2, num_minibatches=1, hidden_size=16))
    agent, envs = training.agent, training.envs
    _, info = envs.reset(seed=0)
    while not agent.ready:
        actions = agent.act(envs.flat_observation, torch.from_numpy(info["action_mask"])).numpy()
        _, reward, terminated, truncated, info = envs.step(actions)
        agent.observe(torch.from_numpy(reward), terminated, truncated)
    agent.buffer.logits.zero_()
    first = joint_log_probs(agent)[0][0]
    op = int(agent.buffer.action[0, 0, 0])  # at first only WAIT and GERMINATE are legal
    choices = 2 if op == LifecycleOp.WAIT else 2 * 3 * len(envs.space.blueprints) * 4 * 3 * 3
    assert first == pytest.approx(-math.log(choices), abs=1e-5)
