"""Growth-shaped data without growth: random observations under real masks, for tests and timing."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import BlueprintCard, BlueprintKind
from esper.simic.agent import PPOAgent
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, ActionLayout, GrowthPolicy, GrowthSpace
from esper.tamiyo.actions import numbered_slots
from esper.tamiyo.features import PRESENT, blueprint_features, flatten_observation

HOST_PARAMETERS = 1000


def growth_policy(
    slots: int,
    blueprints: int,
    generator: torch.Generator,
    *,
    hidden_size: int = 128,
    num_lstm_layers: int = 1,
    privileged_features: int = 0,
) -> GrowthPolicy:
    """A growth policy over `slots` slots and as many blueprints."""
    names = tuple(f"blueprint{number:02}" for number in range(blueprints))
    return GrowthPolicy(
        GrowthSpace(numbered_slots(slots), names),
        hidden_size=hidden_size,
        num_lstm_layers=num_lstm_layers,
        privileged_features=privileged_features,
        generator=generator,
    )


def random_growth_observation(policy: GrowthPolicy, batch: int, generator: torch.Generator) -> Tensor:
    """(batch, feature): random features of hosts that use every slot and offer every blueprint everywhere."""
    slots, kinds = policy.space.slot_count, list(BlueprintKind)
    cards = [
        BlueprintCard(name, kinds[number % len(kinds)], 10 * (number + 1))
        for number, name in enumerate(policy.space.blueprints)
    ]
    features = blueprint_features([cards] * slots, policy.space.blueprints, HOST_PARAMETERS)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator)

    parts = {
        "host": draw(len(HOST_FEATURES)),
        "slots": draw(slots, len(SLOT_FEATURES)),
        "blueprints": torch.from_numpy(features).expand(batch, -1, -1, -1),
    }
    parts["slots"][..., PRESENT] = 1.0
    return flatten_observation(parts, draw(policy.privileged_features))


def random_growth_masks(layout: ActionLayout, batch: int, generator: torch.Generator) -> Tensor:
    """Masks (batch, width) that keep the rules: WAIT is legal, an operation where some slot allows it."""
    sizes = dict(zip(layout.names, layout.sizes, strict=True))
    slots = sizes["slot"]

    def draw(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=generator) < 0.4

    slot = draw(sizes["op"], slots)
    slot[:, 0] = False  # WAIT points at no slot
    op = slot.any(-1)
    op[:, 0] = True
    conditional = {}
    for name in ("blueprint", "style", "alpha_target"):
        rows = draw(slots, sizes[name])
        rows[..., 0] |= ~rows.any(-1)  # every slot keeps a choice
        conditional[name] = rows
    return layout.flatten_masks({"op": op, "slot": slot, **conditional})


@dataclass(slots=True)
class SyntheticGrowth:
    """Random observations, rewards, masks and ends in `num_envs` envs."""

    policy: GrowthPolicy
    num_envs: int
    generator: torch.Generator
    end_probability: float = 0.02
    device: torch.device | str = "cpu"

    def observation(self) -> Tensor:
        return random_growth_observation(self.policy, self.num_envs, self.generator).to(self.device)

    def mask(self) -> Tensor:
        return random_growth_masks(self.policy.layout, self.num_envs, self.generator).to(self.device)

    def reward(self) -> Tensor:
        return torch.randn(self.num_envs, generator=self.generator).to(self.device)

    def ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(terminated, truncated), never both."""
        draw = torch.rand(2, self.num_envs, generator=self.generator) < self.end_probability
        terminated: NDArray[np.bool_] = draw[0].numpy()
        return terminated, draw[1].numpy() & ~terminated

    def fill(self, agent: PPOAgent) -> Tensor:
        """Fill the agent's rollout; returns the observation after it, for `update`."""
        while not agent.ready:
            agent.act(self.observation(), self.mask())
            terminated, truncated = self.ends()
            agent.observe(self.reward(), terminated, truncated, final_observation=self.observation())
        return self.observation()
