"""The policy that a run started with, kept beside the one that learns: what it would have done at every step."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor

from esper.tamiyo import ActorState, Policy, PolicyInputs


class StartPolicy:
    """A frozen copy of a policy, with its own memory of the episodes that the other one plays.

    num_steps  steps of a rollout
    """

    def __init__(self, policy: Policy, *, num_envs: int, num_steps: int) -> None:
        self.policy = deepcopy(policy).requires_grad_(False)
        device = policy.device
        self.logits = torch.zeros(num_envs, num_steps, policy.layout.width, device=device)
        """(env, step, width): what it said in the steps of the rollout so far."""
        self._hidden = policy.initial_hidden(num_envs).to(device)
        self._before = self._hidden

    @torch.inference_mode()
    def look(self, observation: Tensor, state: ActorState, step: int) -> None:
        """See a step of every env as the other policy does: observation (env, feature), last action and reward."""
        inputs = PolicyInputs(observation, state.previous_action, state.previous_reward)
        self._before = self._hidden
        output, hidden = self.policy.step(inputs, self._hidden)
        self._hidden = hidden.float()
        self.logits[:, step] = output.logits

    def forget(self, lost: Tensor | None, ended: Tensor) -> None:
        """Take back the last step where it was `lost`, and begin anew where its episode `ended`, both (env,) bool."""
        if lost is not None:
            self._hidden = torch.where(lost.unsqueeze(-1), self._before, self._hidden)
        self._hidden = self._hidden.masked_fill(ended.unsqueeze(-1), 0.0)

    def state_dict(self) -> dict[str, object]:
        """Its weights and its memory."""
        return {"policy": self.policy.state_dict(), "hidden": self._hidden.clone()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict` of as many envs and a policy of the same sizes."""
        weights, hidden = state["policy"], state["hidden"]
        assert isinstance(weights, dict)
        assert isinstance(hidden, Tensor)
        self.policy.load_state_dict(weights)
        self._hidden = hidden.to(self._hidden.device).clone()
