"""Replaying whole sequences through an LSTM in one pass, split at resets, without a loop over time."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


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
