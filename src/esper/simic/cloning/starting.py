"""Starting PPO from what a rule does, from a network that was taught before, or from a trained controller."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from esper.simic.building import Training, build, prepare_controls
from esper.simic.cloning.network import CloningError, CloningReport, PolicyNetwork
from esper.simic.cloning.recording import record_episodes
from esper.simic.configuration.errors import ConfigError
from esper.simic.evaluation import RulePlayer
from esper.simic.training_config import TrainingConfig
from esper.tamiyo import unwrap
from esper.tamiyo.controller import Controller, ControllerError, UnknownController, shipped_controllers
from esper.tamiyo.rules import RULE_POLICIES, RulePolicy, rule_policy

EPISODES = 64
"""Of the training pool, that a rule is recorded on."""


def require_warm_start(config: TrainingConfig) -> None:
    """Raise ConfigError, before anything takes time, for what cannot be started from."""
    given = config.warm_start
    if given is not None and not _is_rule(given):
        _weights(given)


def warm_start(training: Training, config: TrainingConfig) -> CloningReport | None:
    """Give the agent's policy the weights that `config.warm_start` names.

    A rule is played on the training pool and cloned, which is reported; a file is a saved `PolicyNetwork`. Neither
    taught the critic, which starts as it is; a controller brings its own.
    """
    if config.warm_start is None:
        return None
    report = None
    if _is_rule(config.warm_start):
        network, report = _clone(training, config, config.warm_start, EPISODES)
        weights = _taught(network)
    else:
        weights = _weights(config.warm_start)
    policy = unwrap(training.agent.policy)
    own = policy.state_dict()
    other = [name for name, value in weights.items() if value.shape != own[name].shape]
    if other:
        hidden_size = weights["lstm_ln.weight"].numel()
        raise ConfigError(
            f"warm_start is {config.warm_start!r}, a network of hidden_size {hidden_size}; this run has hidden_size "
            f"{config.hidden_size} ({other[0]} does not fit)"
        )
    policy.load_state_dict({**own, **weights})
    return report


def clone_rule(
    config: TrainingConfig, rule: str, *, episodes: int = EPISODES, held_out: int = 8
) -> tuple[PolicyNetwork, CloningReport]:
    """A network that does what a rule does in the environments of a config; `held_out` episodes only judge it."""
    if not _is_rule(rule):
        raise CloningError(f"no rule is named {rule!r}; expected one of {', '.join(RULE_POLICIES)}")
    training = build(config)
    try:
        prepare_controls(training, config)
        return _clone(training, config, rule, episodes, held_out)
    finally:
        training.envs.close()


def _clone(
    training: Training, config: TrainingConfig, rule: str, episodes: int, held_out: int = 0
) -> tuple[PolicyNetwork, CloningReport]:
    pairs = list(training.pool.pairs())
    wanted = [pairs[index % len(pairs)] for index in range(episodes)]
    recording, _ = record_episodes(RulePlayer(_maker(rule, config.seed)), training.envs.episodes, wanted)
    training.envs.episodes.telemetry.take()  # what a rule was paid and what it did are not the learner's
    if training.host_log is not None:
        training.host_log.take()
    taught, judged = (recording, None) if not held_out else recording.split(held_out)
    network = PolicyNetwork(
        training.envs.space,
        hidden_size=config.hidden_size,
        seed=config.seed,
        notes={"config": config.to_dict(), "rule": rule, "episodes": episodes},
    )
    return network, network.fit(taught, held_out=judged)


def _is_rule(name: str) -> bool:
    """One that needs to be told nothing."""
    return name in RULE_POLICIES and name != "schedule"


def _weights(given: str) -> dict[str, Tensor]:
    """No shape of theirs depends on slots or blueprints, so that they fit any suite."""
    try:
        if given.endswith(".safetensors"):
            return _taught(PolicyNetwork.load(Path(given)))
        return Controller.load(given).weights
    except UnknownController:
        known = [*(name for name in RULE_POLICIES if _is_rule(name)), *shipped_controllers()]
        raise ConfigError(
            f"warm_start is {given!r}; expected one of {', '.join(known)}, the folder of a controller, or a "
            ".safetensors file"
        ) from None
    except (CloningError, ControllerError) as error:
        raise ConfigError(f"warm_start: {error}") from None


def _maker(rule: str, seed: int) -> Callable[[int], RulePolicy]:
    if rule == "random":
        rng = np.random.default_rng(seed)
        return lambda _: rule_policy("random", rng=rng)
    return lambda _: rule_policy(rule)


def _taught(network: PolicyNetwork) -> dict[str, Tensor]:
    """All but the critic."""
    state = network.policy.state_dict()
    return {name: value for name, value in state.items() if not name.startswith("critic.")}
