"""KNOWN_ANSWERS, "GAE" and "Truncation against termination"; C1, C2."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from esper.leyline import HEAD_NAMES, LifecycleOp
from esper.simic.agent.advantages import (
    compute_causal_masks,
    compute_gae,
    compute_per_head_advantages,
    masked_mean_std,
)

R = torch.tensor([[0.0, 0, 1, 0, -0.5], [0, 0, 0, 0, 1]])
V = torch.tensor([[1.0, 4, -3, -2, -1, -1], [-3, -2, -1, 0, 5, -1]])
GAMMAS = (0.99, 0.9)
TERMINATED = torch.tensor([[False] * 5, [False, False, False, True, False]])
NEVER = torch.zeros(2, 5, dtype=torch.bool)


def gae_row(row: int, gae_lambda: float) -> Tensor:
    one = slice(row, row + 1)
    advantages, returns = compute_gae(
        R[one],
        V[one, :-1],
        V[one, 1:],
        TERMINATED[one],
        NEVER[one],
        gamma=GAMMAS[row],
        gae_lambda=gae_lambda,
    )
    torch.testing.assert_close(returns, advantages + V[one, :-1])
    return advantages[0]


@pytest.mark.parametrize(
    ("gae_lambda", "expected"),
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3, 2, 1, 0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1, 0, -4.9]]),
        (0.4, [[0.567319, -6.042124, 2.34312, 0.81596, -0.49], [1.7256, 1.46, 1, 0, -4.9]]),
    ],
)
def test_known_advantages(gae_lambda: float, expected: list[list[float]]) -> None:
    for row in range(2):
        torch.testing.assert_close(gae_row(row, gae_lambda), torch.tensor(expected[row]), atol=1e-4, rtol=0)


REWARDS = [101.0, 102, 103, 200, 104, 105, 106, 201, 107, 108, 109, 202]
NEXT_VALUES = [2.0, 3, 4, -1, 5, 6, 7, -2, 8, 9, 10, -3]
ENDS = torch.tensor([step in (3, 7, 11) for step in range(12)])


@pytest.mark.parametrize(
    ("truncated_steps", "expected"),
    [
        (
            (),
            [
                454.8344,
                376.1143,
                291.298,
                200,
                464.5610,
                383.1085,
                295.387,
                201,
                474.2876,
                390.1027,
                299.476,
                202,
            ],
        ),
        (
            (3, 7),
            [
                *(454.0109, 375.2386, 290.3669, 199.01, 462.9138, 381.3571, 293.5248, 199.02),
                *(474.2876, 390.1027, 299.476, 202),
            ],
        ),
    ],
)
def test_known_returns_with_termination_and_truncation(
    truncated_steps: tuple[int, ...], expected: list[float]
) -> None:
    truncated = torch.tensor([step in truncated_steps for step in range(12)])
    v_tp1 = torch.tensor(NEXT_VALUES)
    _, returns = compute_gae(
        torch.tensor([REWARDS]),
        v_tp1.roll(1).unsqueeze(0),
        v_tp1.unsqueeze(0),
        (ENDS & ~truncated).unsqueeze(0),
        truncated.unsqueeze(0),
        gamma=0.99,
        gae_lambda=0.95,
    )
    torch.testing.assert_close(returns[0], torch.tensor(expected), atol=1e-3, rtol=0)


def random_case(seed: int, envs: int, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    r_t, v_t, v_tp1 = torch.randn(3, envs, steps, generator=generator, dtype=torch.float64)
    draw = torch.rand(2, envs, steps, generator=generator) < 0.15
    return r_t, v_t, v_tp1, draw[0], draw[1] & ~draw[0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 37))
def test_equals_a_plain_loop(seed: int, envs: int, steps: int) -> None:
    r_t, v_t, v_tp1, terminated, truncated = random_case(seed, envs, steps)
    advantages, _ = compute_gae(r_t, v_t, v_tp1, terminated, truncated, gamma=0.9, gae_lambda=0.8)
    for env in range(envs):
        following = 0.0
        for step in reversed(range(steps)):
            alive = 0.0 if terminated[env, step] else 1.0
            delta = float(r_t[env, step] + 0.9 * alive * v_tp1[env, step] - v_t[env, step])
            carried = 0.0 if terminated[env, step] or truncated[env, step] else 0.9 * 0.8 * following
            following = delta + carried
            assert float(advantages[env, step]) == pytest.approx(following, abs=1e-9)


def test_lambda_one_is_the_monte_carlo_return_minus_v() -> None:
    r_t, v_t, v_tp1, *_ = random_case(0, 3, 7)
    terminated = torch.zeros(3, 7, dtype=torch.bool)
    terminated[:, -1] = True
    never = torch.zeros_like(terminated)
    v_tp1[:, :-1] = v_t[:, 1:]  # one value function
    advantages, returns = compute_gae(r_t, v_t, v_tp1, terminated, never, gamma=0.9, gae_lambda=1.0)
    monte_carlo = torch.stack([sum(0.9**k * r_t[:, t + k] for k in range(7 - t)) for t in range(7)], dim=1)  # type: ignore[misc]
    torch.testing.assert_close(returns, monte_carlo)
    torch.testing.assert_close(advantages, monte_carlo - v_t)


def test_lambda_zero_is_the_td_error() -> None:
    r_t, v_t, v_tp1, terminated, truncated = random_case(1, 3, 7)
    advantages, _ = compute_gae(r_t, v_t, v_tp1, terminated, truncated, gamma=0.9, gae_lambda=0.0)
    torch.testing.assert_close(advantages, r_t + 0.9 * ~terminated * v_tp1 - v_t)


def test_a_value_beyond_a_terminal_does_not_matter_even_if_it_is_not_a_number() -> None:
    ends = torch.tensor([[True]])
    zero, nan = torch.zeros(1, 1), torch.full((1, 1), torch.nan)
    advantages, _ = compute_gae(zero + 2, zero + 1, nan, ends, ~ends, gamma=0.9, gae_lambda=0.9)
    assert advantages.item() == 1.0


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("terminated", [True, False])
def test_nothing_leaks_across_a_cut_however_bad(poison: float, terminated: bool) -> None:
    r_t, v_t, v_tp1, *_ = random_case(0, 1, 9)
    cut = torch.arange(9).unsqueeze(0) == 4
    ends = (cut, cut & False) if terminated else (cut & False, cut)
    clean, _ = compute_gae(r_t, v_t, v_tp1, *ends, gamma=0.9, gae_lambda=0.8)
    r_t[0, 7] = poison
    advantages, _ = compute_gae(r_t, v_t, v_tp1, *ends, gamma=0.9, gae_lambda=0.8)
    assert torch.equal(advantages[:, :5], clean[:, :5])
    assert not torch.isfinite(advantages[:, 5:8]).any()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"v_tp1 \(2, 4\)"):
        compute_gae(R, V[:, 1:], V[:, :4], TERMINATED, NEVER, gamma=0.9, gae_lambda=0.9)


RELEVANT = {
    LifecycleOp.WAIT: "op",
    LifecycleOp.GERMINATE: "op slot blueprint style tempo alpha_target",
    LifecycleOp.SET_ALPHA_TARGET: "op slot style alpha_target alpha_speed alpha_curve",
    LifecycleOp.PRUNE: "op slot alpha_speed alpha_curve",
    LifecycleOp.FOSSILIZE: "op slot",
    LifecycleOp.ADVANCE: "op slot",
    LifecycleOp.RETIRE: "op slot alpha_speed alpha_curve",
}


def test_causal_masks_say_what_the_specification_says() -> None:
    ops = torch.tensor([[int(op) for op in LifecycleOp]])
    masks = compute_causal_masks(ops)
    assert tuple(masks) == HEAD_NAMES
    for op, heads in RELEVANT.items():
        assert {name for name in HEAD_NAMES if masks[name][0, op]} == set(heads.split())


def test_other_domains_bring_their_own_table() -> None:
    masks = compute_causal_masks(
        torch.tensor([1, 0]),
        causal_table={0: ("kind",), 1: ("kind", "target")},
        head_names=("kind", "target"),
    )
    assert masks["target"].tolist() == [True, False]


def test_an_irrelevant_head_gets_exactly_zero() -> None:
    relevant = torch.tensor([[True, False], [True, True]])
    result = compute_per_head_advantages(torch.tensor([2.0, torch.inf]), relevant)
    assert result.tolist() == [[2.0, 0.0], [torch.inf, torch.inf]]
    with pytest.raises(ValueError, match="relevant is"):
        compute_per_head_advantages(torch.zeros(3), relevant)


def test_mean_and_deviation_over_some_steps() -> None:
    advantages = torch.tensor([1.0, 3.0, 1000.0])
    mean, std = masked_mean_std(advantages, torch.tensor([True, True, False]))
    assert (mean.item(), std.item()) == (2.0, 1.0)
