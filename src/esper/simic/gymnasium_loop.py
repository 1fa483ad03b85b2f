"""PPO on any Gymnasium vector environment. `collect` is the loop that fills every rollout, growth's too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from esper.simic.agent import PPOAgent, PPOUpdateMetrics
from esper.simic.timing import Stopwatch
from esper.tamiyo import ActionLayout, Actor, discrete_layout, multi_discrete_layout

AnyVectorEnv = VectorEnv[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]
Flags = NDArray[np.bool_]
Info = dict[str, Any]  # Gymnasium's own type for it
SHOWN_KEY = "shown_reward"
"""Where an environment whose reward is unknown in use puts what a policy is shown instead, (env,), in `info`."""
MASK_KEY = "action_mask"
"""Where an environment that has illegal actions puts its flat mask (env, layout.width) in `info`."""
LOST_KEY = "lost"
"""Where an environment whose hosts can be lost flags the steps (env,) lost with their episodes, in `info`."""


class VectorStep(NamedTuple):
    """What one step of a vector environment returned."""

    observation: NDArray[np.float32]
    """(env, feature)"""
    reward: NDArray[np.float64]
    terminated: Flags
    truncated: Flags
    info: Info


def action_layout(space: gym.Space[NDArray[np.int64]] | gym.Space[np.int64]) -> ActionLayout:
    """The layout of a Discrete or MultiDiscrete action space."""
    if isinstance(space, gym.spaces.Discrete) and space.start == 0:
        return discrete_layout(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return multi_discrete_layout([int(size) for size in space.nvec])
    raise ValueError(f"action space {space} is not supported; expected Discrete or flat MultiDiscrete from 0")


@dataclass(slots=True)
class LearningCurve:
    """Returns of the episodes that ended and were not lost, in order."""

    returns: list[float]
    env_steps: list[int]
    """Steps over all envs when each ended."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Whole episodes that a policy was judged on, env by env."""

    returns: tuple[float, ...]
    """Undiscounted, of each episode."""
    lengths: tuple[int, ...]
    """Steps of each episode."""

    @property
    def mean_return(self) -> float:
        """Mean over the episodes."""
        return float(np.mean(self.returns))

    def __str__(self) -> str:
        steps = float(np.mean(self.lengths))
        return f"mean return {self.mean_return:.3f} over {len(self.returns)} episodes of {steps:.1f} steps on average"


def collect(
    agent: PPOAgent,
    envs: AnyVectorEnv,
    observation: NDArray[np.float32],
    info: Info,
    *,
    stopwatch: Stopwatch | None = None,
) -> Iterator[VectorStep]:
    """Fill the agent's rollout from `observation` (env, feature) on, and yield every step after it was stored.

    Steps that `info` flags as lost are not trained on.

    stopwatch  counts the seconds of "act" and "step"
    """
    stopwatch = stopwatch or Stopwatch()
    while not agent.ready:
        with stopwatch.part("act"):
            action = agent.act(torch.from_numpy(observation), read_mask(info))
        with stopwatch.part("step"):
            step = take_step(envs, action)
        observation, info = step.observation, step.info
        store(agent, step, read_lost(step))
        yield step


def store(agent: PPOAgent, step: VectorStep, lost: Flags) -> None:
    """Give the agent what came of its actions; a step that was lost (env,) is invalid."""
    stopped = (step.truncated & ~lost).any()
    agent.observe(
        torch.from_numpy(step.reward),
        step.terminated,
        step.truncated | lost,
        final_observation=read_final(step.info, step.observation) if stopped else None,
        valid=~lost if lost.any() else None,
        shown_reward=torch.from_numpy(_shown(step)),
    )


def learn(
    agent: PPOAgent,
    envs: AnyVectorEnv,
    total_steps: int,
    *,
    seed: int,
    progress: Callable[[PPOUpdateMetrics], None] | None = None,
) -> LearningCurve:
    """Train for at least `total_steps` steps over all envs: collect, then update, again and again."""
    require_same_step_autoreset(envs)
    curve = LearningCurve([], [])
    running = np.zeros(envs.num_envs)
    observation, info = envs.reset(seed=seed)
    agent.begin_episodes()
    target = agent.env_steps + total_steps
    while agent.env_steps < target:
        for step in collect(agent, envs, observation, info):
            observation, info = step.observation, step.info
            running += step.reward
            ended, lost = step.terminated | step.truncated, read_lost(step)
            curve.returns += running[ended & ~lost].tolist()
            curve.env_steps += [agent.env_steps] * int((ended & ~lost).sum())
            running[ended] = 0.0
        metrics = agent.update(torch.from_numpy(observation))
        if progress is not None:
            progress(metrics)
    return curve


@torch.inference_mode()
def evaluate(actor: Actor, envs: AnyVectorEnv, episodes: int, *, seed: int) -> Evaluation:
    """Play `episodes` episodes, an equal share from each env: no favour to short ones. Lost ones are played again."""
    if episodes % envs.num_envs:
        raise ValueError(f"episodes is {episodes}; expected a multiple of the {envs.num_envs} envs")
    require_same_step_autoreset(envs)
    actor.reset()
    everything = actor.policy.layout.all_legal(envs.num_envs, actor.policy.device)
    share = episodes // envs.num_envs
    finished: list[list[tuple[float, int]]] = [[] for _ in range(envs.num_envs)]  # return and length
    running, steps = np.zeros(envs.num_envs), np.zeros(envs.num_envs, dtype=np.int64)
    observation, info = envs.reset(seed=seed)
    reward = np.zeros(envs.num_envs)
    while min(map(len, finished)) < share:
        mask = read_mask(info)
        action = actor.act(
            torch.from_numpy(observation).float(),
            everything if mask is None else mask,
            reward=torch.from_numpy(reward),
        )
        step = take_step(envs, action)
        observation, info, ended = step.observation, step.info, step.terminated | step.truncated
        running, steps = running + step.reward, steps + 1
        for env_idx in np.flatnonzero(ended & ~read_lost(step)):
            finished[env_idx].append((float(running[env_idx]), int(steps[env_idx])))
        running[ended], steps[ended] = 0.0, 0
        actor.reset(torch.from_numpy(ended))
        reward = np.where(ended, 0.0, _shown(step))
    returns, lengths = zip(*(episode for each in finished for episode in each[:share]), strict=True)
    return Evaluation(returns, lengths)


def require_same_step_autoreset(envs: AnyVectorEnv) -> None:
    """Raise unless an env that ended is reset in the same step."""
    mode = envs.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"the vector env's autoreset_mode is {mode}; make it with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"
        )


def _shown(step: VectorStep) -> NDArray[np.float64]:
    """(env,): what a policy sees of its last reward."""
    shown: NDArray[np.float64] = step.info.get(SHOWN_KEY, step.reward)
    return shown


def read_lost(step: VectorStep) -> Flags:
    """(env,): whether the step was lost with its episode; nowhere where the environment does not know of it."""
    lost: Flags = step.info.get(LOST_KEY, np.zeros_like(step.terminated))
    return lost


def take_step(envs: AnyVectorEnv, action: Tensor) -> VectorStep:
    """One step with actions (env, head); a Discrete space takes them as (env,)."""
    array: NDArray[np.int64] = action.cpu().numpy()
    if isinstance(envs.single_action_space, gym.spaces.Discrete):
        array = array[:, 0]
    observation, reward, terminated, truncated, info = envs.step(array)
    # Gymnasium's annotations give the ends the reward's type; they are bool.
    return VectorStep(observation, reward, terminated.astype(np.bool_), truncated.astype(np.bool_), info)


def read_mask(info: Info) -> Tensor | None:
    """(env, width) of an environment that has illegal actions; None of any other."""
    mask = info.get(MASK_KEY)
    return None if mask is None else torch.from_numpy(np.stack(list(mask)).astype(np.bool_))


def read_final(info: Info, observation: NDArray[np.float32]) -> Tensor:
    """The observation each ended episode stopped in; elsewhere the current one."""
    final = observation.copy()
    for env_idx in np.flatnonzero(info["_final_obs"]):
        final[env_idx] = info["final_obs"][env_idx]
    return torch.from_numpy(final)
