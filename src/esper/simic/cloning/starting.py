"""Starting PPO from what a rule does, or from a network that was taught before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from esper.simic.building import Training, build, prepare_controls
from esper.simic.cloning.network import CloningError, CloningReport, PolicyNetwork
from esper.simic.cloning.recording import record_episodes
from esper.simic.configuration.errors import ConfigError
from esper.simic.evaluation import RulePlayer
from esper.simic.training_config import TrainingConfig
from esper.tamiyo import unwrap
from esper.tamiyo.rules import RULE_POLICIES, RulePolicy, rule_policy

EPISODES = 64
"""Of the training pool, that a rule is recorded on."""


def require_warm_start(config: TrainingConfig) -> None:
    """Raise ConfigError, before anything takes time, for what cannot be started from."""
    given = config.warm_start
    if given is None or _is_rule(given):
        return
    if not given.endswith(".safetensors"):
        rules = ", ".join(name for name in RULE_POLICIES if _is_rule(name))
        raise ConfigError(f"warm_start is {given!r}; expected one of {rules}, or a .safetensors file")
    _load(given)


def warm_start(training: Training, config: TrainingConfig) -> CloningReport | None:
    """Give the agent's policy the weights that `config.warm_start` names; the critic starts as it is.

    A rule is played on the training pool and cloned, which is reported; a file is a saved `PolicyNetwork`.
    """
    if config.warm_start is None:
        return None
    report = None
    if _is_rule(config.warm_start):
        network, report = _clone(training, config, config.warm_start, EPISODES)
    else:
        network = _load(config.warm_start)
    policy = unwrap(training.agent.policy)
    if network.space != training.envs.space or network.hidden_size != config.hidden_size:
        raise ConfigError(
            f"warm_start is {config.warm_start!r}: a network of hidden_size {network.hidden_size} for blueprints "
            f"{', '.join(network.space.blueprints)}; this run has hidden_size {config.hidden_size} and "
            f"{', '.join(training.envs.space.blueprints)}"
        )
    weights = {name: value for name, value in network.policy.state_dict().items() if _taught(name)}
    policy.load_state_dict({**policy.state_dict(), **weights})
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


def _load(path: str) -> PolicyNetwork:
    try:
        return PolicyNetwork.load(Path(path))
    except CloningError as error:
        raise ConfigError(f"warm_start: {error}") from None


def _maker(rule: str, seed: int) -> Callable[[int], RulePolicy]:
    if rule == "random":
        rng = np.random.default_rng(seed)
        return lambda _: rule_policy("random", rng=rng)
    return lambda _: rule_policy(rule)


def _taught(name: str) -> bool:
    return not name.startswith("critic.")
