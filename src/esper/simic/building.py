"""From a `TrainingConfig` to what it describes: environments, agent, the cases to select by."""

from dataclasses import dataclass

import torch

from esper.simic.agent import AnomalyDetector, PPOAgent, PPOConfig
from esper.simic.env import GrowthVectorEnv, make_world
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import Setting
from esper.simic.env.pool import CasePool
from esper.simic.rewards import RewardConfig
from esper.simic.training_config import TrainingConfig
from esper.tamiyo import GrowthPolicy
from esper.tolaria.controls import ControlCurves
from esper.tolaria.governor import GovernorRules

_SELECTION_SEED = 0x5E1EC7
"""Draws the cases that checkpoints are selected by: of the training distribution, not of the held-out list."""
_SELECTION_HOSTS = 1_000_000
"""Host seeds from here on are not trained on."""


@dataclass(frozen=True, slots=True)
class Training:
    """Everything a trainer moves."""

    envs: GrowthVectorEnv
    agent: PPOAgent
    pool: CasePool
    setting: Setting
    horizon: int
    reward: RewardConfig


def build(config: TrainingConfig) -> Training:
    governor = GovernorRules(**config.to_governor_kwargs())
    setting = make_world(
        config.suite, config.num_envs, device=config.device, workers=config.workers, governor=governor
    )
    horizon = config.horizon or setting.horizon
    reward = RewardConfig(**config.to_reward_kwargs(task_rent=setting.rent))
    pool = CasePool.drawn(
        setting.cases, size=config.pool_cases, host_seeds=config.pool_host_seeds, seed=config.seed
    )
    envs = GrowthVectorEnv(
        setting.world,
        setting.space,
        pool,
        num_envs=config.num_envs,
        horizon=horizon,
        reward=reward,
        controls=setting.controls,
        host_seeds=pool.host_seeds,
        **config.to_tracker_kwargs(),
        **config.to_env_kwargs(),
    )
    return Training(envs, build_agent(config, envs, horizon), pool, setting, horizon, reward)


def build_agent(config: TrainingConfig, envs: GrowthVectorEnv, horizon: int) -> PPOAgent:
    policy = GrowthPolicy(
        envs.space,
        hidden_size=config.hidden_size,
        generator=torch.Generator().manual_seed(config.seed),
    ).to(config.device)
    policy.exploration_floor = config.exploration_floor
    return PPOAgent(
        policy,
        PPOConfig(**config.to_ppo_kwargs()),
        num_envs=config.num_envs,
        num_steps=config.rollout_steps or horizon,
        seed=config.seed,
        slot_config=envs.space.slot_config,
        detector=AnomalyDetector(**config.to_anomaly_kwargs()),
    )


def prepare_controls(training: Training, *, processes: int) -> None:
    """Compute the control curves of the whole pool that are not on disk yet."""
    controls = training.setting.controls
    if training.reward.control_variate and isinstance(controls, ControlCurves):
        controls.prepare(training.pool.pairs(), processes=processes)


def selection_cases(training: Training, episodes: int) -> list[tuple[str, int]]:
    """(case, host seed) that the best checkpoint is chosen by: cases of the pool, hosts that are not trained on."""
    cases = training.pool.cases
    return [(cases[index % len(cases)], _SELECTION_HOSTS + index) for index in range(episodes)]


def evaluation_episodes(training: Training, config: TrainingConfig, num_envs: int) -> Episodes:
    """Episodes of the same world, reward and observation, to judge in."""
    setting = make_world(config.suite, num_envs, device=config.device)
    return Episodes(
        setting.world,
        training.envs.space,
        training.pool,
        num_envs=num_envs,
        horizon=training.horizon,
        reward=training.reward,
        controls=setting.controls,
        on_illegal="noop",
        settle=config.settle,
        frozen_heads=config.frozen_heads,
    )
