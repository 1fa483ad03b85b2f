"""What the trainer has in hand, as events."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.leyline import (
    CAUSAL_TABLE,
    HEAD_NAMES,
    ActionOutcome,
    ActionSpec,
    Curve,
    DecisionTaken,
    EpisodeFinished,
    IllegalChoice,
    LifecycleOp,
    SlotConfig,
    SlotReading,
    Stage,
    Style,
    operations,
)
from esper.simic.agent import Anomaly, AnomalyDetector, AnomalyKind, GradientStats, PPOUpdateMetrics
from esper.simic.agent.anomaly import ADVICE
from esper.simic.agent.types import ValueDiagnostics
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.episodes import StepResult
from esper.simic.reports import (
    BatchSummary,
    RoundLog,
    anomalies_raised,
    by_feature,
    decision_taken,
    joint_log_probs,
    mean_of_known,
    round_finished,
)
from esper.simic.reward import RewardComponents
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthSpace

SEED = SlotReading(Stage.HOLDING, False, 0.5, 0.7, 0, 5, 2, 0, 0, 10, 0, 0.25, math.nan, 1.0, 1.0)
EMPTY = SEED._replace(stage=Stage.DORMANT, contribution=math.nan)
ENDED = EpisodeFinished(
    round=None,
    env=1,
    episode=9,
    case="digits",
    host_seed=5,
    epochs=20,
    utility=0.75,
    gain=0.25,
    validation_accuracy=0.8,
    control_accuracy=0.5,
    validation_loss=0.4,
    added_parameters=10,
    episode_return=0.3,
    operations={"WAIT": 20},
    illegal_actions=0,
    rolled_back=None,
    lost=False,
)
ROLLED_BACK = replace(
    ENDED,
    utility=None,
    gain=None,
    validation_accuracy=None,
    control_accuracy=None,
    episode_return=-0.7,
    rolled_back="loss",
)
LOST = replace(ROLLED_BACK, rolled_back=None, lost=True, episode_return=100.0)
METRICS = PPOUpdateMetrics(
    policy_loss=0.1,
    value_loss=math.nan,
    entropy=None,
    approx_kl=0.01,
    clip_fraction=0.2,
    ratio_mean=1.0,
    ratio_max=2.0,
    ratio_min=0.5,
    ratio_has_numerical_issue=False,
    ratio_breakdown=None,
    advantage_mean=0.0,
    advantage_std=1.0,
    head_entropies={"op": 1.0, "slot": None},
    head_grad_norms={"op": 1.0, "slot": None},
    gradient=GradientStats(0.5, 0.4, 0.1),
    value=ValueDiagnostics(0, 1, 0, 1, -1, 1, 1, 0, 1, 0.75, False, 0.5),
    entropy_coef=0.05,
    head_entropy_coefs={"op": 0.05, "slot": None},
    epochs=2,
    minibatches_applied=3,
    minibatches_skipped=0,
    kl_stopped=True,
    valid_steps=60,
    forced_steps=10,
    invalid_steps=4,
)


def step(*ops: LifecycleOp, lost: Sequence[bool] = (), illegal: IllegalChoice | None = None) -> StepResult:
    """One step in which each env executed one of the operations, with everything an operation can use."""
    actions = [ActionSpec(op, "a", "norm", Style.GATE, 5, 0.7, 3, Curve.COSINE) for op in ops]
    return StepResult(
        RewardComponents(np.tile([[0.5], [0.0], [0.0], [0.0], [0.0], [-1.0]], (1, len(ops)))),
        np.zeros(len(ops), dtype=np.bool_),
        np.array(lost or [False] * len(ops)),
        tuple(ActionOutcome(action, action, illegal) for action in actions),
        shown_rewards=np.zeros(len(ops)),
        privileged=np.zeros((len(ops), 3), dtype=np.float32),
        episodes=(3,) * len(ops),
        epochs=(4,) * len(ops),
        accuracies=(0.5,) * len(ops),
        finished={},
    )


def test_operations_of_lost_hosts_are_not_counted() -> None:
    wait, germinate, advance = LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.ADVANCE
    batch = BatchSummary()
    batch.add(step(wait, germinate, advance, lost=[False, False, True]))
    batch.add(step(germinate, germinate, advance))
    assert list(batch.operations.values()) == [1, 3, 0, 0, 0, 1]
    assert list(batch.operations) == [op.name for op in operations(retire=False)]
    batch.add(step(LifecycleOp.RETIRE))
    assert batch.operations["RETIRE"] == 1


def test_episodes_that_ended_are_kept_and_gain_is_of_those_that_have_one() -> None:
    batch = BatchSummary()
    assert batch.mean_gain is None
    for gain in (0.25, None, 0.75):
        batch.add(replace(step(LifecycleOp.WAIT), finished={0: replace(ENDED, gain=gain)}))
    assert len(batch.episodes) == 3
    assert batch.mean_gain == 0.5


def test_a_round() -> None:
    batch = BatchSummary([ENDED, ROLLED_BACK, LOST])
    batch.operations["ADVANCE"] = 2
    event = round_finished(
        7,
        METRICS,
        batch,
        env_steps=640,
        seconds=4.0,
        learning_rate=1e-3,
        reward_components={"final_score": 0.5, "total": 0.25},
    )
    assert (event.round, event.env_steps, event.env_epochs_per_second) == (7, 640, 15.0)
    assert (event.episodes, event.lost_episodes) == (2, 1)
    assert event.mean_return == pytest.approx(-0.2)  # the lost one says nothing
    assert (event.mean_gain, event.mean_accuracy, event.mean_control_accuracy) == (0.25, 0.8, 0.5)
    assert math.isnan(event.value_loss or 0.0)
    assert event.entropy is None
    assert event.entropy_by_head == {"op": 1.0, "slot": None}
    assert (event.explained_variance, event.grad_norm) == (0.75, 0.5)
    assert event.had_non_finite is False
    assert event.operations["ADVANCE"] == 2
    assert event.reward_components == {"final_score": 0.5, "total": 0.25}


@pytest.mark.parametrize(
    "broken", [replace(METRICS, minibatches_skipped=1), replace(METRICS, ratio_has_numerical_issue=True)]
)
def test_a_round_without_episodes_and_with_trouble(broken: PPOUpdateMetrics) -> None:
    event = round_finished(
        1,
        replace(broken, gradient=None),
        BatchSummary(),
        env_steps=1,
        seconds=0.0,
        learning_rate=1e-3,
        reward_components={},
    )
    assert event.had_non_finite is True
    unknown = (event.mean_return, event.mean_gain, event.mean_accuracy, event.grad_norm)
    assert unknown == (None, None, None, None)
    assert event.env_epochs_per_second is None
    assert event.reward_components == {}


@pytest.mark.parametrize(
    ("op", "used"),
    [
        (LifecycleOp.WAIT, set()),
        (LifecycleOp.GERMINATE, {"slot", "blueprint", "style", "tempo", "alpha_target"}),
        (LifecycleOp.SET_ALPHA_TARGET, {"slot", "style", "alpha_target", "alpha_speed", "alpha_curve"}),
        (LifecycleOp.PRUNE, {"slot", "alpha_speed", "alpha_curve"}),
        (LifecycleOp.FOSSILIZE, {"slot"}),
        (LifecycleOp.ADVANCE, {"slot"}),
    ],
)
def test_a_decision_has_only_the_choices_that_matter(op: LifecycleOp, used: set[str]) -> None:
    result = step(LifecycleOp.WAIT, op)
    action = result.outcomes[1].executed
    event = decision_taken(result, 1, {"a": SEED, "b": EMPTY}, round_number=2, log_prob=-1.0)
    assert (event.round, event.env, event.episode, event.epoch) == (2, 1, 3, 4)
    choices = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
    for name in choices:
        assert getattr(event, name) == (getattr(action, name) if name in used else None)
    assert event.op is op
    assert event.reward == sum(event.reward_components.values()) == -0.5
    assert event.illegal is None
    assert event.contribution == (0.25 if "slot" in used else None)
    assert event.contributions == {"a": 0.25}
    assert event.alphas == {"a": 0.5}
    assert event.stages == {"a": "HOLDING", "b": "DORMANT"}
    assert event.validation_accuracy == 0.5


def test_an_illegal_decision_says_why() -> None:
    why = IllegalChoice("op", "PRUNE", ("WAIT", "ADVANCE"))
    event = decision_taken(step(LifecycleOp.WAIT, illegal=why), 0, {}, round_number=1)
    assert (event.op, event.slot) == (LifecycleOp.WAIT, None)
    assert event.illegal == "op PRUNE; legal: WAIT, ADVANCE"


def test_every_anomaly_carries_value_threshold_and_advice() -> None:
    """SPEC B2."""
    detector = AnomalyDetector(warmup_updates=0)
    found = detector.check(ratio_max=7.0, ratio_min=0.05, explained_variance=-1.0, has_numerical_issue=True)
    events = anomalies_raised(found, round_number=3)
    assert [(event.name, event.value, event.threshold) for event in events] == [
        ("ratio_explosion", 7.0, 5.0),
        ("ratio_collapse", 0.05, 0.1),
        ("value_collapse", -1.0, 0.1),
        ("numerical_instability", None, None),
    ]
    assert {event.round for event in events} == {3}
    assert all(event.advice and event.detail for event in events)
    assert set(ADVICE) == set(AnomalyKind)
    assert Anomaly(AnomalyKind.RATIO_COLLAPSE, "").advice == ADVICE[AnomalyKind.RATIO_COLLAPSE]


def test_helpers() -> None:
    assert mean_of_known([None, 1.0, 3.0]) == 2.0
    assert mean_of_known([None]) is None


# What is told of a decision is what was decided, and knowing it changes nothing.


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
