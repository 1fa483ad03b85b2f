"""A segmented LSTM pass against a step-by-step loop."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.tamiyo import SequencePlan
from esper.tamiyo.policy import advance, replay


def step_by_step(
    lstm: nn.LSTM, inputs: Tensor, hidden: Tensor, resets: NDArray[np.bool_], lengths: list[int]
) -> Tensor:
    outputs, start = [], 0
    for row, length in enumerate(lengths):
        state = hidden[:, row : row + 1]
        for step in range(start, start + length):
            if resets[step]:
                state = torch.zeros_like(state)
            state = advance(lstm, inputs[step : step + 1], state)
            outputs.append(state[lstm.num_layers - 1])
        start += length
    return torch.cat(outputs)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_replay_equals_a_loop(seed: int, layers: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [11, 1, 7, 13]
    lstm = nn.LSTM(3, 5, layers)
    inputs = torch.randn(32, 3, generator=generator)
    hidden = torch.randn(2 * layers, 4, 5, generator=generator)
    resets = (torch.rand(32, generator=generator) < 0.2).numpy()
    hidden[:, [row for row, start in enumerate((0, 11, 12, 19)) if resets[start]]] = 0.0
    plan = SequencePlan.build(resets, np.array(lengths), torch.device("cpu"))
    expected = step_by_step(lstm, inputs, hidden, resets, lengths)
    assert torch.linalg.vector_norm(replay(lstm, inputs, hidden, plan) - expected) < 1e-5


def test_a_sequence_after_another_gives_the_same_output_as_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    lstm = nn.LSTM(3, 5)
    inputs = torch.randn(17, 3, generator=generator)
    resets = np.zeros(17, dtype=np.bool_)
    resets[7] = True
    together = replay(
        lstm, inputs, torch.zeros(2, 1, 5), SequencePlan.build(resets, np.array([17]), torch.device("cpu"))
    )
    alone = replay(
        lstm,
        inputs[7:],
        torch.zeros(2, 1, 5),
        SequencePlan.build(np.zeros(10, dtype=np.bool_), np.array([10]), torch.device("cpu")),
    )
    torch.testing.assert_close(together[7:], alone)


def test_plans_refuse_lengths_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="row_lengths"):
        SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([2, 2]), torch.device("cpu"))
    with pytest.raises(ValueError, match="row_lengths"):
        SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([5, 0]), torch.device("cpu"))
    plan = SequencePlan.build(np.zeros(5, dtype=np.bool_), np.array([5]), torch.device("cpu"))
    with pytest.raises(ValueError, match="do not fit a plan"):
        replay(nn.LSTM(3, 5), torch.zeros(4, 3), torch.zeros(2, 1, 5), plan)
