"""Estimates without a host: exact where they must be, near the truth where it is known."""

import math

import numpy as np
import pytest
import torch

from esper.runs.offline import FittedQ, discounted, distribution_along, importance_weighted, log_ratios
from esper.tamiyo import ActorCritic, GrowthPolicy
from esper.tamiyo.critics import FlatBody, GrowthBody
from known_mdp import GAMMA, STATES, Corridor
from recorded_toy import random_episodes


def test_weights_by_hand() -> None:
    returns = torch.tensor([1.0, 3.0, 5.0])
    even = importance_weighted(torch.zeros(3), returns)
    assert (even.value, even.effective) == (3.0, 3.0)
    uneven = importance_weighted(torch.tensor([math.log(3.0), 0.0, -math.inf]), returns)
    assert uneven.value == pytest.approx((3 * 1.0 + 3.0) / 4)
    assert uneven.effective == pytest.approx(16 / 10)
    huge = importance_weighted(torch.tensor([1000.0, 1000.0, 0.0]), returns)  # no overflow
    assert huge.value == pytest.approx(2.0)
    assert importance_weighted(torch.full((3,), -math.inf), returns).value is None
    with pytest.raises(ValueError, match="log-probabilities of what was done are not on record"):
        importance_weighted(torch.tensor([0.0, math.nan]), returns[:2])


def test_returns_are_discounted_from_each_beginning() -> None:
    world = Corridor()
    batch = world.play(world.uniform(), 5, seed=0)
    begin, length = int(batch.first[3]), int(batch.length[3])
    rewards = batch.reward[begin : begin + length].tolist()
    expected = sum(GAMMA**time * reward for time, reward in enumerate(rewards))
    assert discounted(batch, GAMMA)[3].item() == pytest.approx(expected, rel=1e-5)


def flat_policy(world: Corridor, *, right: float = 0.0) -> ActorCritic:
    """Uniform over legal actions, or leaning to the right."""
    policy = ActorCritic(STATES + 1, world.layout, generator=torch.Generator().manual_seed(0))
    head = policy.actor.heads["action"]
    assert isinstance(head, torch.nn.Linear)
    torch.nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.0, 0.0, right]))
    return policy


def test_what_was_done_is_weighted_by_one() -> None:
    world = Corridor()
    batch = world.play(world.uniform(), 50, seed=0)
    ratio = log_ratios(flat_policy(world), batch, greedy=False)
    torch.testing.assert_close(ratio, torch.zeros(50), atol=1e-5, rtol=0)
    estimate = importance_weighted(ratio, discounted(batch, GAMMA))
    assert estimate.value == pytest.approx(discounted(batch, GAMMA).mean().item(), rel=1e-4)
    assert estimate.effective == pytest.approx(50.0, rel=1e-4)


@pytest.mark.parametrize("greedy", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_both_come_near_the_truth_of_a_known_mdp(greedy: bool) -> None:
    """The policy is worth far more than what was recorded: an estimate that ignores it would be wrong by 1."""
    world = Corridor()
    policy = flat_policy(world, right=1.5)
    truth = world.values(world.of_network(policy, greedy=greedy))[0, 2]
    recorded = world.values(world.uniform())[0, 2]
    assert truth > recorded + 0.7
    batch = world.play(world.uniform(), 2000, seed=0)
    weighted = importance_weighted(log_ratios(policy, batch, greedy=greedy), discounted(batch, GAMMA))
    assert weighted.value == pytest.approx(truth, abs=0.15)
    assert 20 < weighted.effective < 2000
    judge = FittedQ(policy, lambda _: FlatBody(STATES + 1, world.layout), gamma=GAMMA, greedy=greedy, lr=1e-2)
    draw = np.random.default_rng(0)
    judge.fit(lambda: batch.part(draw.choice(2000, 50).tolist()), 200)
    assert judge.value(batch).mean().item() == pytest.approx(truth, abs=0.2)


def test_a_greedy_policy_is_judged_by_what_it_does() -> None:
    """Along a recording: probability 1 for its own choice, 0 for any other; heads without a choice do not count."""
    recording = random_episodes(40)
    policy = GrowthPolicy(recording.space, hidden_size=16, generator=torch.Generator().manual_seed(0))
    policy.begin_leaning({"WAIT": 50.0})
    waits = torch.tensor(
        [bool((part.action[:, 0] == 0).all()) for part in (recording.part([n]) for n in range(40))]
    )
    ratio = log_ratios(policy, recording, greedy=True)
    assert torch.equal(torch.isfinite(ratio), waits)
    assert (distribution_along(policy, recording).mode()[:, 0] == 0).all()


@pytest.mark.slow
def test_waiting_on_the_toy_is_worth_nothing() -> None:
    """Its gain is 0 by definition, while what was recorded gains -0.05; fitted Q finds that out from the data."""
    recording = random_episodes(400, num_envs=64)
    policy = GrowthPolicy(recording.space, hidden_size=32, generator=torch.Generator().manual_seed(0))
    policy.begin_leaning({"WAIT": 50.0})
    scale = recording.reward.std().item()
    judge = FittedQ(
        policy,
        lambda drawn: GrowthBody(recording.space, privileged_features=3, hidden_size=32, generator=drawn),
        gamma=1.0,
        greedy=True,
        reward_scale=scale,
        lr=2e-3,
    )
    draw = np.random.default_rng(0)
    judge.fit(lambda: recording.part(draw.choice(400, 32).tolist()), 600)
    assert recording.returns.mean() < -0.02
    assert abs(judge.value(recording).mean().item()) < 0.02
