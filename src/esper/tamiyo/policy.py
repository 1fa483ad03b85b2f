"""What every policy network is to the learner: flat logits and a value, by step or by whole sequences.

Sequences are replayed through an LSTM in one pass, split at resets, without a loop over time.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.tamiyo.distributions import FactoredDistribution, HeadEvaluation, LayoutTensors
from esper.tamiyo.layout import ActionLayout


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """Where each step of a flat batch goes in a time-major block (length, segment).

    A segment runs from a reset (or the start of a row) to the next reset (or the end of the row). The first
    segment of each row continues from the row's stored hidden state; the others start from zeros.
    """

    position: Tensor
    """(step,) int64: time * segments + segment."""
    first_segments: Tensor
    """(row,) int64: the segment each row begins with."""
    segments: int
    length: int
    """Steps of the longest segment."""

    @staticmethod
    def build(
        resets: NDArray[np.bool_], row_lengths: NDArray[np.int64], device: torch.device
    ) -> "SequencePlan":
        """resets (step,) over rows laid end to end; row_lengths (row,), each at least 1."""
        if int(row_lengths.sum()) != len(resets) or (row_lengths < 1).any():
            raise ValueError(
                f"row_lengths {row_lengths.tolist()} do not add up to {len(resets)} steps of rows >= 1"
            )
        row_starts = np.concatenate([[0], np.cumsum(row_lengths)[:-1]])
        begins = resets.copy()
        begins[row_starts] = True
        segment = np.cumsum(begins) - 1
        segment_starts = np.flatnonzero(begins)
        time = np.arange(len(resets)) - segment_starts[segment]
        segments = len(segment_starts)
        position = torch.from_numpy(time * segments + segment)
        first = torch.from_numpy(segment[row_starts])
        return SequencePlan(
            position=position.to(device, non_blocking=True),
            first_segments=first.to(device, non_blocking=True),
            segments=segments,
            length=int(time.max()) + 1,
        )


def replay(lstm: nn.LSTM, inputs: Tensor, initial_hidden: Tensor, plan: SequencePlan) -> Tensor:
    """LSTM outputs (step, hidden) of inputs (step, feature), from initial_hidden (2 layers, row, hidden)."""
    steps, features = inputs.shape
    if plan.position.shape != (steps,) or initial_hidden.shape[1:] != (
        len(plan.first_segments),
        lstm.hidden_size,
    ):
        raise ValueError(
            f"inputs {tuple(inputs.shape)} and initial_hidden {tuple(initial_hidden.shape)} do not fit "
            f"a plan of {len(plan.position)} steps in {len(plan.first_segments)} rows"
        )
    with fp32(inputs.device):  # the recurrence stays in fp32
        block = inputs.new_zeros(plan.length * plan.segments, features, dtype=torch.float32)
        block = block.index_copy(0, plan.position, inputs.float())
        start = initial_hidden.new_zeros(2 * lstm.num_layers, plan.segments, lstm.hidden_size)
        start = start.index_copy(1, plan.first_segments, initial_hidden)
        outputs: Tensor
        outputs, _ = lstm(block.view(plan.length, plan.segments, features), start.chunk(2))
        return outputs.flatten(0, 1).index_select(0, plan.position)


def advance(lstm: nn.LSTM, inputs: Tensor, hidden: Tensor) -> Tensor:
    """One step for a batch: inputs (env, feature), hidden (2 layers, env, hidden) -> the next hidden.

    hidden is h of every layer, then c of every layer. The fused cell on the LSTM's own weights: several times faster
    than the LSTM at length 1.
    """
    states: list[tuple[Tensor, Tensor]] = []
    with fp32(inputs.device):
        below = inputs.float()
        for h, c, weights in zip(*hidden.chunk(2), lstm.all_weights, strict=True):
            states.append(torch.lstm_cell(below, (h, c), *weights))
            below = states[-1][0]
        return torch.stack([part for parts in zip(*states, strict=True) for part in parts])


def fp32(device: torch.device) -> AbstractContextManager[object]:
    """Autocast off, at no cost where it is not on."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def unwrap(policy: "Policy") -> "Policy":
    """The policy behind a `torch.compile`d one, for saving, parameter groups and inspection."""
    original = getattr(policy, "_orig_mod", policy)
    if not isinstance(original, Policy):
        raise TypeError(f"policy is a {type(original).__name__}; expected a Policy, compiled or not")
    return original


def without_critic(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of a policy's named tensors that acting needs."""
    return {name: value for name, value in tensors.items() if not name.startswith("critic.")}


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)"""
    return torch.sign(x) * torch.log1p(x.abs())


def one_hot_or_zeros(choices: Tensor, size: int) -> Tensor:
    """(...) int64 -> (..., size) float32; NO_ACTION gives zeros."""
    return choices.unsqueeze(-1).eq(torch.arange(size, device=choices.device)).float()


def relevant_choices(actions: Tensor, relevance: Tensor) -> Tensor:
    """actions (step, head) with NO_ACTION where the first head's choice made a head irrelevant.

    relevance is (choice of the first head, head) bool. An irrelevant head's 0 stands for no choice.
    """
    relevant = relevance[actions[:, 0].clamp_min(0)]
    return torch.where(relevant, actions, NO_ACTION)


HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0
"""Of orthogonal initialisation: hidden layers, policy outputs, the value output."""


def orthogonal_linear(
    in_features: int, out_features: int, gain: float, generator: torch.Generator
) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and zero bias."""
    # From meta, so that the global generator is left alone.
    layer = nn.Linear(in_features, out_features, device="meta").to_empty(device="cpu")
    with torch.no_grad():  # not inference_mode: writes parameters that are trained
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        layer.bias.zero_()
    return layer


def orthogonal_mlp(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """Linear and tanh alternating, from sizes[0] to sizes[-1]; the last layer is hidden too."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [orthogonal_linear(fan_in, fan_out, HIDDEN_GAIN, generator), nn.Tanh()]
    return nn.Sequential(*layers)


def value_network(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """An `orthogonal_mlp` with one linear output."""
    return nn.Sequential(
        *orthogonal_mlp(sizes, generator), orthogonal_linear(sizes[-1], 1, VALUE_GAIN, generator)
    )


def orthogonal_lstm(
    input_size: int, hidden_size: int, generator: torch.Generator, num_layers: int = 1
) -> nn.LSTM:
    """An LSTM whose gates have orthogonal weights (gain 1) and zero bias."""
    lstm = nn.LSTM(input_size, hidden_size, num_layers, device="meta").to_empty(device="cpu")
    with torch.no_grad():  # not inference_mode: writes parameters that are trained
        for weight_ih, weight_hh, bias_ih, bias_hh in lstm.all_weights:
            for weight in (weight_ih, weight_hh):
                for gate in weight.chunk(4):
                    nn.init.orthogonal_(gate, generator=generator)
            bias_ih.zero_()
            bias_hh.zero_()
    return lstm


NO_ACTION = -1
"""Previous action at the start of an episode."""


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What a policy sees at each of a batch of steps."""

    observation: Tensor
    """(step, feature) float32."""
    previous_action: Tensor
    """(step, head) int64; NO_ACTION where an episode begins."""
    previous_reward: Tensor
    """(step,) float32; 0 where an episode begins."""


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What a policy's network returns for each of a batch of steps."""

    logits: Tensor
    """(step, layout.width), in the flat layout of `ActionLayout`."""
    value: Tensor
    """(step,) float32: V(s). It does not see the action."""


@dataclass(slots=True)
class ActorState:
    """All that acting carries from step to step, for each env."""

    hidden: Tensor
    """(2 layers, env, hidden): h of each of the LSTM's layers, then c of each; hidden is 0 without memory."""
    previous_action: Tensor
    """(env, head) int64."""
    previous_reward: Tensor
    """(env,) float32."""

    @staticmethod
    def initial(policy: "Policy", num_envs: int, device: torch.device) -> "ActorState":
        """The state in which every env begins an episode."""
        return ActorState(
            hidden=policy.initial_hidden(num_envs).to(device),
            previous_action=torch.full((num_envs, policy.layout.head_count), NO_ACTION, device=device),
            previous_reward=torch.zeros(num_envs, device=device),
        )

    def reset(self, begins: Tensor) -> None:
        """Forget everything in the envs where `begins` (env,) bool is True."""
        self.hidden = self.hidden.masked_fill(begins.unsqueeze(-1), 0.0)
        self.previous_action = self.previous_action.masked_fill(begins.unsqueeze(-1), NO_ACTION)
        self.previous_reward = self.previous_reward.masked_fill(begins, 0.0)

    def restore(self, before: "ActorState", where: Tensor) -> None:
        """Go back to `before` in the envs where `where` (env,) bool is True."""
        column = where.unsqueeze(-1)
        self.hidden = torch.where(column, before.hidden, self.hidden)
        self.previous_action = torch.where(column, before.previous_action, self.previous_action)
        self.previous_reward = torch.where(where, before.previous_reward, self.previous_reward)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of every tensor."""
        return {each.name: getattr(self, each.name).clone() for each in fields(self)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state_dict` of as many envs and a policy of the same sizes."""
        for name, current in self.state_dict().items():
            if state[name].shape != current.shape:
                raise ValueError(
                    f"{name} has shape {tuple(state[name].shape)}; expected {tuple(current.shape)}"
                )
        for name, current in self.state_dict().items():
            setattr(self, name, state[name].to(current.device).clone())


class Policy(nn.Module, ABC):
    """An actor and a critic over one `ActionLayout`.

    Subclasses put everything that only serves the actor under `self.actor` (with one entry per head in
    `self.actor.heads`), everything that only serves the critic under `self.critic`, and the rest beside them.
    """

    layout: ActionLayout
    observation_size: int
    hidden_size: int
    """Width of the recurrent state; 0 without memory."""
    num_lstm_layers: int = 1
    """Layers of the recurrent state."""
    uses_previous: bool
    """Whether the previous action and reward are inputs."""
    privileged_features: int = 0
    """The last features of an observation, which only the critic sees."""
    exploration_floor: float = 0.0
    """e of the mixture (1 - e) pi + e uniform(legal)."""
    _constants: LayoutTensors | None = None

    @abstractmethod
    def forward(
        self, inputs: PolicyInputs, initial_hidden: Tensor | None = None, plan: SequencePlan | None = None
    ) -> PolicyOutput:
        """Steps of a rollout; with memory whole sequences, laid out by `plan` from `initial_hidden`."""

    @abstractmethod
    def step(self, inputs: PolicyInputs, hidden: Tensor) -> tuple[PolicyOutput, Tensor]:
        """One step in each env, from hidden (2 layers, env, h) to the next hidden."""

    def initial_hidden(self, num_envs: int) -> Tensor:
        """Zeros (2 layers, env, hidden), where episodes begin; on the CPU."""
        return torch.zeros(2 * self.num_lstm_layers, num_envs, self.hidden_size)

    def fixed_scales(self) -> Tensor:
        """(feature,) bool: observations that running statistics must leave as they are, such as bits."""
        return torch.zeros(self.observation_size, dtype=torch.bool)

    @property
    def recurrent(self) -> bool:
        """Whether it has a memory."""
        return self.hidden_size > 0

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    def distribution(self, logits: Tensor, mask: Tensor) -> FactoredDistribution:
        """The one way from logits and masks to actions and log-probabilities."""
        if self._constants is None or self._constants.relevance.device != logits.device:
            self._constants = LayoutTensors(self.layout, logits.device)
        return FactoredDistribution(self._constants, logits, mask, floor=self.exploration_floor)

    @torch.inference_mode()
    def choose(
        self, observation: Tensor, mask: Tensor, state: ActorState, generator: torch.Generator | None
    ) -> tuple[Tensor, PolicyOutput, Tensor]:
        """Actions (env, head), what the network said, and the next hidden; greedy without a generator."""
        inputs = PolicyInputs(observation, state.previous_action, state.previous_reward)
        output, hidden = self.step(inputs, state.hidden)
        distribution = self.distribution(output.logits, mask)
        actions = distribution.mode() if generator is None else distribution.sample(generator)
        return actions, output, hidden

    @torch.inference_mode()
    def get_action_batch(
        self,
        observation: Tensor,
        mask: Tensor,
        state: ActorState,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, HeadEvaluation, Tensor, Tensor]:
        """Act in every env: observation (env, feature), mask (env, width).

        Returns actions (env, head), their evaluation, values (env,) and the next hidden. Without a generator
        the greedy choice is taken. The state is left alone: `Actor` and `PPOAgent` move it.
        """
        actions, output, hidden = self.choose(observation, mask, state, generator)
        evaluation = self.distribution(output.logits, mask).evaluate(actions)
        return actions, evaluation, output.value, hidden

    @torch.inference_mode()
    def get_action(
        self,
        observation: Tensor,
        mask: Tensor,
        state: ActorState,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Act in one env: observation (feature,), mask (width,) -> action (head,), next hidden."""
        actions, _, hidden = self.choose(observation.unsqueeze(0), mask.unsqueeze(0), state, generator)
        return actions.squeeze(0), hidden

    def evaluate_actions(
        self,
        inputs: PolicyInputs,
        mask: Tensor,
        actions: Tensor,
        initial_hidden: Tensor | None = None,
        plan: SequencePlan | None = None,
    ) -> tuple[HeadEvaluation, Tensor]:
        """Log-probs and entropies (step, head), and values (step,), with gradients."""
        output = self(inputs, initial_hidden, plan)
        return self.distribution(output.logits, mask).evaluate(actions), output.value

    def named_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once, as actor, shared or critic."""
        groups: dict[str, list[nn.Parameter]] = {"actor": [], "shared": [], "critic": []}
        for name, parameter in self.named_parameters():
            part = name.split(".", 1)[0]
            groups[part if part in ("actor", "critic") else "shared"].append(parameter)
        return groups

    def head_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(head, parameter) for every parameter that serves one head only."""
        for name, parameter in self.named_parameters():
            if name.startswith("actor.heads."):
                yield name.split(".")[2], parameter


class RecurrentPolicy(Policy):
    """A policy whose memory is one LSTM, `self.lstm`, between an encoder and the heads."""

    lstm: nn.LSTM

    @abstractmethod
    def encode(self, inputs: PolicyInputs) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The LSTM's input (step, feature), and what else the heads need."""

    @abstractmethod
    def decode(self, memory: Tensor, others: tuple[Tensor, ...]) -> PolicyOutput:
        """Logits and values from the LSTM's output (step, hidden) and what else `encode` returned."""

    def forward(
        self, inputs: PolicyInputs, initial_hidden: Tensor | None = None, plan: SequencePlan | None = None
    ) -> PolicyOutput:
        """Replay whole sequences, laid out by `plan` from `initial_hidden`; both are needed."""
        if initial_hidden is None or plan is None:
            raise ValueError(
                "initial_hidden and plan are missing: a recurrent policy replays whole sequences"
            )
        features, others = self.encode(inputs)
        return self.decode(replay(self.lstm, features, initial_hidden, plan), others)

    def step(self, inputs: PolicyInputs, hidden: Tensor) -> tuple[PolicyOutput, Tensor]:
        """One step in each env, from hidden (2 layers, env, h) to the next hidden."""
        features, others = self.encode(inputs)
        hidden = advance(self.lstm, features, hidden)
        return self.decode(hidden[self.num_lstm_layers - 1], others), hidden
