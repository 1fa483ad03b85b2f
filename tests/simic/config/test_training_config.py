"""Every setting is checked when it is made, and reaches exactly one consumer."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from esper.kasmina.governor import GovernorRules
from esper.leyline import HEAD_NAMES, TEMPOS, ActionSpec, Curve, DecisionSettings, LifecycleOp, Style
from esper.simic import TrainingConfig
from esper.simic.agent import AnomalyDetector, PPOConfig
from esper.simic.config.checks import ConfigError, expected
from esper.simic.config.ppo import PPOSettings
from esper.simic.config.training_config import annealing_steps
from esper.simic.env import make_env
from esper.simic.reward import RewardConfig
from esper.tamiyo.tracker import SignalTracker
from esper.tolaria.worlds.toy.host import ToyWorld
from world_steps import begin_host, run_epoch

IN_UNIT = ("gamma", "gae_lambda", "clip_ratio")
POSITIVE = ("lr", "adam_eps", "value_clip", "max_grad_norm")
NOT_NEGATIVE = ("entropy_coef", "entropy_coef_min", "value_coef", "weight_decay", "reward_rent")
COUNTS = (
    "num_envs",
    "rounds",
    "rollout_steps",
    "n_epochs",
    "num_minibatches",
    "hidden_size",
    "num_lstm_layers",
    "eval_episodes",
)
COUNTS_OR_ZERO = ("workers", "seed", "lr_anneal_steps", "entropy_anneal_steps", "eval_every")


def refusal(**settings: object) -> str:
    with pytest.raises(ValueError, match=r"expected|setting") as caught:
        TrainingConfig.of(settings)
    assert type(caught.value) is ConfigError
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_has_no_dict_and_stays_as_it_was_made() -> None:
    config = TrainingConfig()
    assert not hasattr(config, "__dict__")
    with pytest.raises(AttributeError):
        config.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", IN_UNIT)
def test_shares_are_over_0_and_at_most_1(name: str) -> None:
    for good in (1e-9, 0.5, 1, 1.0):
        assert getattr(TrainingConfig.of({name: good}), name) == good
    for bad in (0, 0.0, -0.1, 1.0000001, math.nan, math.inf, "0.5", None, True):
        assert refusal(**{name: bad}) == f"{name} is {bad!r}; expected a number in (0, 1]"


@pytest.mark.parametrize("name", POSITIVE)
def test_rates_are_over_0(name: str) -> None:
    assert getattr(TrainingConfig.of({name: 1e-12}), name) == 1e-12
    for bad in (0.0, -1e-9, math.nan, math.inf):
        assert refusal(**{name: bad}) == f"{name} is {bad!r}; expected a number > 0"


@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_weights_are_at_least_0(name: str) -> None:
    assert getattr(TrainingConfig.of({name: 0}), name) == 0
    assert refusal(**{name: -1e-9}).startswith(f"{name} is -1e-09; expected a number >= 0")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_and_at_least_1(name: str) -> None:
    assert getattr(TrainingConfig.of({name: 1}), name) == 1
    for bad in (0, -1, 1.0, "1", True):
        assert refusal(**{name: bad}).startswith(f"{name} is {bad!r}; expected a whole number >= 1")


@pytest.mark.parametrize("name", COUNTS_OR_ZERO)
def test_counts_that_may_be_nothing(name: str) -> None:
    assert getattr(TrainingConfig.of({name: 0}), name) == 0
    assert refusal(**{name: -1}).startswith(f"{name} is -1; expected a whole number >= 0")


def test_thresholds_of_the_anomaly_detector() -> None:
    config = TrainingConfig(gamma=0.99, anomaly_min_explained_variance=0.3)
    assert AnomalyDetector(**config.to_anomaly_kwargs()).min_explained_variance == 0.3
    assert "expected a number > 1" in refusal(anomaly_max_ratio_threshold=1.0)
    assert "expected a number in [0, 1)" in refusal(anomaly_min_ratio_threshold=1.0)
    assert "expected a number <= 1" in refusal(anomaly_min_explained_variance=1.1)
    assert TrainingConfig(anomaly_min_explained_variance=-3.0).anomaly_min_explained_variance == -3.0


def test_unknown_keys_are_refused_with_the_nearest_known_one() -> None:
    assert refusal(gama=0.9) == "there is no setting 'gama'; did you mean 'gamma'?"
    with pytest.raises(ConfigError, match="no setting 'gama'; did you mean 'gamma'"):
        TrainingConfig(gama=0.9)  # type: ignore[call-arg]
    assert "esper train --help" in refusal(xyzzy=1)


def test_several_mistakes_are_told_at_once() -> None:
    message = refusal(gamma=2.0, lr=0.0)
    assert "gamma is 2.0" in message
    assert "lr is 0.0" in message


def test_unknown_heads_are_refused() -> None:
    assert TrainingConfig(entropy_coef_per_head=dict.fromkeys(HEAD_NAMES, 0.0)).entropy_coef_per_head
    message = refusal(entropy_coef_per_head={"opp": 0.1})
    assert "opp" in message
    assert all(head in message for head in HEAD_NAMES)
    assert "entropy_coef_per_head['op'] is -1" in refusal(entropy_coef_per_head={"op": -1})


def test_unknown_operations_are_refused() -> None:
    assert TrainingConfig(initial_op_logits={"PRUNE": -3.0}).initial_op_logits == {"PRUNE": -3.0}
    message = refusal(initial_op_logits={"CUT": -3.0})
    assert "CUT" in message
    assert all(op in message for op in LifecycleOp.__members__)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 4}, "horizon is 4; expected >= 5"),
        ({"horizon": 9, "freeze_tempo": 8}, "horizon is 9; expected >= 10"),
        (
            {"horizon": 8, "first_growth": 4},
            "horizon is 8; expected >= 9, the epochs of the shortest life of a seed after first_growth",
        ),
        ({"num_envs": 3, "workers": 4}, "workers is 4; expected <= num_envs, which is 3"),
        (
            {"cluster_round_deadline": 9.5},
            "cluster_round_deadline is 9.5; expected None, since cluster is None",
        ),
        ({"num_envs": 3, "num_minibatches": 4}, "num_minibatches is 4; expected <= num_envs, which is 3"),
        ({"device": "gpu"}, "device is 'gpu'; expected 'cpu', 'cuda' or 'cuda:<number>'"),
        ({"suite": ""}, "suite is ''; expected a suite or a task instance"),
        ({"run_name": "../up"}, "run_name is '../up'; expected up to 100 letters"),
        ({"run_name": "none"}, "run_name is 'none'"),
        (
            {"warm_start": "weights.pt"},
            "warm_start is 'weights.pt'; expected the name of a rule or controller",
        ),
        ({"freeze_tempo": 4}, "freeze_tempo is 4; expected one of 3, 5, 8, or None"),
        ({"freeze_style": "glue"}, "freeze_style is 'glue'; expected one of linear_add, "),
        ({"reward_mode": "dense"}, "reward_mode is 'dense'; expected one of 'sparse', 'shaped'"),
        ({"clip_value": 1}, "clip_value is 1; expected True or False"),
        (
            {"observation_units": "percent"},
            "observation_units is 'percent'; expected one of 'absolute', 'ratios'",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    assert refusal(**settings).startswith(message)


def test_edges_of_the_combinations_are_fine() -> None:
    TrainingConfig(horizon=5)
    TrainingConfig(horizon=10, freeze_tempo=8)
    TrainingConfig(num_envs=3, workers=3, num_minibatches=3)


@pytest.mark.parametrize("tempo", TEMPOS)
def test_the_shortest_horizon_lets_a_seed_live_its_life(tempo: int) -> None:
    """And one epoch less would not."""
    shortest = next(horizon for horizon in range(1, 99) if _fits(horizon, tempo))
    world = ToyWorld(1)
    begin_host(world, 0, "toy:draw=0,slots=3", 0)
    slot, offered = next(iter(world.host(0).cards.items()))
    wanted = [LifecycleOp.GERMINATE, LifecycleOp.ADVANCE, LifecycleOp.FOSSILIZE]
    epochs = 0
    while wanted:
        if wanted[0] in world.host(0).legal_operations()[slot].operations:
            world.host(0).apply(ActionSpec(wanted.pop(0), slot, offered[0].name, tempo=tempo))
        run_epoch(world)
        epochs += 1
    assert epochs == shortest


def _fits(horizon: int, tempo: int) -> bool:
    try:
        TrainingConfig(horizon=horizon, freeze_tempo=tempo)
    except ConfigError:
        return False
    return True


# Consumers


def test_defaults_are_those_of_the_consumers() -> None:
    """But for annealing, which a run of known length has by default."""
    config = TrainingConfig(entropy_anneal_steps=0)
    assert config.ppo() == PPOConfig()
    assert config.reward(task_rent=0.01) == RewardConfig()
    assert AnomalyDetector(**config.to_anomaly_kwargs()) == AnomalyDetector()
    assert config.governor() == GovernorRules()
    assert config.decisions == DecisionSettings()
    assert SignalTracker(20).plateau_threshold == DecisionSettings().plateau_threshold


def test_every_dial_of_a_consumer_can_be_set() -> None:
    """A dial is given if some setting changes it."""
    config = TrainingConfig(num_envs=7, cluster="local", warm_start="plateau")
    changed = [TrainingConfig.of(config.to_dict() | {name: other_value(name)}) for name in config.to_dict()]
    makers: tuple[
        Callable[
            [TrainingConfig], PPOConfig | RewardConfig | AnomalyDetector | GovernorRules | DecisionSettings
        ],
        ...,
    ]
    makers = (
        lambda config: config.ppo(),
        lambda config: config.reward(task_rent=0.01),
        lambda config: AnomalyDetector(**config.to_anomaly_kwargs()),
        lambda config: config.governor(),
        lambda config: config.decisions,
    )
    for make in makers:
        consumer = make(config)
        unset = {
            each.name
            for each in fields(consumer)
            if all(getattr(make(other), each.name) == getattr(consumer, each.name) for other in changed)
        }
        assert unset <= {"head_names", "updates_seen", "counts"}, type(consumer)


CONSUMERS: dict[str, Callable[[TrainingConfig], object]] = {
    "ppo": lambda config: config.ppo(),
    "reward": lambda config: config.reward(task_rent=0.01),
    "anomaly": lambda config: config.to_anomaly_kwargs(),
    "governor": lambda config: config.governor(),
    "decisions": lambda config: config.decisions,
    "env": lambda config: config.settle,
    "iql": lambda config: config.iql(),
}
TRAINER = {
    *("suite", "horizon", "workers", "device", "seed", "rollout_steps", "hidden_size", "exploration_floor"),
    *("num_lstm_layers", "privileged_critic", "warm_start"),
    *("run_name", "run_directory", "run_checkpoint_every", "run_keep_checkpoints", "run_tensorboard"),
    *("run_record_episodes", "offline", "offline_batch", "offline_batches", "offline_policy_share"),
    *("run_wandb", "worker_timeout", "cluster", "cluster_snapshot_every", "initial_op_logits"),
    *("cluster_round_deadline", "reparametrise"),
    *("eval_every", "eval_episodes", "pool_cases", "pool_host_seeds"),
}
"""What the trainer reads itself."""
SHARED = {"gamma": {"ppo", "reward", "iql"}, "lr": {"ppo", "iql"}}
"""One number for all: with another gamma shaping would change the optimum."""


def test_every_setting_has_exactly_one_consumer() -> None:
    base = TrainingConfig(num_envs=7, cluster="local", warm_start="plateau")
    for each in fields(TrainingConfig):
        changed = TrainingConfig.of(base.to_dict() | {each.name: other_value(each.name)})
        readers = {name for name, take in CONSUMERS.items() if take(changed) != take(base)}
        if each.name in TRAINER:
            assert readers == set(), each.name
        else:
            assert readers == SHARED.get(each.name, readers), each.name
            assert len(readers) == len(SHARED.get(each.name, {each.name})), (each.name, readers)


def other_value(name: str) -> object:
    """A valid value that is not the one in use."""
    special: dict[str, object] = {
        "suite": "toy",
        "device": "cuda",
        "entropy_coef_per_head": {"op": 0.3},
        "initial_op_logits": {"PRUNE": -1.0},
        "freeze_style": Style.GATE,
        "freeze_tempo": 8,
        "freeze_alpha_target": 0.7,
        "freeze_alpha_speed": 5,
        "freeze_alpha_curve": Curve.COSINE,
        "run_name": "other",
        "warm_start": "probe_and_keep",
        "menu": "mixer",
        "run_directory": Path("elsewhere"),
        "offline": ("runs/first",),
        "offline_expectile": 0.9,
        "offline_trace": 0.3,
        "offline_balance": 0.3,
        "run_telemetry": "debug",
        "rollout_steps": 11,
        "horizon": 11,
        "num_envs": 2,
        "workers": 2,
        "cluster": "auto",
        "num_minibatches": 2,
    }
    if name in special:
        return special[name]
    field = TrainingConfig.__pydantic_fields__[name]  # type: ignore[attr-defined]
    value = getattr(TrainingConfig(), name)
    if get_origin(field.annotation) is Literal:
        return next(choice for choice in get_args(field.annotation) if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 3
    if value is None:
        return 1
    return (
        value / 2
        if expected(field) in ("a number in (0, 1]", "a number in [0, 1)") and value
        else value + 0.5
    )


def test_gamma_is_one_number() -> None:
    config = TrainingConfig(gamma=0.9)
    assert config.ppo().gamma == 0.9
    assert config.reward(task_rent=0.01).gamma == 0.9


def test_rent_is_the_tasks_unless_it_is_given() -> None:
    assert TrainingConfig().reward(task_rent=0.03).rent == 0.03
    assert TrainingConfig(reward_rent=0.0).reward(task_rent=0.03).rent == 0.0


def test_annealing_follows_the_length_of_the_run() -> None:
    ppo = TrainingConfig(rounds=40, lr_anneal_steps=None).ppo()
    assert (ppo.lr_anneal_steps, ppo.entropy_anneal_steps) == (40, 30)
    ppo = TrainingConfig(rounds=40, entropy_anneal_steps=7).ppo()
    assert (ppo.lr_anneal_steps, ppo.entropy_anneal_steps) == (0, 7)


@pytest.mark.parametrize(
    ("given", "rounds", "share", "steps"),
    [(None, 100, 1.0, 100), (None, 100, 0.75, 75), (None, 1, 0.1, 1), (0, 100, 0.75, 0), (7, 100, 0.75, 7)],
)
def test_annealing_steps(given: int | None, rounds: int, share: float, steps: int) -> None:
    assert annealing_steps(given, rounds, share=share) == steps


def test_minibatches_follow_the_envs() -> None:
    assert TrainingConfig(num_envs=1).minibatches == 1
    assert TrainingConfig(num_envs=64).minibatches == 4
    assert TrainingConfig(num_envs=64, num_minibatches=16).minibatches == 16


def test_frozen_heads_leave_the_masks_one_choice() -> None:
    config = TrainingConfig(freeze_style=Style.GATE, freeze_alpha_target=0.5, freeze_alpha_speed=8)
    assert config.decisions.frozen_heads == {"style": "gate", "alpha_target": 0.5, "alpha_speed": 8}
    assert config.decisions.frozen_choices == {"style": 3, "alpha_target": 0, "alpha_speed": 3}
    assert set(TrainingConfig.preset("demo").decisions.frozen_heads) < set(HEAD_NAMES)
    envs = make_env("toy", 2, decisions=config.decisions)
    envs.reset(seed=0)


def test_texts_of_enums_are_taken() -> None:
    config = TrainingConfig.of({"freeze_style": "gate", "freeze_alpha_curve": "cosine"})
    assert config == TrainingConfig(freeze_style=Style.GATE, freeze_alpha_curve=Curve.COSINE)


def test_every_setting_says_what_it_is_and_what_is_expected() -> None:
    modules = [sys.modules[kind.__module__] for kind in (TrainingConfig, PPOSettings)]
    source = "".join(Path(module.__file__ or "").read_text("utf-8") for module in modules)
    for each in fields(TrainingConfig):
        assert expected(TrainingConfig.__pydantic_fields__[each.name])  # type: ignore[attr-defined]
        after = source.split(f"\n    {each.name}: ", 1)[1].split("\n")[1]
        assert after.startswith('    """'), each.name
        assert after.endswith('."""'), each.name


def test_every_setting_has_a_default() -> None:
    for each in fields(TrainingConfig):
        assert each.default is not MISSING or each.default_factory is not MISSING, each.name
        assert not isinstance(each.default, Enum)


def test_settings_are_read_without_torch() -> None:
    """So that a mistake in them costs no wait."""
    code = (
        "import sys; from esper.simic.config.training_config import TrainingConfig; TrainingConfig.preset('demo'); "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
