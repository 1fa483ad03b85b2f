"""From a `TrainingConfig` to what it describes: environments, agent, the cases to select by."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esper.leyline import HostLog
from esper.leyline.errors import nearest
from esper.simic.agent import AnomalyDetector, PPOAgent
from esper.simic.config.checks import ConfigError
from esper.simic.config.presets import EXPLORING
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import GrowthVectorEnv, make_world
from esper.simic.env.accounts import PRIVILEGED
from esper.simic.env.cases import TRAINING_HOSTS, CasePool, CaseSource
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import (
    ReparametrisedCases,
    Setting,
    Workers,
    device_of_hosts,
    require_reparametrisable,
)
from esper.simic.reports import Preparing, Working
from esper.simic.timing import QUIET_SECONDS
from esper.tamiyo import GrowthPolicy
from esper.tamiyo.actions import GrowthSpace
from esper.tolaria.worlds.baselines import BaselineCurves


@dataclass(frozen=True, slots=True)
class Training:
    """What a trainer works with."""

    envs: GrowthVectorEnv
    agent: PPOAgent
    pool: CasePool
    """The instances and host seeds that are trained on."""
    setting: Setting
    host_log: HostLog | None
    """What happens to hosts, to be taken after each step; None if it is not recorded."""


def build(config: TrainingConfig, *, failure_checkpoint: Path | None = None) -> Training:
    """Environments and agent of a config; the agent saves itself to `failure_checkpoint` before it gives up."""
    host_log = HostLog() if config.logs_decisions else None
    setting = make_world(
        config.suite,
        config.num_envs,
        device=device_of_hosts(config.device, config.suite),
        workers=Workers(config.workers, config.cluster, config.worker_timeout, config.cluster_snapshot_every),
        horizon=config.horizon,
        governor=config.governor(),
        events=None if host_log is None else host_log.sink,
    )
    with setting.closed_on_failure():
        require_menu(config, setting.space)
        cases: CaseSource = setting.cases
        if config.reparametrise:
            require_reparametrisable(config.suite)
            cases = ReparametrisedCases(cases)
        pool = CasePool.drawn(
            cases, size=config.pool_cases, host_seeds=config.pool_host_seeds, seed=config.seed
        )
        episodes = replace(setting, cases=pool).episodes(
            reward=config.reward(task_rent=setting.rent, task_counts=setting.counts),
            settle=config.settle,
            decisions=config.decisions,
        )
        envs = GrowthVectorEnv(episodes, on_close=setting.close)
        return Training(envs, build_agent(config, envs, failure_checkpoint), pool, setting, host_log)


def require_menu(config: TrainingConfig, space: GrowthSpace) -> None:
    """Raise ConfigError for kinds of seeds that the hosts do not know."""
    unknown = [name for name in config.decisions.menu or () if name not in space.blueprints]
    if unknown:
        raise ConfigError(
            f"menu has {unknown[0]!r}; the hosts of {config.suite} are offered {', '.join(space.blueprints)}"
            f"{nearest(unknown[0], space.blueprints)}"
        )


def build_agent(
    config: TrainingConfig, envs: GrowthVectorEnv, failure_checkpoint: Path | None = None
) -> PPOAgent:
    """A new agent for these environments."""
    generator = torch.Generator().manual_seed(config.seed)
    policy = GrowthPolicy(
        envs.space,
        privileged_features=len(PRIVILEGED) if config.critic_sees_baseline else 0,
        hidden_size=config.hidden_size,
        num_lstm_layers=config.num_lstm_layers,
        generator=generator,
    )
    policy.begin_leaning(config.initial_op_logits)
    policy = policy.to(config.device)
    policy.exploration_floor = config.exploration_floor
    with warnings.catch_warnings():
        if config.n_epochs == EXPLORING["n_epochs"]:  # what the presets were measured with is no news
            warnings.filterwarnings("ignore", message="n_epochs .* with memory is elevated")
        return PPOAgent(
            policy,
            config.ppo(),
            num_envs=config.num_envs,
            num_steps=config.rollout_steps or envs.episodes.horizon,
            seed=config.seed,
            slot_config=envs.space.slot_config,
            detector=AnomalyDetector(**config.to_anomaly_kwargs()),
            failure_checkpoint=failure_checkpoint,
        )


def prepare_baselines(
    training: Training,
    config: TrainingConfig,
    progress: Callable[[Preparing | Working], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Preparing | None:
    """Train the baselines that will be needed and are not on disk yet, until `stop` returns True.

    Returns how many of how many are there; None if none was missing.
    """
    baselines = training.setting.baselines
    if not config.reward_control_variate or not isinstance(baselines, BaselineCurves):
        return None
    latest: Preparing | None = None

    def count(done: int, total: int) -> None:
        nonlocal latest
        latest = Preparing(done, total, done if latest is None else latest.kept)
        progress(latest)

    told = time.monotonic()

    def look(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= QUIET_SECONDS:
            told = time.monotonic()
            progress(Working(0, "looking which baselines are on disk", done, total))

    wanted = list(training.pool.pairs())
    if config.eval_every:
        wanted += selection_cases(training, config.eval_episodes)
    baselines.prepare(wanted, progress=count, looking=look, stop=stop)
    return latest


def selection_cases(training: Training, episodes: int) -> list[tuple[str, int]]:
    """(case, host seed) that the best checkpoint is selected by: cases of the pool, hosts not trained on."""
    cases = training.pool.cases
    return [(cases[index % len(cases)], TRAINING_HOSTS + index) for index in range(episodes)]


def evaluation_episodes(
    training: Training, config: TrainingConfig, num_envs: int, *, suite: str | None = None
) -> Episodes:
    """Episodes to judge in, as they are trained in; of another suite with its own horizon and rent."""
    setting = make_world(
        suite or config.suite,
        num_envs,
        device=device_of_hosts(config.device, suite or config.suite),
        horizon=config.horizon,
        governor=config.governor(),
    )
    return replace(setting, space=training.envs.space, cases=training.pool).episodes(
        reward=config.reward(task_rent=setting.rent, task_counts=setting.counts),
        shown_reward=training.envs.episodes.reward,
        on_illegal="noop",
        settle=config.settle,
        decisions=config.decisions,
    )
