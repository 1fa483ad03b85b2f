"""The growth controller's network: any number of slots, any list of blueprints, one LSTM.

No parameter's shape depends on how many slots or blueprints there are: slots share one encoder and are
pointed at, blueprints are scored by their features.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from esper.leyline import HEAD_NAMES, BlueprintCard, BlueprintKind
from esper.tamiyo.encoding import one_hot_or_zeros, relevant_choices, symlog
from esper.tamiyo.initialisation import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    VALUE_GAIN,
    orthogonal_linear,
    orthogonal_lstm,
    orthogonal_mlp,
)
from esper.tamiyo.layout import ActionLayout
from esper.tamiyo.policy import Policy, PolicyInputs, PolicyOutput
from esper.tamiyo.sequences import SequencePlan, advance, replay

BLUEPRINT_FEATURES = len(BlueprintKind) + 2
"""Kind one-hot, log relative parameter cost, and whether the blueprint is offered at the slot."""


def blueprint_features(
    cards: Sequence[Sequence[BlueprintCard]], names: Sequence[str], host_parameters: int
) -> Tensor:
    """Features (slot, blueprint, feature) of the cards each slot offers, blueprints in the order of `names`.

    cost = log(1 + 100 parameters / host parameters). What a slot does not offer has all features 0.
    """
    if host_parameters < 1:
        raise ValueError(f"host_parameters is {host_parameters}; expected >= 1")
    features = torch.zeros(len(cards), len(names), BLUEPRINT_FEATURES)
    kinds = list(BlueprintKind)
    for slot, offered in enumerate(cards):
        for card in offered:
            if card.name not in names:
                raise ValueError(f"slot {slot} offers {card.name!r}, which is not among {', '.join(names)}")
            row = features[slot, names.index(card.name)]
            row[kinds.index(card.kind)] = 1.0
            row[-2] = math.log1p(100.0 * card.parameters / host_parameters)
            row[-1] = 1.0
    return features


class BlueprintPointer(nn.Module):
    """Scores (slot, blueprint) by a query from the slot against keys from the blueprint's features."""

    def __init__(self, width: int, key_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.query = orthogonal_linear(width, key_size, POLICY_GAIN, generator)
        self.keys = orthogonal_mlp((BLUEPRINT_FEATURES, width, key_size), generator)
        self.scale = key_size**-0.5

    def forward(self, slots: Tensor, features: Tensor) -> Tensor:
        query = self.query(slots)  # (step, slot, key)
        scores: Tensor = torch.einsum("nsk,sbk->nsb", query, self.keys(features)) * self.scale
        return scores


class SlotPointer(nn.Module):
    """Scores (op, slot) by one query per operation against keys from the slots."""

    def __init__(self, context: int, width: int, ops: int, key_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.query = orthogonal_linear(context, ops * key_size, POLICY_GAIN, generator)
        self.keys = orthogonal_linear(width, key_size, HIDDEN_GAIN, generator)
        # The op's own taste for a slot's features, whatever the context says.
        self.bias = orthogonal_linear(width, ops, POLICY_GAIN, generator)
        self.ops = ops
        self.scale = key_size**-0.5

    def forward(self, context: Tensor, slots: Tensor) -> Tensor:
        query = self.query(context).unflatten(-1, (self.ops, -1))  # (step, op, key)
        scores: Tensor = torch.einsum("nok,nsk->nos", query, self.keys(slots)) * self.scale
        bias: Tensor = self.bias(slots)
        return scores + bias.transpose(-1, -2)


class GrowthActor(nn.Module):
    """All heads' rows at once, in the flat layout: op; slot given op; the rest given slot or given op."""

    def __init__(
        self, context: int, width: int, layout: ActionLayout, key_size: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layout = layout
        self.slot_trunk = orthogonal_mlp((context + width, width), generator)
        ops = layout.sizes[0]
        self.heads = nn.ModuleDict()
        for name, size in zip(layout.names, layout.sizes, strict=True):
            parent = layout.parents.get(name)
            if name == "slot":
                self.heads[name] = SlotPointer(context, width, ops, key_size, generator)
            elif name == "blueprint":
                self.heads[name] = BlueprintPointer(width, key_size, generator)
            elif parent == "slot":
                self.heads[name] = orthogonal_linear(width, size, POLICY_GAIN, generator)
            else:
                rows = ops if parent == "op" else 1
                self.heads[name] = orthogonal_linear(context, rows * size, POLICY_GAIN, generator)

    def forward(self, context: Tensor, slots: Tensor, blueprints: Tensor) -> Tensor:
        """(step, context), (step, slot, width), (slot, blueprint, feature) -> (step, layout.width)."""
        wide = context.unsqueeze(1).expand(-1, slots.shape[1], -1)
        chosen = self.slot_trunk(torch.cat((wide, slots), dim=-1))  # (step, slot, width): a slot, in context
        blocks = []
        for name, head in self.heads.items():
            if name == "slot":
                block = head(context, chosen)
            elif name == "blueprint":
                block = head(chosen, blueprints)
            else:
                block = head(chosen if self.layout.parents.get(name) == "slot" else context)
            blocks.append(block.float().flatten(1))
        return torch.cat(blocks, dim=-1)


class GrowthPolicy(Policy):
    """Observation (host features, then slot features slot by slot, then what only the critic may see).

    >>> GrowthPolicy(growth_layout(slots, blueprints=13), host_features=16, slot_features=20,
    ...              blueprints=blueprint_features(cards, names, host_parameters), generator=generator)
    """

    blueprints: Tensor
    relevance: Tensor

    def __init__(
        self,
        layout: ActionLayout,
        *,
        host_features: int,
        slot_features: int,
        blueprints: Tensor,
        privileged_features: int = 0,
        hidden_size: int = 128,
        width: int = 64,
        key_size: int = 32,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if layout.names != HEAD_NAMES or layout.slot_config is None:
            raise ValueError(f"layout has heads {layout.names}; make it with growth_layout")
        self.layout = layout
        self.slot_count = len(layout.slot_config)
        self.host_features, self.slot_features = host_features, slot_features
        self.privileged_features = privileged_features
        self.observation_size = host_features + self.slot_count * slot_features + privileged_features
        self.hidden_size = hidden_size
        self.uses_previous = True
        self._check_blueprints(blueprints)
        self.register_buffer("blueprints", blueprints.float(), persistent=False)
        self.register_buffer("relevance", layout.relevance.clone(), persistent=False)
        ops = layout.sizes[0]
        # Each slot also sees whether it was acted on in the step before.
        self.slot_encoder = orthogonal_mlp((slot_features + 1, width, width), generator)
        inputs = host_features + 2 * width + ops + BLUEPRINT_FEATURES + 1
        self.joint_encoder = orthogonal_mlp((inputs, hidden_size), generator)
        self.lstm = orthogonal_lstm(hidden_size, hidden_size, generator)
        self.lstm_ln = nn.LayerNorm(hidden_size)
        self.actor = GrowthActor(hidden_size, width, layout, key_size, generator)
        self.critic = nn.Sequential(
            *orthogonal_mlp((hidden_size + privileged_features, width), generator),
            orthogonal_linear(width, 1, VALUE_GAIN, generator),
        )

    def forward(
        self, inputs: PolicyInputs, initial_hidden: Tensor | None = None, plan: SequencePlan | None = None
    ) -> PolicyOutput:
        if initial_hidden is None or plan is None:
            raise ValueError(
                "initial_hidden and plan are missing: a recurrent policy replays whole sequences"
            )
        joint, slots, privileged = self._encode(inputs)
        return self._heads(replay(self.lstm, joint, initial_hidden, plan), slots, privileged)

    def step(self, inputs: PolicyInputs, hidden: Tensor) -> tuple[PolicyOutput, Tensor]:
        joint, slots, privileged = self._encode(inputs)
        hidden = advance(self.lstm, joint, hidden)
        return self._heads(hidden[0], slots, privileged), hidden

    def _encode(self, inputs: PolicyInputs) -> tuple[Tensor, Tensor, Tensor]:
        """The LSTM's input (step, hidden), the slots (step, slot, width), what only the critic sees."""
        observation = inputs.observation
        if observation.shape[-1] != self.observation_size:
            raise ValueError(
                f"observation has {observation.shape[-1]} features; "
                f"{self.slot_count} slots need {self.observation_size}"
            )
        slots_end = self.host_features + self.slot_count * self.slot_features
        host = observation[..., : self.host_features]
        slots = observation[..., self.host_features : slots_end]
        privileged = observation[..., slots_end:]
        choices = relevant_choices(inputs.previous_action, self.relevance)
        previous = dict(zip(HEAD_NAMES, choices.unbind(-1), strict=True))
        acted_on = one_hot_or_zeros(previous["slot"], self.slot_count)  # (step, slot)
        encoded = self.slot_encoder(
            torch.cat(
                (slots.reshape(-1, self.slot_count, self.slot_features), acted_on.unsqueeze(-1)), dim=-1
            )
        )
        planted = one_hot_or_zeros(previous["blueprint"], self.blueprints.shape[1])  # (step, blueprint)
        parts = (
            host,
            encoded.mean(dim=1),
            encoded.amax(dim=1),
            one_hot_or_zeros(previous["op"], self.layout.sizes[0]),
            torch.einsum("ns,nb,sbf->nf", acted_on, planted, self.blueprints),
            symlog(inputs.previous_reward).unsqueeze(-1),
        )
        return self.joint_encoder(torch.cat(parts, dim=-1)), encoded, privileged

    def _heads(self, memory: Tensor, slots: Tensor, privileged: Tensor) -> PolicyOutput:
        context = self.lstm_ln(memory)
        value = self.critic(torch.cat((context, privileged), dim=-1)).squeeze(-1)
        return PolicyOutput(self.actor(context, slots, self.blueprints), value.float())

    def _check_blueprints(self, blueprints: Tensor) -> None:
        sizes: Mapping[str, int] = dict(zip(self.layout.names, self.layout.sizes, strict=True))
        expected = (self.slot_count, sizes["blueprint"], BLUEPRINT_FEATURES)
        if tuple(blueprints.shape) != expected:
            raise ValueError(f"blueprints has shape {tuple(blueprints.shape)}; expected {expected}")
