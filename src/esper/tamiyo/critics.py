"""Critics that stand beside a policy: what a state is worth, and what an action in it is worth.

Both read episodes as the policy does, with a memory of their own. An action enters as what it does: the operation,
the slot as it was read, the blueprint by its features, and the ways it is done. Heads that the operation makes
irrelevant enter as nothing, so that two actions which do the same are worth the same.
"""

from abc import ABC, abstractmethod
from itertools import pairwise

import torch
from torch import Tensor, nn

from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import BLUEPRINT_FEATURES, host_features
from esper.tamiyo.layout import ActionLayout, growth_actions
from esper.tamiyo.networks import GrowthReader
from esper.tamiyo.policy import (
    HIDDEN_GAIN,
    VALUE_GAIN,
    PolicyInputs,
    SequencePlan,
    one_hot_or_zeros,
    orthogonal_linear,
    relevant_choices,
    replay,
    value_network,
)

Parts = tuple[Tensor, ...]
WIDTH, BOUNDED_WIDTH = 128, 64
"""Of the hidden layers of heads."""


class CriticBody(nn.Module, ABC):
    """Turns what was seen into numbers that a critic's last layers read."""

    state_size: int
    """Numbers that stand for a state."""
    action_size: int
    """Numbers that stand for an action."""
    privileged_features: int
    """The last features of an observation, which the policy does not see."""

    @abstractmethod
    def read(self, inputs: PolicyInputs, plan: SequencePlan) -> tuple[Tensor, Parts]:
        """Whole episodes -> states (step, state_size), and what `embed` needs of them."""

    @abstractmethod
    def embed(self, action: Tensor, parts: Parts) -> Tensor:
        """Actions (step, head), taken in these states -> (step, action_size)."""


class FlatBody(CriticBody):
    """Observations as they are, without memory, and one-hot choices: for plain environments."""

    relevance: Tensor

    def __init__(self, observation_size: int, layout: ActionLayout) -> None:
        super().__init__()
        self.layout, self.privileged_features = layout, 0
        self.state_size, self.action_size = observation_size, sum(layout.sizes)
        self.register_buffer("relevance", layout.relevance.clone(), persistent=False)

    def read(self, inputs: PolicyInputs, plan: SequencePlan) -> tuple[Tensor, Parts]:
        """The observation itself."""
        del plan
        return inputs.observation, ()

    def embed(self, action: Tensor, parts: Parts) -> Tensor:
        """One-hot, head after head; zeros where a head is irrelevant."""
        del parts
        choices = relevant_choices(action, self.relevance)
        return torch.cat(
            [one_hot_or_zeros(choices[:, head], size) for head, size in enumerate(self.layout.sizes)], dim=-1
        )


class GrowthBody(GrowthReader, CriticBody):
    """Growth: the reader of `GrowthPolicy`, with weights of its own."""

    def __init__(
        self,
        space: GrowthSpace,
        *,
        privileged_features: int = 0,
        hidden_size: int = 128,
        num_lstm_layers: int = 1,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            space,
            privileged_features=privileged_features,
            hidden_size=hidden_size,
            num_lstm_layers=num_lstm_layers,
            generator=generator,
        )
        self.state_size = hidden_size + len(host_features(space)) + privileged_features
        self.action_size = self.layout.sizes[0] + self.width + BLUEPRINT_FEATURES + self.ways.shape[1]

    def read(self, inputs: PolicyInputs, plan: SequencePlan) -> tuple[Tensor, Parts]:
        """The memory after each step, the host as it is seen in it, and what only critics see; slots and blueprints.

        What is best may change with a small difference between hosts, which a memory blurs.
        """
        features, (slots, blueprints, privileged) = self.encode(inputs)
        host = inputs.observation[:, : len(host_features(self.space))]
        start = features.new_zeros(2 * self.num_lstm_layers, len(plan.first_segments), self.hidden_size)
        memory = self.lstm_ln(replay(self.lstm, features, start, plan))
        return torch.cat((memory, host, privileged), dim=-1), (slots, blueprints)

    def embed(self, action: Tensor, parts: Parts) -> Tensor:
        """Operation, the slot it is done to, the blueprint planted there, and how; zeros for what is not used."""
        slots, blueprints = parts
        choices = relevant_choices(action, self.relevance)
        chosen = growth_actions(choices)
        steps = torch.arange(len(action), device=action.device)
        slot, blueprint = chosen["slot"], chosen["blueprint"]
        acted_on = slots[steps, slot.clamp_min(0)]  # (step, width)
        planted = blueprints[steps, slot.clamp_min(0), blueprint.clamp_min(0)]  # (step, feature)
        way_heads, way_choices = self.ways
        return torch.cat(
            (
                one_hot_or_zeros(chosen["op"], self.layout.sizes[0]),
                acted_on.masked_fill((slot < 0).unsqueeze(-1), 0.0),
                planted.masked_fill((blueprint < 0).unsqueeze(-1), 0.0),
                choices.index_select(-1, way_heads).eq(way_choices).float(),
            ),
            dim=-1,
        )


def critic_head(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """Linear and SiLU alternating, and one linear output.

    With tanh and no bias a network begins as an odd function of what it sees, and what pays between two extremes, and
    at neither, is learned last.
    """
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [orthogonal_linear(fan_in, fan_out, HIDDEN_GAIN, generator), nn.SiLU()]
    return nn.Sequential(*layers, orthogonal_linear(sizes[-1], 1, VALUE_GAIN, generator))


class VNetwork(nn.Module):
    """V(s): what is to come from a state."""

    def __init__(self, body: CriticBody, *, generator: torch.Generator) -> None:
        super().__init__()
        self.body = body
        self.head = critic_head((body.state_size, WIDTH, WIDTH), generator)

    def forward(self, inputs: PolicyInputs, plan: SequencePlan) -> Tensor:
        """Whole episodes -> (step,)."""
        state, _ = self.body.read(inputs, plan)
        return self.worth(state)

    def worth(self, state: Tensor) -> Tensor:
        """The same for states that were read, (step, state_size) -> (step,)."""
        value: Tensor = self.head(state).squeeze(-1)
        return value


class QNetwork(nn.Module):
    """Q(s, a), twice: what is to come from an action in a state, by two heads over one body.

    The smaller of the two answers is not inflated by chance.

    bounded  narrower heads of tanh, which do not go beyond what they have learned: for a Q that is asked about
             actions nobody took, and learns from its own answers
    """

    def __init__(self, body: CriticBody, *, generator: torch.Generator, bounded: bool = False) -> None:
        super().__init__()
        self.body = body
        width, head = (BOUNDED_WIDTH, value_network) if bounded else (WIDTH, critic_head)
        sizes = (body.state_size + body.action_size, width, width)
        self.heads = nn.ModuleList(head(sizes, generator) for _ in range(2))

    def forward(self, inputs: PolicyInputs, plan: SequencePlan, action: Tensor) -> Tensor:
        """Whole episodes with the actions (step, head) taken in them -> (2, step)."""
        state, parts = self.body.read(inputs, plan)
        return self.worth(state, parts, action)

    def worth(self, state: Tensor, parts: Parts, action: Tensor) -> Tensor:
        """The same for states that were read, (step, state_size) -> (2, step)."""
        joint = torch.cat((state, self.body.embed(action, parts)), dim=-1)
        return torch.stack([head(joint).squeeze(-1) for head in self.heads])
