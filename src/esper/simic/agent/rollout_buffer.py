"""A rollout in memory: arrays over (env, step), allocated once, one write per step for all envs; its precision."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.simic.agent.advantages import compute_gae
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import ActionLayout, ActorState, Policy, PolicyInputs, SequencePlan
from esper.tamiyo.policy import NO_ACTION

MAX_BYTES = 4 * 1024**3
"""The largest rollout that is allocated unless the caller allows more."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What the update reads of each step, on the device."""

    inputs: PolicyInputs
    mask: Tensor
    """(step, layout.width)"""
    action: Tensor
    """(step, head)"""
    log_prob: Tensor
    """(step, head), as sampled."""
    forced: Tensor
    """(step,) bool"""
    value: Tensor
    """(step,), as predicted during the rollout."""
    advantage: Tensor
    """(step,)"""
    returns: Tensor
    """(step,)"""
    start_probs: Tensor | None
    """(step, head, choice): how probable each choice was under the policy that it started with; None if that does not
    matter."""


@dataclass(frozen=True, slots=True)
class Rollout(Steps):
    """A finished rollout, flat over valid steps; row r (an env) owns row_lengths[r] consecutive steps."""

    initial_hidden: Tensor
    """(2 layers, row, hidden)"""
    begins: NDArray[np.bool_]
    """(step,) True where an episode begins; on the host."""
    row_lengths: NDArray[np.int64]
    """(row,) on the host; 0 for a row without valid steps."""
    invalid_steps: int

    @property
    def steps(self) -> int:
        """Valid steps."""
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Minibatch(Steps):
    """Some steps of a rollout, with the plan to replay them when there is memory."""

    index: Tensor
    """(step,) positions in the rollout."""
    initial_hidden: Tensor | None
    plan: SequencePlan | None


def minibatches(
    rollout: Rollout, count: int, *, recurrent: bool, generator: torch.Generator
) -> Iterator[Minibatch]:
    """One pass over a rollout: whole sequences of shuffled envs with memory, shuffled steps without.

    `generator` is a CPU generator: the order is chosen on the host, so that no sync is needed.
    """
    if not recurrent:
        order = torch.randperm(rollout.steps, generator=generator)
        for chunk in order.tensor_split(min(count, rollout.steps)):
            yield _select(rollout, chunk.to(rollout.value.device, non_blocking=True))
        return
    rows = np.flatnonzero(rollout.row_lengths)
    order_of_rows = rows[torch.randperm(len(rows), generator=generator).numpy()]
    for chosen in np.array_split(order_of_rows, min(count, len(rows))):
        yield whole_rows(rollout, np.sort(chosen))


def whole_rows(rollout: Rollout, rows: NDArray[np.int64]) -> Minibatch:
    """The full sequences of these rows (each with at least one step), to be replayed in one pass."""
    device = rollout.value.device
    starts = np.cumsum(rollout.row_lengths) - rollout.row_lengths
    lengths = rollout.row_lengths[rows]
    # Position of each step: its row's start plus its place in the row.
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    index = np.repeat(starts[rows], lengths) + place
    plan = SequencePlan.build(rollout.begins[index], lengths, device)
    hidden = rollout.initial_hidden.index_select(1, _to(rows, device))
    return _select(rollout, _to(index, device), hidden, plan)


def _select(
    rollout: Rollout, index: Tensor, hidden: Tensor | None = None, plan: SequencePlan | None = None
) -> Minibatch:
    def pick(owner: Steps | PolicyInputs, names: Iterable[str]) -> dict[str, Any]:
        given = {name: getattr(owner, name) for name in names}
        return {name: None if each is None else each.index_select(0, index) for name, each in given.items()}

    inputs = PolicyInputs(**pick(rollout.inputs, (each.name for each in fields(PolicyInputs))))
    arrays = pick(rollout, (each.name for each in fields(Steps) if each.name != "inputs"))
    return Minibatch(inputs=inputs, **arrays, index=index, initial_hidden=hidden, plan=plan)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided in every env at one step."""

    observation: Tensor
    """(env, feature), as the policy saw it."""
    mask: Tensor
    """(env, layout.width) bool."""
    action: Tensor
    """(env, head)"""
    logits: Tensor
    """(env, layout.width): log-probs are read from them in one pass when the rollout is finished."""
    value: Tensor
    """(env,)"""
    begins: NDArray[np.bool_]
    """(env,) True where this step is the first of an episode."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it in every env."""

    reward: Tensor
    """(env,)"""
    terminated: NDArray[np.bool_]
    """(env,) a true end: no value beyond it."""
    truncated: NDArray[np.bool_]
    """(env,) stopped with its state at hand."""
    valid: NDArray[np.bool_]
    """(env,) False where the step means nothing: it is not trained on, and its end only stops the steps before it."""
    truncation_value: Tensor | None
    """(env,) value of the state each truncated env was stopped in; None when none was."""


class TamiyoRolloutBuffer:
    """Struct of arrays over (env, step). What is known on the host (ends, validity) stays there: no syncs.

    ValueError if it would need more than `max_bytes`.
    """

    __slots__ = (
        *(
            "layout",
            "num_envs",
            "num_steps",
            "step",
            "stores_previous",
            "initial_hidden",
            "observation",
            "mask",
        ),
        *("action", "logits", "value", "reward", "truncation_value", "previous_action", "previous_reward"),
        *("begins", "terminated", "truncated", "valid"),
    )

    def __init__(
        self,
        layout: ActionLayout,
        *,
        num_envs: int,
        num_steps: int,
        observation_size: int,
        hidden_size: int = 0,
        num_lstm_layers: int = 1,
        stores_previous: bool = False,
        device: torch.device | str = "cpu",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        for name, size in (("num_envs", num_envs), ("num_steps", num_steps)):
            if size < 1:
                raise ValueError(f"{name} is {size}; expected >= 1")
        heads = layout.head_count
        needed = num_envs * num_steps * (4 * observation_size + 5 * layout.width + 16 * heads + 24)
        if needed > max_bytes:
            raise ValueError(
                f"a rollout of {num_envs} envs x {num_steps} steps needs {needed / 2**20:.0f} MiB, over "
                f"max_bytes = {max_bytes / 2**20:.0f} MiB; use fewer envs or steps"
            )

        def zeros(*trailing: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(num_envs, num_steps, *trailing, dtype=dtype, device=device)

        self.layout, self.num_envs, self.num_steps = layout, num_envs, num_steps
        self.stores_previous = stores_previous
        self.step = 0
        """Steps written so far."""
        self.observation = zeros(observation_size)
        self.mask = zeros(layout.width, dtype=torch.bool)
        self.action = zeros(heads, dtype=torch.int64)
        self.logits = zeros(layout.width)
        self.value, self.reward, self.truncation_value, self.previous_reward = (zeros() for _ in range(4))
        self.previous_action = zeros(heads, dtype=torch.int64).fill_(NO_ACTION)
        self.initial_hidden = torch.zeros(2 * num_lstm_layers, num_envs, hidden_size, device=device)
        """(2 layers, env, hidden): the recurrent state before the first step, detached."""
        self.begins: NDArray[np.bool_]
        self.begins, self.terminated, self.truncated, self.valid = np.zeros(
            (4, num_envs, num_steps), dtype=np.bool_
        )

    @property
    def full(self) -> bool:
        """Whether every step is written."""
        return self.step == self.num_steps

    def clear(self) -> None:
        """Begin again at the first step."""
        self.step = 0

    @torch.no_grad()  # not inference_mode: what is written here meets autograd in the update
    def add(self, state: ActorState, decision: Decision, outcome: Outcome) -> None:
        """One step of every env. `state` is what the decision was taken with."""
        if self.full:
            raise RuntimeError(f"the buffer holds its {self.num_steps} steps; update() before the next step")
        t = self.step
        if t == 0:
            self.initial_hidden.copy_(state.hidden.detach())
        # One multi-tensor copy: a Python assignment per array would cost more than the copies.
        writes = [
            (self.observation, decision.observation),
            (self.mask, decision.mask),
            (self.action, decision.action),
            (self.logits, decision.logits),
            (self.value, decision.value),
            (self.reward, outcome.reward),
        ]
        if self.stores_previous:
            writes.append((self.previous_action, state.previous_action))
            writes.append((self.previous_reward, state.previous_reward))
        torch._foreach_copy_([array[:, t] for array, _ in writes], [written for _, written in writes])
        if outcome.truncation_value is not None:
            self.truncation_value[:, t] = outcome.truncation_value
        elif (outcome.truncated & outcome.valid).any():
            raise ValueError("truncated steps need truncation_value: the value of the state they stopped in")
        self.begins[:, t] = decision.begins
        self.terminated[:, t] = outcome.terminated
        self.truncated[:, t] = outcome.truncated
        self.valid[:, t] = outcome.valid
        self.step += 1

    @torch.no_grad()
    def close(self) -> None:
        """Mark all steps that are not written as invalid: the rollout is as long as what was written."""
        if not self.step:
            raise RuntimeError("the rollout has no step yet: there is nothing to close")
        rest = slice(self.step, None)
        written = (self.observation, self.mask, self.action, self.logits, self.value, self.reward)
        for array in written:  # something well-formed, of which nobody learns
            array[:, rest] = array[:, self.step - 1 : self.step]
        for flags in (self.begins, self.terminated, self.truncated, self.valid):
            flags[:, rest] = False
        self.step = self.num_steps

    def require_full(self) -> None:
        """Raise unless every step is written."""
        if not self.full:
            raise RuntimeError(
                f"the rollout has {self.step} of {self.num_steps} steps; fill it before it is finished"
            )

    def _cut_short(self) -> NDArray[np.bool_]:
        """(env, step): True where the last valid step of an episode did not end it, and a later, invalid one did."""
        ended = self.terminated | self.truncated
        last_valid = np.maximum.accumulate(np.where(self.valid, np.arange(self.num_steps), -1), axis=1)
        cut = np.zeros_like(ended)
        for env, step in np.argwhere(ended & ~self.valid):
            before = last_valid[env, step]
            cut[env, before] |= before >= 0 and not ended[env, before]
        return cut

    @torch.no_grad()  # not inference_mode: advantages meet autograd in the update
    def finish(
        self,
        last_value: Tensor,
        policy: Policy,
        *,
        gamma: float,
        gae_lambda: float,
        reward: Tensor | None = None,
        start_logits: Tensor | None = None,
    ) -> Rollout:
        """Valid steps, env after env, with advantages and returns.

        last_value (env,) is the value after the last step of each env; `policy` reads log-probs from the
        stored logits, by the same path that the update evaluates with; `reward` replaces the stored rewards
        (normalised ones, say); `start_logits` (env, step, width) are what the policy it started with would have said.
        Invalid steps vanish: neighbours close up around them. An episode that ended in
        one (its worker was lost) is truncated before it, and bootstraps from the state that was seen last, like
        one that the rollout's end cuts: it was no true end, and without these steps the short episodes, which
        have less time to be lost in, would count too much.
        """
        self.require_full()
        if last_value.shape != (self.num_envs,):
            raise ValueError(f"last_value has shape {tuple(last_value.shape)}; expected ({self.num_envs},)")
        device = self.observation.device
        kept = np.flatnonzero(self.valid.reshape(-1))
        lengths = self.valid.sum(1)
        index = _to(kept, device)

        def pick(array: Tensor) -> Tensor:
            return array.flatten(0, 1).index_select(0, index)

        rows = np.flatnonzero(lengths)
        ends = np.cumsum(lengths[rows]) - 1  # each non-empty row's last step
        cut_short = self._cut_short()
        terminated = self.terminated.reshape(-1)[kept]
        truncated = (self.truncated | cut_short).reshape(-1)[kept]
        value = pick(self.value)
        next_value = value.roll(-1)
        if len(rows):
            next_value[_to(ends, device)] = last_value[_to(rows, device)]
        # The state after a step that was cut short is the one that the next, lost step was decided in.
        beyond = torch.where(_to(cut_short, device), self.value.roll(-1, dims=1), self.truncation_value)
        next_value = torch.where(_to(truncated, device), pick(beyond), next_value)
        # One long row, its trace cut where an env's steps end: the same sums as row by row.
        cut = truncated.copy()
        cut[ends] = True
        advantage, returns = compute_gae(
            pick(self.reward if reward is None else reward).unsqueeze(0),
            value.unsqueeze(0),
            next_value.unsqueeze(0),
            _to(terminated, device).unsqueeze(0),
            _to(cut, device).unsqueeze(0),
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        begins = self.begins.reshape(-1)[kept]
        fresh = np.zeros(self.num_envs, dtype=np.bool_)  # rows whose first kept step begins an episode
        fresh[rows] = begins[np.concatenate([[0], ends[:-1] + 1])] if len(rows) else False
        mask, action = pick(self.mask), pick(self.action)
        evaluation = policy.distribution(pick(self.logits), mask).evaluate(action)
        start_probs = None
        if start_logits is not None:
            start_probs, _ = policy.distribution(pick(start_logits), mask).choice_probabilities(action)
        return Rollout(
            inputs=PolicyInputs(
                pick(self.observation), pick(self.previous_action), pick(self.previous_reward)
            ),
            mask=mask,
            action=action,
            log_prob=evaluation.log_prob,
            forced=evaluation.forced,
            value=value,
            advantage=advantage.squeeze(0),
            returns=returns.squeeze(0),
            start_probs=start_probs,
            initial_hidden=self.initial_hidden.masked_fill(_to(fresh, device).unsqueeze(-1), 0.0),
            begins=begins,
            row_lengths=lengths,
            invalid_steps=self.valid.size - len(kept),
        )


def _to(array: NDArray[np.bool_] | NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def autocast(config: PPOConfig, device: torch.device, *, cache: bool) -> AbstractContextManager[object]:
    """The precision of rollout and update. A no-grad forward must not fill the weight-cast cache."""
    if config.precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cache)
