"""What the trainer has in hand, as events."""

import math
from dataclasses import replace

import pytest

from esper.leyline import ActionOutcome, ActionSpec, Curve, IllegalChoice, LifecycleOp, Place, Style
from esper.simic.agent import Anomaly, AnomalyDetector, AnomalyKind, GradientStats, PPOUpdateMetrics
from esper.simic.agent.anomaly import ADVICE
from esper.simic.agent.value_metrics import ValueDiagnostics
from esper.simic.env import EpisodeSummary
from esper.simic.reports import (
    anomalies_raised,
    by_operation,
    decision_taken,
    episode_finished,
    mean_of_known,
    round_finished,
)

SUMMARY = EpisodeSummary(
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
    operations=(15, 1, 0, 1, 1, 2),
    illegal_actions=0,
    rolled_back=None,
    lost=False,
)
ROLLED_BACK = replace(
    SUMMARY,
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
    epochs=2,
    minibatches_applied=3,
    minibatches_skipped=0,
    kl_stopped=True,
    valid_steps=60,
    forced_steps=10,
    invalid_steps=4,
)


def test_a_round() -> None:
    event = round_finished(
        7,
        METRICS,
        [SUMMARY, ROLLED_BACK, LOST],
        env_steps=640,
        seconds=4.0,
        learning_rate=1e-3,
        operations=[9, 1, 0, 0, 0, 2],
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
        [],
        env_steps=1,
        seconds=0.0,
        learning_rate=1e-3,
        operations=[0] * 6,
        reward_components={},
    )
    assert event.had_non_finite is True
    unknown = (event.mean_return, event.mean_gain, event.mean_accuracy, event.grad_norm)
    assert unknown == (None, None, None, None)
    assert event.env_epochs_per_second is None
    assert event.reward_components == {}


def test_an_episode_keeps_everything() -> None:
    event = episode_finished(SUMMARY, Place(round=3, env=1, episode=9))
    assert (event.round, event.env, event.episode) == (3, 1, 9)
    counts = {"WAIT": 15, "GERMINATE": 1, "SET_ALPHA_TARGET": 0, "PRUNE": 1, "FOSSILIZE": 1, "ADVANCE": 2}
    assert event.operations == counts
    for name in EpisodeSummary.__dataclass_fields__:
        if name != "operations":
            assert getattr(event, name) == getattr(SUMMARY, name)


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
    action = ActionSpec(op, "a", "norm", Style.GATE, 5, 0.7, 3, Curve.COSINE)
    event = decision_taken(
        ActionOutcome(action, action),
        -0.5,
        {"final_score": 0.5, "rollback": -1.0},
        place=Place(1, 2, 3, 4),
        contribution=0.1,
        value=None,
        log_prob=-1.0,
        validation_accuracy=0.5,
    )
    choices = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
    for name in choices:
        assert getattr(event, name) == (getattr(action, name) if name in used else None)
    assert event.op is op
    assert event.reward == sum(event.reward_components.values()) == -0.5
    assert event.illegal is None


def test_an_illegal_decision_says_why() -> None:
    asked = ActionSpec(LifecycleOp.PRUNE, "a")
    outcome = ActionOutcome(asked, ActionSpec(), IllegalChoice("op", "PRUNE", ("WAIT", "ADVANCE")))
    event = decision_taken(
        outcome,
        0.0,
        {},
        place=Place(1, 2, 3, 4),
        contribution=None,
        value=None,
        log_prob=None,
        validation_accuracy=None,
    )
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
    with pytest.raises(ValueError, match="counts has 2 entries; expected 6"):
        by_operation([1, 2])
