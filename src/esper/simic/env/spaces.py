"""A growth space as Gymnasium spaces."""

import gymnasium as gym
import numpy as np

from esper.tamiyo.observation_layout import observation_parts
from esper.tamiyo.scales import BOUND
from esper.tamiyo.space import GrowthSpace


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
