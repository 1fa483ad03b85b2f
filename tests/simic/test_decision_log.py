"""What is told of a decision is what was decided, and knowing it changes nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.leyline import CAUSAL_TABLE, HEAD_NAMES, DecisionTaken, EpisodeFinished, LifecycleOp, SlotConfig
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import RoundLog, by_feature, joint_log_probs
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthSpace

ENVS, STEPS = 3, 20
SMALL = TrainingConfig(suite="toy", num_envs=2, num_minibatches=1, hidden_size=16, privileged_critic=False)


def test_a_rollout_told() -> None:
    training = build(replace(SMALL, num_envs=ENVS, gamma=1.0))
    agent, envs = training.agent, training.envs
    _, info = envs.reset(seed=1)
    log, chosen, rewards = RoundLog(envs, 4, decisions=True), [], []
    for _ in range(STEPS):
        actions = agent.act(envs.flat_observation, torch.from_numpy(info["action_mask"])).numpy()
        log.before()
        _, reward, terminated, truncated, info = envs.step(actions)
        agent.observe(torch.from_numpy(reward), terminated, truncated)
        log.after()
        chosen.append(actions)
        rewards.append(reward)
    before = agent.action_generator.get_state()
    emitted = [event for event, _ in log.events(agent)]
    events = [event for event in emitted if isinstance(event, DecisionTaken)]
    ended = [event for event in emitted if isinstance(event, EpisodeFinished)]
    assert [(event.round, event.env, event.episode) for event in ended] == [
        (4, env, 0) for env in range(ENVS)
    ]
    assert torch.equal(agent.action_generator.get_state(), before)
    assert len(events) == ENVS * STEPS
    ops = np.stack(chosen)[:, :, 0].reshape(-1)
    assert [event.op for event in events] == ops.tolist()
    assert [event.reward for event in events] == pytest.approx(np.stack(rewards).reshape(-1).tolist())
    assert {(event.round, event.episode) for event in events} == {(4, 0)}
    assert [event.epoch for event in events] == [epoch for epoch in range(1, STEPS + 1) for _ in range(ENVS)]
    values = agent.buffer.value.T.flatten().tolist()
    assert [event.value for event in events] == values
    assert all(event.log_prob is not None and event.log_prob <= 0.0 for event in events)
    assert any(event.op is LifecycleOp.GERMINATE and event.contribution is None for event in events)
    for event in events:
        for head in set(HEAD_NAMES) - {"op"} - set(CAUSAL_TABLE[event.op]):
            assert getattr(event, head) is None
        told_why(event)


def told_why(event: DecisionTaken) -> None:
    """What was weighed holds together with what was done."""
    assert event.probabilities is not None
    assert event.stages is not None
    assert event.alphas is not None
    assert event.observation is None  # not asked for
    assert tuple(event.probabilities) == tuple(head for head in HEAD_NAMES if head in CAUSAL_TABLE[event.op])
    for weighed in event.probabilities.values():
        assert sum(weighed.values()) == pytest.approx(1.0, abs=1e-3)
    chosen = math.prod(
        event.probabilities[head][event.op.name if head == "op" else str(getattr(event, head))]
        for head in CAUSAL_TABLE[event.op]
    )
    assert event.log_prob is not None
    assert chosen == pytest.approx(math.exp(event.log_prob), abs=1e-3)
    dormant = {slot for slot, stage in event.stages.items() if stage in ("DORMANT", "EMBARGOED")}
    assert set(event.alphas) == set(event.stages) - dormant
    if event.op is LifecycleOp.GERMINATE:
        assert event.slot in dormant
    elif event.slot is not None:
        assert event.slot in event.alphas


def test_what_the_policy_saw_is_told_on_demand() -> None:
    training = build(SMALL)
    agent, envs = training.agent, training.envs
    _, info = envs.reset(seed=0)
    log = RoundLog(envs, 1, decisions=True, observations=True)
    while not agent.ready:
        actions = agent.act(envs.flat_observation, torch.from_numpy(info["action_mask"])).numpy()
        log.before()
        _, reward, terminated, truncated, info = envs.step(actions)
        agent.observe(torch.from_numpy(reward), terminated, truncated)
        log.after()
    first, *_, last = (event for event, _ in log.events(agent) if isinstance(event, DecisionTaken))
    assert first.observation is not None
    assert last.observation is not None
    assert first.stages is not None
    assert first.observation["host.time_left"] == 1.0
    assert last.observation["host.time_left"] == pytest.approx(1 / agent.buffer.num_steps, abs=1e-4)
    slots = list(first.stages)
    assert first.observation[f"{slots[0]}.stage_dormant"] == 1.0
    assert first.observation[f"{slots[0]}.contribution"] is None  # nothing grows yet: unknown, not 0
    assert not any(name.endswith("_known") for name in first.observation)


def test_a_trend_has_its_own_validity() -> None:
    row = [0.0] * (len(HOST_FEATURES) + len(SLOT_FEATURES))
    row[HOST_FEATURES.index("validation_loss")] = 0.5
    row[HOST_FEATURES.index("validation_loss_known")] = 1.0
    row[HOST_FEATURES.index("train_loss_slope")] = 0.25
    row[HOST_FEATURES.index("train_loss_trend_known")] = 1.0
    named = by_feature(row, ["only"], GrowthSpace(SlotConfig(("only",)), ("norm",)))
    assert named["host.validation_loss"] == 0.5
    assert named["host.validation_loss_slope"] is None
    assert named["host.train_loss"] is None
    assert named["host.train_loss_slope"] == 0.25
    assert named["only.alpha"] == 0.0


def test_log_probs_are_those_of_the_choices() -> None:
    """Uniform logits: the joint probability is one over the number of legal choices, head by head."""
    training = build(SMALL)
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
