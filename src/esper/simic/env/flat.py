"""Growth with flat observations, and with one Discrete action: for learners that take nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from esper.leyline import CHOICES, ActionSpec, DecisionSettings, LifecycleOp
from esper.simic.env.accounts import PRIVILEGED
from esper.simic.env.episodes import Observation
from esper.simic.env.growth_env import GrowthEnv, GrowthVectorEnv
from esper.tamiyo.actions import Actions, GrowthSpace, encode
from esper.tamiyo.features import BOUND, observation_size

_ON_SLOTS = (LifecycleOp.ADVANCE, LifecycleOp.FOSSILIZE, LifecycleOp.PRUNE)
Flat = NDArray[np.float32]


def structural_actions(
    space: GrowthSpace, decisions: DecisionSettings = DecisionSettings()
) -> tuple[ActionSpec, ...]:
    """WAIT; GERMINATE every blueprint at every slot; ADVANCE, FOSSILIZE, PRUNE and, if it is a choice, RETIRE each.

    The other heads have their frozen choice, or the default of `ActionSpec`; alpha targets are never
    changed afterwards.
    """
    ways = {head: CHOICES[head][choice] for head, choice in decisions.frozen_choices.items() if head != "op"}
    slots = space.slot_config.slot_ids
    germinate = [
        ActionSpec(LifecycleOp.GERMINATE, slot, blueprint) for slot in slots for blueprint in space.blueprints
    ]
    retire = (LifecycleOp.RETIRE,) if space.retire else ()
    on_slots = [ActionSpec(op, slot) for op in (*_ON_SLOTS, *retire) for slot in slots]
    return (ActionSpec(), *(replace(action, **ways) for action in (*germinate, *on_slots)))  # type: ignore[arg-type]


class FlatGrowthEnv(gym.Env[Flat, np.int64]):
    """A `GrowthEnv` with a Discrete action and a flat Box observation (host | slots | blueprints).

    `action_masks()` is what sb3-contrib's MaskablePPO asks for; `actions` says what each choice means.
    """

    def __init__(self, env: GrowthEnv) -> None:
        if not isinstance(env, GrowthEnv):
            raise TypeError(
                f"env is {type(env).__name__}; expected a GrowthEnv: gymnasium.make(...).unwrapped"
            )
        self.env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.actions = structural_actions(env.space, env.episodes.decisions)
        self._encoded: Actions = np.stack(
            [encode(action, env.space, env.space.slot_config) for action in self.actions]
        )
        self.observation_space = _flat_space(env.space)
        self.action_space = gym.spaces.Discrete(len(self.actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Flat, dict[str, Any]]:
        """Begin an episode; options are those of `GrowthEnv.reset`."""
        super().reset(seed=seed)
        observation, info = self.env.reset(seed=seed, options=options)
        return _flatten(observation), info | {"action_mask": self.action_masks()}

    def step(self, action: np.int64) -> tuple[Flat, float, bool, bool, dict[str, Any]]:
        """Execute the structural action of this number."""
        if not 0 <= int(action) < len(self.actions):
            raise ValueError(f"action is {action}; expected 0..{len(self.actions) - 1}")
        observation, reward, terminated, truncated, info = self.env.step(self._encoded[int(action)])
        info["action_mask"] = self.action_masks()
        return _flatten(observation), reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(choice,), True where legal."""
        mask = np.broadcast_to(self.env.legal_mask(), (len(self.actions), self.env.action_layout.width))
        return self.env.episodes.choices.allowed(self._encoded, mask)

    def render(self) -> Any:
        """The frame of the `GrowthEnv`."""
        return self.env.render()

    def close(self) -> None:
        """Close the `GrowthEnv`."""
        self.env.close()


class FlatVectorEnv(VectorWrapper):
    """A `GrowthVectorEnv` whose observation is one vector a host (host | slots | blueprints), as `learn` takes it.

    privileged  append what only a critic may see (`PRIVILEGED`), as `GrowthPolicy` takes it
    """

    env: GrowthVectorEnv

    def __init__(self, envs: GrowthVectorEnv, *, privileged: bool = False) -> None:
        super().__init__(envs)
        self._privileged = envs.episodes.critic_looks = privileged
        self.single_observation_space = _flat_space(envs.space, len(PRIVILEGED) if privileged else 0)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Flat, dict[str, Any]]:
        """Begin an episode in every env, as `GrowthVectorEnv.reset`."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._observation(), info

    def step(self, actions: Actions) -> tuple[Flat, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One action (env, head) in every env; "final_obs" is flat too."""
        _, reward, terminated, truncated, info = self.env.step(actions)
        unseen = self.env.last_step.privileged
        return self._observation(), reward, terminated, truncated, self._with_flat_ends(info, unseen)

    def replace_lost(self, env_idxs: Sequence[int]) -> tuple[Flat, dict[str, Any]]:
        """Begin anew where hosts were lost between two steps, as `GrowthVectorEnv.replace_lost`."""
        _, info = self.env.replace_lost(env_idxs)
        unseen = np.zeros((self.num_envs, len(PRIVILEGED)), dtype=np.float32)  # nobody knows any more
        return self._observation(), self._with_flat_ends(info, unseen if self._privileged else None)

    def load_state_dict(self, state: Mapping[str, object]) -> tuple[Flat, dict[str, Any]]:
        """Go on from a `GrowthVectorEnv`'s saved state; returns what `reset` or `step` had returned there."""
        _, info = self.env.load_state_dict(state)
        return self._observation(), info

    def _with_flat_ends(self, info: dict[str, Any], unseen: Flat | None) -> dict[str, Any]:
        """Flatten "final_obs", followed by what only a critic may see of each end."""
        for env_idx in np.flatnonzero(info.get("_final_obs", False)):
            final = _flatten(info["final_obs"][env_idx])
            info["final_obs"][env_idx] = (
                np.concatenate((final, unseen[env_idx])) if unseen is not None else final
            )
        return info

    def _observation(self) -> Flat:
        seen = self.env.flat_observation.numpy()
        if not self._privileged:
            return seen.copy()
        return np.concatenate((seen, self.env.episodes.accounts.privileged()), axis=1)


def _flat_space(space: GrowthSpace, privileged: int = 0) -> gym.Space[Flat]:
    return gym.spaces.Box(-BOUND, BOUND, (observation_size(space) + privileged,), np.float32)


def _flatten(observation: Observation) -> Flat:
    return np.concatenate([observation[name].ravel() for name in ("host", "slots", "blueprints")])
