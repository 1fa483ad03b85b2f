"""A finished rollout: valid steps laid end to end, env after env, and how it is cut into minibatches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.tamiyo import PolicyInputs, SequencePlan


@dataclass(frozen=True, slots=True)
class Rollout:
    """Flat over valid steps; row r (an env) owns row_lengths[r] consecutive steps."""

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
    initial_hidden: Tensor
    """(2, row, hidden)"""
    begins: NDArray[np.bool_]
    """(step,) True where an episode begins; on the host."""
    row_lengths: NDArray[np.int64]
    """(row,) on the host; 0 for a row without valid steps."""
    invalid_steps: int

    @property
    def steps(self) -> int:
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Some steps of a rollout, with the plan to replay them when there is memory."""

    index: Tensor
    """(step,) positions in the rollout."""
    inputs: PolicyInputs
    mask: Tensor
    action: Tensor
    log_prob: Tensor
    forced: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    initial_hidden: Tensor | None
    plan: SequencePlan | None


def row_ends(row_lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of each non-empty row's last step in the flat rollout, and which rows those are."""
    rows = np.flatnonzero(row_lengths)
    return np.cumsum(row_lengths[rows]) - 1, rows


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
    hidden = rollout.initial_hidden.index_select(1, torch.from_numpy(rows).to(device, non_blocking=True))
    return _select(rollout, torch.from_numpy(index).to(device, non_blocking=True), hidden, plan)


def _select(
    rollout: Rollout, index: Tensor, hidden: Tensor | None = None, plan: SequencePlan | None = None
) -> Minibatch:
    def pick(array: Tensor) -> Tensor:
        return array.index_select(0, index)

    inputs = rollout.inputs
    return Minibatch(
        index=index,
        inputs=PolicyInputs(
            pick(inputs.observation), pick(inputs.previous_action), pick(inputs.previous_reward)
        ),
        mask=pick(rollout.mask),
        action=pick(rollout.action),
        log_prob=pick(rollout.log_prob),
        forced=pick(rollout.forced),
        value=pick(rollout.value),
        advantage=pick(rollout.advantage),
        returns=pick(rollout.returns),
        initial_hidden=hidden,
        plan=plan,
    )
