"""C5, C6, A2: the buffer; what invalid steps, ends and lost workers do to it."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.simic.agent import TamiyoRolloutBuffer, compute_gae
from esper.simic.agent.rollout_buffer import Decision, Outcome, Rollout, minibatches
from esper.tamiyo import ActorState, RecurrentActorCritic, discrete_layout

LAYOUT = discrete_layout(3)
POLICY = RecurrentActorCritic(2, LAYOUT, hidden_size=5, generator=torch.Generator().manual_seed(0))


def make(num_envs: int, num_steps: int) -> TamiyoRolloutBuffer:
    return TamiyoRolloutBuffer(
        LAYOUT, num_envs=num_envs, num_steps=num_steps, observation_size=2, hidden_size=5
    )


Flags = NDArray[np.bool_]


def record(
    reward: Tensor, value: Tensor, terminated: Flags, truncated: Flags, valid: Flags, beyond: Tensor
) -> TamiyoRolloutBuffer:
    """A buffer (env, step) with these contents; `beyond` is the value where an episode was truncated."""
    num_envs, num_steps = reward.shape
    buffer = make(num_envs, num_steps)
    state = ActorState.initial(POLICY, num_envs, torch.device("cpu"))
    state.hidden = torch.ones_like(state.hidden)
    begins = np.zeros(num_envs, dtype=np.bool_)
    for step in range(num_steps):
        decision = Decision(
            observation=torch.full((num_envs, 2), float(step)),
            mask=LAYOUT.all_legal(num_envs),
            action=torch.zeros(num_envs, 1, dtype=torch.int64),
            logits=torch.zeros(num_envs, 3),
            value=value[:, step],
            begins=begins,
        )
        outcome = Outcome(
            reward[:, step], terminated[:, step], truncated[:, step], valid[:, step], beyond[:, step]
        )
        buffer.add(state, decision, outcome)
        ended = terminated[:, step] | truncated[:, step]
        # An invalid step is no part of the story: what follows it begins where the last valid one left off.
        begins = np.where(valid[:, step], ended, begins)
    return buffer


def random_rollout(seed: int, envs: int = 3, steps: int = 17) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reward, value, beyond = torch.randn(3, envs, steps, generator=generator)
    ends = torch.rand(2, envs, steps, generator=generator) < 0.15
    return {
        "reward": reward,
        "value": value,
        "terminated": ends[0],
        "truncated": ends[1] & ~ends[0],
        "valid": torch.ones(envs, steps, dtype=torch.bool),
        "beyond": beyond,
    }


def finish(case: dict[str, Tensor], last_value: Tensor) -> Rollout:
    buffer = record(
        case["reward"],
        case["value"],
        case["terminated"].numpy(),
        case["truncated"].numpy(),
        case["valid"].numpy(),
        case["beyond"],
    )
    return buffer.finish(last_value, POLICY, gamma=0.9, gae_lambda=0.8)


@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_those_of_each_env_alone(seed: int) -> None:
    case = random_rollout(seed)
    last = torch.randn(3, generator=torch.Generator().manual_seed(9))
    rollout = finish(case, last)
    v_tp1 = torch.cat((case["value"][:, 1:], last.unsqueeze(1)), dim=1)
    v_tp1 = torch.where(case["truncated"], case["beyond"], v_tp1)
    expected, returns = compute_gae(
        case["reward"],
        case["value"],
        v_tp1,
        case["terminated"],
        case["truncated"],
        gamma=0.9,
        gae_lambda=0.8,
    )
    torch.testing.assert_close(rollout.advantage, expected.flatten(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.returns, returns.flatten(), atol=1e-5, rtol=1e-5)


def test_inserted_invalid_steps_change_nothing() -> None:
    case = random_rollout(4)
    last = torch.randn(3, generator=torch.Generator().manual_seed(9))
    plain = finish(case, last)
    padded = {}
    for name, array in case.items():
        filler = torch.zeros(3, 1, dtype=array.dtype)
        garbage = filler if array.dtype == torch.bool else filler + 1e6
        # One in the middle, one at the end (padding), one at the beginning.
        padded[name] = torch.cat((garbage, array[:, :7], garbage, array[:, 7:], garbage), dim=1)
    spread = finish(padded, last)
    assert spread.invalid_steps == 9
    torch.testing.assert_close(spread.advantage, plain.advantage)
    torch.testing.assert_close(spread.returns, plain.returns)
    assert np.array_equal(spread.begins, plain.begins)
    assert np.array_equal(spread.row_lengths, plain.row_lengths)


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_episode_that_a_lost_step_ended_bootstraps_from_the_state_before_it(kind: str) -> None:
    """By hand: gamma 0.9, lambda 0.8, values all 2; the third step of the first env was lost."""
    case = {name: torch.zeros_like(array) for name, array in random_rollout(0, envs=2, steps=4).items()}
    case["value"] += 2.0
    case["reward"] += torch.tensor([[1.0, 1.0, 1e6, 1.0], [1.0] * 4])
    case["beyond"] += 1e6  # an invalid step has no state after it
    case["valid"][:] = True
    case["valid"][0, 2], case[kind][0, 2] = False, True
    rollout = finish(case, torch.full((2,), 2.0))
    assert rollout.row_lengths.tolist() == [3, 4]
    delta, carry = 1.0 + 0.9 * 2.0 - 2.0, 0.9 * 0.8
    before, whole = [delta * (1 + carry), delta], [delta]
    for _ in range(3):
        whole.insert(0, delta + carry * whole[0])
    expected = torch.tensor([*before, delta, *whole])
    torch.testing.assert_close(rollout.advantage, expected)
    torch.testing.assert_close(rollout.returns, expected + 2.0)


def test_a_row_without_valid_steps_is_in_no_minibatch() -> None:
    case = random_rollout(0, envs=2, steps=6)
    case["valid"][0, 3:] = case["valid"][1] = False
    rollout = finish(case, torch.zeros(2))
    assert (rollout.row_lengths.tolist(), rollout.invalid_steps) == ([3, 0], 9)
    batches = list(minibatches(rollout, 4, recurrent=True, generator=torch.Generator()))
    assert [len(batch.index) for batch in batches] == [3]


def test_hidden_state_belongs_to_the_first_kept_step() -> None:
    """When a row's first kept step begins an episode, the stored state is of an episode that was dropped."""
    case = random_rollout(0, envs=2, steps=5)
    case["terminated"][:] = False
    case["truncated"][:] = False
    case["terminated"][0, 1] = True
    case["valid"][0, :2] = False
    buffer = record(*(case[name].numpy() if case[name].dtype == torch.bool else case[name] for name in case))  # type: ignore[arg-type]
    buffer.begins[0, 2] = True
    rollout = buffer.finish(torch.zeros(2), POLICY, gamma=0.9, gae_lambda=0.8)
    assert rollout.initial_hidden[:, 0].abs().max() == 0
    assert rollout.initial_hidden[:, 1].min() == 1


def test_limits_are_kept() -> None:
    zero, never = torch.zeros(1, 1), np.zeros((1, 1), dtype=np.bool_)
    buffer = record(zero, zero, never, never, ~never, zero)
    assert buffer.full
    state = ActorState.initial(POLICY, 1, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="the buffer holds its 1 steps"):
        buffer.add(state, None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="last_value has shape"):
        buffer.finish(torch.zeros(2), POLICY, gamma=0.9, gae_lambda=0.9)
    buffer.clear()
    with pytest.raises(RuntimeError, match="0 of 1 steps"):
        buffer.finish(torch.zeros(1), POLICY, gamma=0.9, gae_lambda=0.9)
    with pytest.raises(ValueError, match="num_envs is 0"):
        make(0, 1)
    with pytest.raises(ValueError, match="over max_bytes"):
        TamiyoRolloutBuffer(LAYOUT, num_envs=100, num_steps=1000, observation_size=2, max_bytes=1000)
    assert not hasattr(buffer, "__dict__")


def test_a_truncation_without_its_value_is_refused() -> None:
    buffer = make(1, 2)
    state = ActorState.initial(POLICY, 1, torch.device("cpu"))
    flag = np.ones(1, dtype=np.bool_)
    decision = Decision(
        torch.zeros(1, 2),
        LAYOUT.all_legal(1),
        torch.zeros(1, 1, dtype=torch.int64),
        torch.zeros(1, 3),
        torch.zeros(1),
        flag,
    )
    with pytest.raises(ValueError, match="truncation_value"):
        buffer.add(state, decision, Outcome(torch.zeros(1), ~flag, flag, flag, None))


def test_minibatches_cover_every_step_once() -> None:
    rollout = finish(random_rollout(2, envs=5, steps=7), torch.zeros(5))
    for recurrent in (True, False):
        batches = list(
            minibatches(rollout, 3, recurrent=recurrent, generator=torch.Generator().manual_seed(1))
        )
        assert len(batches) == 3
        seen = torch.cat([batch.index for batch in batches])
        assert sorted(seen.tolist()) == list(range(35))
        assert (batches[0].plan is not None) is recurrent
        for batch in batches:
            assert torch.equal(batch.advantage, rollout.advantage[batch.index])


def test_a_rollout_that_is_closed_early_is_one_of_as_many_steps() -> None:
    """Episodes go on beyond the last step, one ended there, one was lost there."""
    contents = {name: part[:, :7] for name, part in random_rollout(5).items()}
    terminated, truncated, valid = (
        contents[name].numpy().copy() for name in ("terminated", "truncated", "valid")
    )
    terminated[:, -1], truncated[:, -1] = [True, False, False], [False, False, True]
    valid[:, -1] = [True, True, False]
    reward, value, beyond = (contents[name] for name in ("reward", "value", "beyond"))
    short = record(reward, value, terminated, truncated, valid, beyond)
    last = torch.tensor([0.3, -0.7, 1.1])
    closed = make(3, 11)
    rows = [name for name in closed.__slots__ if name != "initial_hidden"]
    for name in rows:
        array = getattr(closed, name)
        if isinstance(array, torch.Tensor | np.ndarray):
            array[:] = 1  # of an earlier round
            array[:, :7] = getattr(short, name)
    closed.initial_hidden.copy_(short.initial_hidden)
    closed.step = 7
    closed.close()
    expected = short.finish(last, POLICY, gamma=0.9, gae_lambda=0.8)
    found = closed.finish(last, POLICY, gamma=0.9, gae_lambda=0.8)
    assert found.row_lengths.tolist() == expected.row_lengths.tolist()
    for name in ("advantage", "returns", "log_prob", "value", "mask", "action", "initial_hidden"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.begins, expected.begins)


def test_an_empty_rollout_cannot_be_closed() -> None:
    with pytest.raises(RuntimeError, match="no step yet"):
        make(2, 3).close()
