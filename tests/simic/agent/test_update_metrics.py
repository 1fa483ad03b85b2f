"""What an update reports of its minibatches, from literal numbers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.agent.update_metrics import GradientMeter, MinibatchReport, UpdateMeter
from esper.tamiyo import ActorCritic, multi_discrete_layout
from synthetic_growth import growth_policy

LAYOUT = multi_discrete_layout((2, 3))


def report(ratio: list[list[float]], chosen: list[list[bool]], *, finite: bool = True) -> MinibatchReport:
    flag, nothing, ratios = torch.tensor(finite), torch.tensor(0.0), torch.tensor(ratio)
    scalars: dict[str, Tensor] = {
        **dict.fromkeys(("policy_loss", "value_loss", "kl", "grad_norm", "max_grad", "min_grad"), nothing),
        **dict.fromkeys(("ratio_finite", "finite", "applied"), flag),
    }
    zeros = torch.zeros_like(ratios)
    return MinibatchReport(scalars, ratios, zeros, zeros, torch.tensor(chosen), torch.zeros(2))


def summarized(*reports: MinibatchReport) -> PPOUpdateMetrics:
    policy = ActorCritic(1, LAYOUT, generator=torch.Generator().manual_seed(0))
    agent = PPOAgent(policy, PPOConfig(), num_envs=1, num_steps=2, seed=0)
    none = np.zeros(1, dtype=np.bool_)
    while not agent.ready:
        agent.act(torch.zeros(1, 1))
        agent.observe(torch.ones(1), none, none)
    rollout = agent._finish(torch.zeros(1, 1))
    meter = UpdateMeter(LAYOUT, rollout, torch.tensor(0.0), torch.tensor(1.0))
    meter.reports = list(reports)
    return meter.summarize(PPOConfig(clip_ratio=0.2), kl_stopped=torch.tensor(False))


def test_ratios_are_those_of_all_choices_in_all_finite_minibatches() -> None:
    metrics = summarized(
        report([[1.3, 1.0], [0.9, 5.0]], [[True, True], [True, False]]),  # 5 was no choice
        report([[0.5, 2.0], [1.1, 1.15]], [[True, True], [True, True]]),
        report([[99.0, 0.01]], [[True, True]], finite=False),  # was not applied
        report([[1.0, 1.05]], [[True, True]]),
    )
    chosen = (1.3, 1.0, 0.9, 0.5, 2.0, 1.1, 1.15, 1.0, 1.05)
    assert (metrics.ratio_max, metrics.ratio_min) == (2.0, 0.5)
    assert metrics.ratio_mean == pytest.approx(sum(chosen) / 9)
    assert metrics.clip_fraction == pytest.approx(3 / 9)  # 1.3, 0.5 and 2


def test_a_head_is_given_the_gradient_of_its_own_parameters_alone() -> None:
    policy = growth_policy(3, 5, torch.Generator().manual_seed(0), hidden_size=7)
    own = {id(parameter): head for head, parameter in policy.head_parameters()}
    squares = dict.fromkeys(policy.layout.names, 0.0)
    for parameter in policy.parameters():
        head = own.get(id(parameter))
        slope = 100.0 if head is None else 1.0 + policy.layout.names.index(head)
        parameter.grad = torch.full_like(parameter, slope)
        if head is not None:
            squares[head] += slope**2 * parameter.numel()
    norms, by_head = GradientMeter(policy, max_norm=1e9).measure_and_clip()
    assert by_head.tolist() == pytest.approx([square**0.5 for square in squares.values()], rel=1e-5)
    assert float(norms["grad_norm"]) > 50 * float(by_head.max())
