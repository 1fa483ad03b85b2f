"""A growth space as Gymnasium spaces, and which actions a mask allows."""

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import BOUND, observation_parts
from esper.tamiyo.layout import ActionLayout


def observation_space(space: GrowthSpace) -> gym.spaces.Dict:
    """host, slots and blueprints, all bounded."""
    return gym.spaces.Dict(
        {
            name: gym.spaces.Box(-BOUND, BOUND, shape, np.float32)
            for name, shape in observation_parts(space).items()
        }
    )


def action_space(space: GrowthSpace) -> gym.spaces.MultiDiscrete:
    """One choice per head, in HEAD_NAMES order."""
    return gym.spaces.MultiDiscrete(np.array(space.action_layout.sizes, dtype=np.int64))


Actions = NDArray[np.int64]
Masks = NDArray[np.bool_]


class LegalChoices:
    """Checks which actions (env, head) a flat mask (env, layout.width) allows, and draws legal ones."""

    __slots__ = ("_offsets", "_parents", "_relevance", "_sizes", "_strides", "layout")

    def __init__(self, layout: ActionLayout) -> None:
        self.layout = layout
        self._sizes = np.array(layout.sizes)
        self._offsets = np.array(layout.offsets)
        self._parents = np.array([0 if parent is None else parent for parent in layout.parent_indices])
        self._strides = np.where([parent is None for parent in layout.parent_indices], 0, self._sizes)
        self._relevance: NDArray[np.bool_] = layout.relevance.numpy()

    def allowed(self, actions: Actions, masks: Masks) -> NDArray[np.bool_]:
        """(env,) whether every head that matters has a legal choice, given the heads before it."""
        in_range = (actions >= 0) & (actions < self._sizes)
        safe = np.where(in_range, actions, 0)
        index = self._offsets + safe[:, self._parents] * self._strides + safe  # (env, head)
        legal = in_range & np.take_along_axis(masks, index, axis=1)
        relevant = self._relevance[safe[:, 0]]
        verdict: NDArray[np.bool_] = np.logical_and.reduce(legal | ~relevant, axis=1)
        return verdict

    def sample(self, masks: Masks, rng: np.random.Generator) -> Actions:
        """(env, head): head after head, uniform over what is legal; heads that do not matter are 0."""
        actions = np.zeros((len(masks), self.layout.head_count), dtype=np.int64)
        for env_idx, mask in enumerate(masks):
            chosen = actions[env_idx]
            for head in range(self.layout.head_count):
                if not self._relevance[chosen[0], head] and head:
                    continue
                legal = np.flatnonzero(self.row(chosen, mask, head))
                chosen[head] = legal[rng.integers(len(legal))]
        return actions

    def row(self, chosen: Actions, mask: Masks, head: int) -> Masks:
        """What one head may be under a mask (width,), given the heads before it in `chosen` (head,)."""
        start = self._offsets[head] + chosen[self._parents[head]] * self._strides[head]
        row: Masks = mask[start : start + self._sizes[head]]
        return row
