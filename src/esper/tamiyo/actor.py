"""A policy in use: owns its memory and demands the mask, so that neither can be forgotten."""

from collections.abc import Callable

import torch
from torch import Tensor

from esper.tamiyo.policy import ActorState, Policy


class Actor:
    """Acts with a trained policy in `num_envs` environments at once.

    >>> actor = Actor(policy)                  # greedy; pass a generator to sample
    >>> action = actor.act(observation, mask)  # (env, head)
    >>> action = actor.act(observation, mask, reward=reward)
    >>> actor.reset()                          # a new episode

    generator: to sample with; None takes the greedy choice.
    normalize: how the policy's training transformed observations, if it did (`PPOAgent.actor` passes it).
    """

    __slots__ = ("_awaits_reward", "_fresh", "_generator", "_normalize", "_state", "policy")

    def __init__(
        self,
        policy: Policy,
        num_envs: int = 1,
        *,
        generator: torch.Generator | None = None,
        normalize: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; expected >= 1")
        self.policy = policy
        """The network that acts."""
        self._generator = generator
        self._normalize = normalize
        self._state = ActorState.initial(policy, num_envs, policy.device)
        self._awaits_reward = False
        # Envs whose next reward is of an episode that was left behind.
        self._fresh = torch.zeros(num_envs, dtype=torch.bool, device=policy.device)

    @property
    def num_envs(self) -> int:
        """Environments it acts in at once."""
        return len(self._state.previous_reward)

    @torch.inference_mode()
    def act(self, observation: Tensor, mask: Tensor, *, reward: Tensor | None = None) -> Tensor:
        """Actions (env, head) for observation (env, feature) under mask (env, width), True where legal.

        `reward` (env,) is that of the step before; it is demanded of policies that see it, and counts as 0
        where `reset` began an episode since.
        """
        self._check(observation, mask, reward)
        device = self.policy.device
        observation, mask = observation.to(device), mask.to(device)
        # What only the critic sees is unknown in use, and no part of what is acted by.
        observation = torch.nn.functional.pad(observation, (0, self.policy.privileged_features))
        if reward is not None:
            self._state.previous_reward = reward.to(device, torch.float32).masked_fill(self._fresh, 0.0)
        self._fresh = torch.zeros_like(self._fresh)
        if self._normalize is not None:
            observation = self._normalize(observation)
        actions, _, hidden = self.policy.choose(observation, mask, self._state, self._generator)
        self._state.hidden = hidden
        self._state.previous_action = actions
        self._awaits_reward = self.policy.uses_previous
        return actions

    @torch.inference_mode()
    def reset(self, begins: Tensor | None = None) -> None:
        """Forget the past, in all envs or where `begins` (env,) bool is True."""
        if begins is None:
            begins = torch.ones(self.num_envs, dtype=torch.bool, device=self.policy.device)
            self._awaits_reward = False
        if begins.shape != (self.num_envs,) or begins.dtype != torch.bool:
            raise ValueError(
                f"begins is {begins.dtype} {tuple(begins.shape)}; expected bool ({self.num_envs},)"
            )
        begins = begins.to(self.policy.device)
        self._state.reset(begins)
        self._fresh = self._fresh | begins

    def state_dict(self) -> dict[str, Tensor]:
        """Return its memory, and what it knows of the reward to come."""
        awaits = torch.tensor(self._awaits_reward)
        return {**self._state.state_dict(), "fresh": self._fresh.clone(), "awaits_reward": awaits}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state_dict` of as many environments."""
        expected = self.state_dict().keys()
        if state.keys() != expected:
            raise ValueError(f"state has {', '.join(sorted(state))}; expected {', '.join(sorted(expected))}")
        self._state.load_state_dict(state)
        self._fresh = state["fresh"].to(self.policy.device).clone()
        self._awaits_reward = bool(state["awaits_reward"])

    def _check(self, observation: Tensor, mask: Tensor, reward: Tensor | None) -> None:
        expected = (self.num_envs, self.policy.observation_size - self.policy.privileged_features)
        if tuple(observation.shape) != expected:
            raise ValueError(f"observation has shape {tuple(observation.shape)}; expected {expected}")
        if tuple(mask.shape) != (self.num_envs, self.policy.layout.width) or mask.dtype != torch.bool:
            raise ValueError(
                f"mask is {mask.dtype} {tuple(mask.shape)}; expected bool "
                f"{(self.num_envs, self.policy.layout.width)} (layout.flatten_masks or layout.all_legal)"
            )
        if self._awaits_reward and reward is None:
            raise ValueError("reward is missing: this policy sees the reward of its last action")
        if reward is not None and tuple(reward.shape) != (self.num_envs,):
            raise ValueError(f"reward has shape {tuple(reward.shape)}; expected ({self.num_envs},)")
