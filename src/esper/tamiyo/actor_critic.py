"""Plain networks for flat observations: without memory, and with an LSTM."""

import torch
from torch import Tensor, nn

from esper.tamiyo.layout import ActionLayout
from esper.tamiyo.policy import (
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
