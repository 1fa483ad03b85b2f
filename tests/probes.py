"""Tiny environments with known answers, each isolating one thing a learner must do, in the order to try them.

Vectorised, seeded by the generator they are given, needing neither Gymnasium nor growth. A learner that
fails one of them has a bug; a learner that passes them all is ready for a real environment.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from esper.simic.agent import PPOAgent, PPOUpdateMetrics
from esper.tamiyo import ActionLayout, discrete_layout, multi_discrete_layout


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """What one step of every env came to."""

    observation: Tensor
    """(env, feature): the one to act on next."""
    mask: Tensor
    """(env, layout.width)"""
    reward: Tensor
    """(env,)"""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_observation: Tensor
    """(env, feature): the one the step ended in, before any reset."""


class Probe(ABC):
    """Episodes of `length` steps in each of `num_envs` envs; `cue` (env,) is drawn anew for each episode."""

    layout: ClassVar[ActionLayout] = discrete_layout(1)
    observation_size: ClassVar[int] = 1
    length: ClassVar[int] = 1
    cues: ClassVar[int] = 2
    truncates: ClassVar[bool] = False
    """Whether the time limit truncates (the task goes on beyond it) or terminates."""

    def __init__(self, num_envs: int, generator: torch.Generator) -> None:
        self.num_envs = num_envs
        self.generator = generator
        self.time = torch.zeros(num_envs, dtype=torch.int64)
        self.cue = torch.zeros(num_envs, dtype=torch.int64)

    def observe(self) -> Tensor:
        """(env, feature) from time and cue; by default the cue as -1 or +1."""
        return (self.cue.float() * 2.0 - 1.0).unsqueeze(-1)

    @abstractmethod
    def reward(self, actions: Tensor) -> Tensor:
        """(env,) for actions (env, head) at this time and cue."""

    def mask(self) -> Tensor:
        """(env, layout.width) bool; by default everything is legal."""
        return self.layout.all_legal(self.num_envs)

    def reset(self) -> tuple[Tensor, Tensor]:
        """Begin an episode in every env: observation and mask."""
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self.observe(), self.mask()

    def step(self, actions: Tensor) -> ProbeStep:
        """One step in every env; what ended begins anew."""
        reward = self.reward(actions)
        self.time = self.time + 1
        ended = self.time >= self.length
        final = self.observe()
        self._begin(ended)
        never = torch.zeros_like(ended).numpy()
        terminated, truncated = (never, ended.numpy()) if self.truncates else (ended.numpy(), never)
        return ProbeStep(self.observe(), self.mask(), reward, terminated, truncated, final)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on."""
        return {
            "time": self.time.clone(),
            "cue": self.cue.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from `state_dict`."""
        self.time, self.cue = state["time"].clone(), state["cue"].clone()
        self.generator.set_state(state["generator"])

    def _begin(self, where: Tensor) -> None:
        drawn = torch.randint(self.cues, (self.num_envs,), generator=self.generator)
        self.cue = torch.where(where, drawn, self.cue)
        self.time = torch.where(where, 0, self.time)


class ConstantReward(Probe):
    """V = 1: is the critic trained at all?"""

    def observe(self) -> Tensor:
        return torch.zeros(self.num_envs, 1)

    def reward(self, actions: Tensor) -> Tensor:
        return torch.ones(len(actions))


class RewardIsObservation(Probe):
    """V(o) = o: does the critic see the observation?"""

    def reward(self, actions: Tensor) -> Tensor:
        return self.observe().squeeze(-1).expand(len(actions))


class TwoStepDiscount(Probe):
    """V(first) = gamma, V(second) = 1: is the discount right?"""

    length = 2

    def observe(self) -> Tensor:
        return self.time.float().unsqueeze(-1)

    def reward(self, actions: Tensor) -> Tensor:
        return self.time.float().expand(len(actions))


class ActionIsObservation(Probe):
    """+1 for the action the observation names, else -1: is the actor's gradient the right way round?"""

    layout = discrete_layout(2)

    def reward(self, actions: Tensor) -> Tensor:
        return (actions[:, 0] == self.cue).float() * 2.0 - 1.0


class DelayedMemory(ActionIsObservation):
    """The cue is shown once; two steps later it must be answered: is memory carried, and cut at resets?"""

    observation_size, length = 2, 3

    def observe(self) -> Tensor:
        shown = torch.where(self.time == 0, super().observe().squeeze(-1), 0.0)
        return torch.stack((shown, (self.time == self.length - 1).float()), dim=-1)

    def reward(self, actions: Tensor) -> Tensor:
        return torch.where(self.time == self.length - 1, super().reward(actions), 0.0)


class TwoHeads(Probe):
    """Half the reward for each of two independent heads: do both learn?"""

    layout = multi_discrete_layout((2, 3))

    def reward(self, actions: Tensor) -> Tensor:
        return 0.5 * (actions[:, 0] == self.cue).float() + 0.5 * (actions[:, 1] == 2).float()


class ConditionalHead(Probe):
    """Kind 0 pays 0.2; kind 1 pays 1 with target 2, else -1: does a head learn where it matters?"""

    layout = ActionLayout(
        names=("kind", "target"), sizes=(2, 3), causal_table={0: ("kind",), 1: ("kind", "target")}
    )

    def observe(self) -> Tensor:
        return torch.ones(self.num_envs, 1)

    def reward(self, actions: Tensor) -> Tensor:
        aimed = (actions[:, 1] == 2).float() * 2.0 - 1.0
        return torch.where(actions[:, 0] == 1, aimed, 0.2)


class EndlessCycle(ConstantReward):
    """A cycle of four states, reward 1 for ever, cut every 8 steps: V = 1 / (1 - gamma)."""

    observation_size, length, truncates = 4, 8, True

    def observe(self) -> Tensor:
        return one_hot(self.time % 4, 4).float()


class MaskedIdentity(Probe):
    """70 actions, 55 of them illegal, drawn anew each step; 1 for the action the observation names."""

    layout, observation_size, cues = discrete_layout(70), 70, 70
    illegal: ClassVar[int] = 55

    def observe(self) -> Tensor:
        return one_hot(self.cue, self.cues).float()

    def reward(self, actions: Tensor) -> Tensor:
        return (actions[:, 0] == self.cue).float()

    def mask(self) -> Tensor:
        noise = torch.rand(self.num_envs, self.cues, generator=self.generator)
        noise.scatter_(1, self.cue.unsqueeze(-1), 2.0)  # the named action is always legal
        forbidden = noise.argsort(1)[:, : self.illegal]
        return torch.ones(self.num_envs, self.cues, dtype=torch.bool).scatter_(1, forbidden, False)


class MultiIdentity(MaskedIdentity):
    """Heads of 2 and 3 choices, one illegal choice in the second; 1 when both name the observation."""

    layout, observation_size, cues = multi_discrete_layout((2, 3)), 6, 6

    def reward(self, actions: Tensor) -> Tensor:
        return ((actions[:, 0] == self.cue // 3) & (actions[:, 1] == self.cue % 3)).float()

    def mask(self) -> Tensor:
        offset = torch.randint(1, 3, (self.num_envs,), generator=self.generator)
        illegal = (self.cue % 3 + offset) % 3
        mask = self.layout.all_legal(self.num_envs)
        mask[torch.arange(self.num_envs), 2 + illegal] = False
        return mask


def run_probe(agent: PPOAgent, probe: Probe, updates: int) -> list[PPOUpdateMetrics]:
    """Train for this many updates; the metrics of each."""
    observation, mask = probe.reset()
    return [metrics for metrics, observation, mask in iterate(agent, probe, observation, mask, updates)]


def iterate(
    agent: PPOAgent, probe: Probe, observation: Tensor, mask: Tensor, updates: int
) -> list[tuple[PPOUpdateMetrics, Tensor, Tensor]]:
    """Train on from an observation and mask: the metrics of each update, and the observation and mask after it."""
    history = []
    for _ in range(updates):
        while not agent.ready:
            outcome = probe.step(agent.act(observation, mask))
            observation, mask = outcome.observation, outcome.mask
            agent.observe(
                outcome.reward,
                outcome.terminated,
                outcome.truncated,
                final_observation=outcome.final_observation,
            )
        history.append((agent.update(observation), observation, mask))
    return history
