"""The networks that decide: the growth controller's, and plain ones for other environments.

A growth policy takes any number of slots and any list of blueprints, and has an LSTM. No parameter's shape depends on
how many slots or blueprints there are: slots share one encoder and are pointed at, blueprints are scored by their
features. Both come with the observation, so hosts of different kinds can share a batch.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from esper.leyline import HEAD_NAMES, operations
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import (
    BLUEPRINT_FEATURES,
    PRESENT,
    SIGHT,
    SLOT_FEATURES_SEEN,
    Sight,
    fixed_scales,
    host_features,
    observation_parts,
    observation_size,
    slot_features_read,
)
from esper.tamiyo.layout import ActionLayout, growth_actions
from esper.tamiyo.policy import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    Policy,
    PolicyInputs,
    PolicyOutput,
    RecurrentPolicy,
    SequencePlan,
    one_hot_or_zeros,
    orthogonal_linear,
    orthogonal_lstm,
    orthogonal_mlp,
    relevant_choices,
    symlog,
    value_network,
)

_WAYS = HEAD_NAMES[3:]
"""The heads that say how an operation is done, not which one, where or with what."""


class BlueprintPointer(nn.Module):
    """Scores (slot, blueprint) by a query from the slot against keys from the blueprint's features."""

    def __init__(self, width: int, key_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.query = orthogonal_linear(width, key_size, POLICY_GAIN, generator)
        # One layer: a second linear one would only be part of the query, and cost as often as there are keys.
        self.keys = orthogonal_mlp((BLUEPRINT_FEATURES, key_size), generator)
        self.scale = key_size**-0.5

    def forward(self, slots: Tensor, features: Tensor) -> Tensor:
        """(step, slot, width), (step, slot, blueprint, feature) -> (step, slot, blueprint)."""
        query = self.query(slots)  # (step, slot, key)
        scores: Tensor = torch.einsum("nsk,nsbk->nsb", query, self.keys(features)) * self.scale
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
        """(step, context), (step, slot, width) -> (step, op, slot)."""
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
        """(step, context), (step, slot, width), (step, slot, blueprint, feature) -> (step, layout.width)."""
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


class GrowthReader(nn.Module):
    """Reads `flatten_observation` and the previous action and reward, step by step, into a memory.

    The same weights serve any space; padded slots change nothing of what is said of the others.

    sight: 2 reads all of the observation and of the previous action; 1 neither the slots' styles nor how the previous
    action was to be done (its style, tempo, alpha target, speed and curve).
    """

    relevance: Tensor
    """(op, head) -> whether the operation uses the head's choice."""
    ways: Tensor
    """(2, choice): every choice of `_WAYS` that is read, as a head and its choice; none with sight 1."""

    def __init__(
        self,
        space: GrowthSpace,
        *,
        privileged_features: int = 0,
        hidden_size: int = 128,
        num_lstm_layers: int = 1,
        width: int = 64,
        sight: Sight = SIGHT,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if (space.retire or space.units != "absolute") and sight != SIGHT:
            raise ValueError(
                f"sight is {sight}; a policy that may retire fossils, or observes in ratios, has sight {SIGHT}"
            )
        self.space, self.sight = space, sight
        self.layout = layout = space.action_layout
        self.privileged_features = privileged_features
        self.observation_size = observation_size(space) + privileged_features
        self.hidden_size, self.num_lstm_layers = hidden_size, num_lstm_layers
        self.width = width
        self._shapes = (*observation_parts(space).values(), (privileged_features,))
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self.register_buffer("relevance", layout.relevance.clone(), persistent=False)
        ways = [
            (head, choice)
            for head, size in enumerate(layout.sizes)
            for choice in range(size)
            if sight > 1 and layout.names[head] in _WAYS
        ]
        self.register_buffer("ways", torch.tensor(ways, dtype=torch.int64).view(-1, 2).T, persistent=False)
        self._slot_features = len(slot_features_read(space, sight))
        # Each slot also sees whether it was acted on in the step before.
        self.slot_encoder = orthogonal_mlp((self._slot_features + 1, width, width), generator)
        inputs = len(host_features(space)) + 2 * width + layout.sizes[0] + BLUEPRINT_FEATURES + 1 + len(ways)
        self.joint_encoder = orthogonal_mlp((inputs, hidden_size), generator)
        self.lstm = orthogonal_lstm(hidden_size, hidden_size, generator, num_lstm_layers)
        self.lstm_ln = nn.LayerNorm(hidden_size)

    def encode(self, inputs: PolicyInputs) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The LSTM's input (step, hidden); slots (step, slot, width), blueprints, and what only the critic sees."""
        host, slots, blueprints, privileged = self._split(inputs.observation)
        choices = relevant_choices(inputs.previous_action, self.relevance)
        previous = growth_actions(choices)
        acted_on = one_hot_or_zeros(previous["slot"], slots.shape[1])  # (step, slot)
        first, rest = slots[..., : self._slot_features].tensor_split((SLOT_FEATURES_SEEN[1],), dim=-1)
        encoded = self.slot_encoder(torch.cat((first, acted_on.unsqueeze(-1), rest), dim=-1))
        present = slots[..., PRESENT : PRESENT + 1]  # (step, slot, 1), 0 in padding
        planted = one_hot_or_zeros(previous["blueprint"], blueprints.shape[2])  # (step, blueprint)
        way_heads, way_choices = self.ways
        parts = (
            host,
            (encoded * present).sum(dim=1) / present.sum(dim=1).clamp_min(1.0),
            torch.where(present > 0, encoded, -1.0).amax(dim=1),  # tanh is never below -1
            one_hot_or_zeros(previous["op"], self.layout.sizes[0]),
            torch.einsum("nsb,nsbf->nf", acted_on.unsqueeze(-1) * planted.unsqueeze(1), blueprints),
            symlog(inputs.previous_reward).unsqueeze(-1),
            choices.index_select(-1, way_heads).eq(way_choices).float(),
        )
        return self.joint_encoder(torch.cat(parts, dim=-1)), (encoded, blueprints, privileged)

    def _split(self, observation: Tensor) -> tuple[Tensor, ...]:
        """host (step, feature), slots (step, slot, feature), blueprints (step, slot, blueprint, feature), rest."""
        if observation.shape[-1] != self.observation_size:
            raise ValueError(
                f"observation has {observation.shape[-1]} features; {self.space.slot_count} slots and "
                f"{len(self.space.blueprints)} blueprints need {self.observation_size}"
            )
        parts = observation.split(self._sizes, dim=-1)
        return tuple(part.unflatten(-1, shape) for part, shape in zip(parts, self._shapes, strict=True))


class GrowthPolicy(GrowthReader, RecurrentPolicy):
    """Sees `flatten_observation`: host | slots | blueprints | what only the critic may see.

    >>> GrowthPolicy(GrowthSpace.covering(hosts), generator=torch.Generator().manual_seed(0))
    """

    def __init__(
        self,
        space: GrowthSpace,
        *,
        privileged_features: int = 0,
        hidden_size: int = 128,
        num_lstm_layers: int = 1,
        width: int = 64,
        key_size: int = 32,
        sight: Sight = SIGHT,
        generator: torch.Generator,
    ) -> None:
        super().__init__(
            space,
            privileged_features=privileged_features,
            hidden_size=hidden_size,
            num_lstm_layers=num_lstm_layers,
            width=width,
            sight=sight,
            generator=generator,
        )
        self.key_size = key_size
        self.uses_previous = True
        self.actor = GrowthActor(hidden_size, width, self.layout, key_size, generator)
        self.critic = value_network((hidden_size + privileged_features, width), generator)

    @torch.no_grad()  # not inference_mode: writes a parameter that is trained
    def begin_leaning(self, logits: Mapping[str, float]) -> None:
        """Set what the operations' logits are before anything is learned (0 where not named)."""
        head, known = self.actor.heads["op"], operations(retire=self.space.retire)
        assert isinstance(head, nn.Linear)
        head.bias.copy_(head.bias.new_tensor([logits.get(op.name, 0.0) for op in known]))

    def fixed_scales(self) -> Tensor:
        """(feature,) bool: bits, shares, and what a host keeps for life."""
        return torch.cat((fixed_scales(self.space), torch.zeros(self.privileged_features, dtype=torch.bool)))

    def decode(self, memory: Tensor, others: tuple[Tensor, ...]) -> PolicyOutput:
        """Logits of every head and values from the normalised memory."""
        slots, blueprints, privileged = others
        context = self.lstm_ln(memory)
        value = self.critic(torch.cat((context, privileged), dim=-1)).squeeze(-1)
        return PolicyOutput(self.actor(context, slots, blueprints), value.float())


def widened(weights: Mapping[str, Tensor], to: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a policy in the shapes of one of more sight: inputs that it did not read come last, and count 0."""
    first = ("slot_encoder.0.weight", "joint_encoder.0.weight")
    more = {name: to[name].shape[1] - weights[name].shape[1] for name in first}
    return {**weights, **{name: nn.functional.pad(weights[name], (0, more[name])) for name in first}}


# Plain networks for flat observations: without memory, and with an LSTM


class FlatActor(nn.Module):
    """A hidden trunk and one linear output per head, concatenated in the flat layout."""

    def __init__(self, sizes: tuple[int, ...], layout: ActionLayout, generator: torch.Generator) -> None:
        super().__init__()
        self.trunk = orthogonal_mlp(sizes, generator)
        self.heads = nn.ModuleDict(
            {
                name: orthogonal_linear(sizes[-1], rows * size, POLICY_GAIN, generator)
                for name, rows, size in zip(layout.names, layout.rows, layout.sizes, strict=True)
            }
        )

    def forward(self, features: Tensor) -> Tensor:
        """(step, feature) -> (step, layout.width)."""
        hidden = self.trunk(features)
        rows = [head(hidden) for head in self.heads.values()]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1)


class ActorCritic(Policy):
    """Two separate MLPs, no memory.

    >>> ActorCritic(4, discrete_layout(2), generator=torch.Generator().manual_seed(0))
    """

    def __init__(
        self,
        observation_size: int,
        layout: ActionLayout,
        *,
        widths: tuple[int, ...] = (64, 64),
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.observation_size = observation_size
        self.hidden_size = 0
        self.uses_previous = False
        self.actor = FlatActor((observation_size, *widths), layout, generator)
        self.critic = value_network((observation_size, *widths), generator)

    def forward(
        self,
        inputs: PolicyInputs,
        initial_hidden: Tensor | None = None,  # noqa: ARG002 - the shared signature; there is no memory here
        plan: SequencePlan | None = None,  # noqa: ARG002
    ) -> PolicyOutput:
        """Logits and values of each step by itself."""
        observation = inputs.observation
        return PolicyOutput(self.actor(observation), self.critic(observation).squeeze(-1).float())

    def step(self, inputs: PolicyInputs, hidden: Tensor) -> tuple[PolicyOutput, Tensor]:
        """The same; the hidden state is empty."""
        return self(inputs), hidden


class RecurrentActorCritic(RecurrentPolicy):
    """An LSTM with a LayerNorm on its output, then an actor and a critic MLP.

    `uses_previous` adds the previous action (one-hot per relevant head) and reward (symlog) to the input.
    """

    relevance: Tensor

    def __init__(
        self,
        observation_size: int,
        layout: ActionLayout,
        *,
        hidden_size: int = 64,
        num_lstm_layers: int = 1,
        widths: tuple[int, ...] = (64,),
        uses_previous: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if hidden_size < 1:
            raise ValueError(f"hidden_size is {hidden_size}; expected >= 1 (use ActorCritic without memory)")
        self.layout = layout
        self.observation_size = observation_size
        self.hidden_size, self.num_lstm_layers = hidden_size, num_lstm_layers
        self.uses_previous = uses_previous
        extra = sum(layout.sizes) + 1 if uses_previous else 0
        self.register_buffer("relevance", layout.relevance.clone(), persistent=False)
        self.lstm = orthogonal_lstm(observation_size + extra, hidden_size, generator, num_lstm_layers)
        self.lstm_ln = nn.LayerNorm(hidden_size)
        self.actor = FlatActor((hidden_size, *widths), layout, generator)
        self.critic = value_network((hidden_size, *widths), generator)

    def encode(self, inputs: PolicyInputs) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The observation, with the previous reward and action where they are inputs."""
        if not self.uses_previous:
            return inputs.observation, ()
        parts = [inputs.observation, symlog(inputs.previous_reward).unsqueeze(-1)]
        choices = relevant_choices(inputs.previous_action, self.relevance)
        parts += [one_hot_or_zeros(choices[:, head], size) for head, size in enumerate(self.layout.sizes)]
        return torch.cat(parts, dim=-1), ()

    def decode(self, memory: Tensor, others: tuple[Tensor, ...]) -> PolicyOutput:  # noqa: ARG002 - there are none
        """Logits and values from the normalised memory."""
        features = self.lstm_ln(memory)
        return PolicyOutput(self.actor(features), self.critic(features).squeeze(-1).float())
