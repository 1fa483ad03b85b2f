"""Implicit Q-learning: losses by hand, cloning as a special case, and a small MDP whose optimum is known."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, operations
from esper.simic.cloning import PolicyNetwork
from esper.simic.config.checks import ConfigError
from esper.simic.config.ppo import IQLConfig
from esper.simic.offline.iql import (
    IQL,
    advantage_weight,
    expectile_loss,
    lambda_target,
    q_target,
    rareness,
    return_bounds,
)
from esper.simic.offline.recording import Sequences
from esper.simic.offline.trainer import learns_whole_returns
from esper.tamiyo import ActorCritic, GrowthPolicy
from esper.tamiyo.critics import FlatBody, GrowthBody, QNetwork, VNetwork
from esper.tamiyo.features import host_features
from known_mdp import GAMMA, STATES, Corridor
from recorded_toy import random_episodes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Losses


def test_an_expectile_weighs_both_sides() -> None:
    error = torch.tensor([2.0, -2.0, 0.0])
    assert expectile_loss(error, 0.75).tolist() == [3.0, 1.0, 0.0]
    assert expectile_loss(error, 0.5).tolist() == [2.0, 2.0, 0.0]


def test_the_minimum_of_the_loss_is_the_expectile() -> None:
    """Of 0 and 1 with probability 1/4: e = tau p / (tau p + (1 - tau) (1 - p))."""
    outcomes = torch.tensor([1.0, 0.0, 0.0, 0.0])
    guesses = torch.linspace(0, 1, 1001)
    for expectile, expected in ((0.5, 0.25), (0.75, 0.5), (0.9, 0.75)):
        losses = expectile_loss(outcomes - guesses[:, None], expectile).mean(1)
        assert guesses[losses.argmin()].item() == pytest.approx(expected, abs=1e-3)


def test_targets_and_weights() -> None:
    target = q_target(torch.tensor([1.0, -1.0]), torch.tensor([4.0, 0.0]), 0.5)
    assert target.tolist() == [3.0, -1.0]
    with pytest.raises(ValueError, match=r"the shapes of reward \(2,\), next_value \(3,\) differ"):
        q_target(torch.zeros(2), torch.zeros(3), 0.5)
    weight = advantage_weight(torch.tensor([0.0, 1.0, -1.0, 9.0]), 2.0)
    assert weight.tolist() == pytest.approx([1.0, math.e**2, math.e**-2, 100.0])
    assert advantage_weight(torch.tensor([3.0, -3.0]), 0.0).tolist() == [1.0, 1.0]


def test_returns_far_out_do_not_widen_their_bounds() -> None:
    """Of 0..100 the middle 68 % span 16..84: 50 plus and minus ten times 34, whatever the worst of them is."""
    returns = torch.arange(101.0)
    assert return_bounds(returns) == pytest.approx((50 - 340, 50 + 340))
    returns[0] = -1e6
    assert return_bounds(returns) == pytest.approx((50 - 340, 50 + 340))
    low, high = return_bounds(torch.full((5,), 2.0))
    assert low < 2.0 < high


def test_returns_that_are_mostly_of_waiting_keep_what_the_others_show() -> None:
    returns = torch.cat([torch.zeros(800), torch.full((100,), 0.1), torch.full((100,), -0.05)])
    low, high = return_bounds(returns)
    assert low < -0.05
    assert high > 0.1


@pytest.mark.parametrize("telescopes", [True, False])
def test_a_return_counts_inside_of_its_bounds(telescopes: bool) -> None:
    """Only the end of an episode that is out of them pays another reward; by trace 1 all its steps are worth that."""
    world = Corridor()
    batch = world.play(world.uniform(), 5, seed=3)
    whole = batch.whole(GAMMA)
    broken = replace(batch, reward=batch.reward.clone())
    end = int(batch.length[:2].sum()) - 1  # of the second episode
    broken.reward[end] -= 1000.0

    def losses(seen: Sequences, bounds: tuple[float, float]) -> float:
        learner = corridor_learner(IQLConfig(gamma=GAMMA, trace=1.0), telescopes=telescopes, bounds=bounds)
        return learner.terms(seen).q_loss.item()

    wide = (-10.0, 10.0)
    assert losses(batch, wide) == losses(batch, (-math.inf, math.inf))  # nothing is out of them
    assert losses(broken, (-math.inf, math.inf)) > 1000.0
    at_the_bound = replace(batch, reward=batch.reward.clone())
    at_the_bound.reward[end] += -10.0 - whole[1]
    assert losses(broken, wide) == pytest.approx(losses(at_the_bound, wide), rel=1e-5)


def test_worth_travels_along_a_trace() -> None:
    """Two episodes of 3 and 2 steps; G by hand from the ends: 4, 2 + 0.5 (0.75 x 4 + 0.25 x 8), ..."""
    reward, length = torch.tensor([1.0, 2.0, 4.0, 5.0, 6.0]), torch.tensor([3, 2])
    next_value = torch.tensor([10.0, 8.0, 0.0, 20.0, 0.0])
    expected = [1 + 0.5 * (0.75 * 4.5 + 0.25 * 10), 4.5, 4.0, 5 + 0.5 * (0.75 * 6 + 0.25 * 20), 6.0]
    assert lambda_target(reward, next_value, length, 0.5, 0.75).tolist() == pytest.approx(expected)
    one_step = lambda_target(reward, next_value, length, 0.5, 0.0)
    assert torch.equal(one_step, q_target(reward, next_value, 0.5))
    assert lambda_target(reward, next_value, length, 1.0, 1.0).tolist() == [7.0, 6.0, 4.0, 11.0, 6.0]


def test_rare_actions_count_more() -> None:
    log_prob = torch.tensor([0.25, 1.0]).log()
    assert rareness(log_prob, 0.5).tolist() == pytest.approx([4 / 3, 2 / 3])
    assert rareness(log_prob, 0.0).tolist() == [1.0, 1.0]
    assert rareness(torch.tensor([math.nan, *log_prob.tolist()]), 0.5).tolist() == pytest.approx(
        [1.0, 4 / 3, 2 / 3]
    )
    assert rareness(torch.tensor([math.nan, math.nan]), 0.5).tolist() == [1.0, 1.0]


# A small MDP


def corridor_learner(
    config: IQLConfig,
    seed: int = 0,
    *,
    telescopes: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> IQL:
    world = Corridor()
    policy = ActorCritic(STATES + 1, world.layout, widths=(32, 32), generator=generator(seed))
    return IQL(
        policy,
        lambda _: FlatBody(STATES + 1, world.layout),
        config,
        telescopes=telescopes,
        bounds=bounds,
        seed=seed,
    )


def taught(learner: IQL, episodes: Sequences, updates: int = 150) -> IQL:
    """The same after some updates on parts of 50 episodes."""
    draw = generator(7)
    for _ in range(updates):
        learner.update(episodes.part(torch.randint(len(episodes), (50,), generator=draw).tolist()))
    return learner


def reference_terms(learner: IQL, batch: Sequences) -> dict[str, float]:
    """The same losses transition by transition, from the formulas of the paper, without what the learner uses."""
    config = learner.config
    totals = {"value_loss": 0.0, "q_loss": 0.0, "policy_loss": 0.0}
    step, counts = 0, {"q": 0, "policy": 0}
    v, q, slow = learner.v, learner.q, learner.slow_q

    def one_hot(action: int) -> Tensor:
        return torch.eye(3)[action]

    for episode, length in enumerate(batch.length.tolist()):
        for time in range(length):
            seen, action = batch.observation[step], int(batch.action[step, 0])
            joint = torch.cat((seen, one_hot(action)))
            slow_q = min(head(joint).item() for head in slow.heads)
            value = v.head(seen).item()
            error = slow_q - value
            totals["value_loss"] += (1 - config.expectile if error < 0 else config.expectile) * error**2
            last = time + 1 == length
            if not last or bool(batch.terminated[episode]):
                onward = 0.0 if last else v.head(batch.observation[step + 1]).item()
                target = batch.reward[step].item() / learner.reward_scale + config.gamma * onward
                totals["q_loss"] += sum((head(joint).item() - target) ** 2 for head in q.heads)
                counts["q"] += 1
            if int(batch.mask[step].sum()) > 1:
                assert isinstance(learner.policy, ActorCritic)
                logits = learner.policy.actor(seen.unsqueeze(0))[0]
                legal = [logits[choice].item() for choice in range(3) if bool(batch.mask[step, choice])]
                log_prob = logits[action].item() - math.log(sum(map(math.exp, legal)))
                weight = min(math.exp(config.beta * error), 100.0)
                totals["policy_loss"] -= weight * log_prob
                counts["policy"] += 1
            step += 1
    return {
        "value_loss": totals["value_loss"] / step,
        "q_loss": totals["q_loss"] / counts["q"],
        "policy_loss": totals["policy_loss"] / counts["policy"],
    }


def test_losses_equal_a_reference_on_flat_actions() -> None:
    world = Corridor()
    batch = world.play(world.uniform(), 7, seed=3)
    batch.mask[5] = torch.arange(3) == batch.action[5]  # a step without a choice does not teach the policy
    batch = replace(batch, terminated=torch.tensor([True, False, True, True, False, True, True]))
    config = IQLConfig(gamma=GAMMA, expectile=0.7, beta=3.0)
    learner = corridor_learner(config)
    learner.reward_scale = 0.5
    for _ in range(3):  # so that the slow copies differ from the critics
        learner.update(batch)
    terms = learner.terms(batch)
    for name, expected in reference_terms(learner, batch).items():
        assert getattr(terms, name).item() == pytest.approx(expected, rel=1e-4), name


def test_what_follows_a_cut_is_not_made_up() -> None:
    """The last step of an episode that was cut short teaches Q nothing: nobody knows what came of it."""
    world = Corridor()
    batch = world.play(world.uniform(), 3, seed=3)
    learner = corridor_learner(IQLConfig(gamma=GAMMA))
    end = int(batch.length[0]) - 1
    other = replace(batch, reward=batch.reward.clone())
    other.reward[end] += 5.0
    cut, other_cut = (replace(each, terminated=torch.tensor([False, True, True])) for each in (batch, other))
    assert learner.terms(batch).q_loss.item() != learner.terms(other).q_loss.item()
    assert learner.terms(cut).q_loss.item() == learner.terms(other_cut).q_loss.item()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_it_reaches_the_optimum_of_a_known_mdp_and_beats_what_was_done(seed: int) -> None:
    """From random actions alone. Cloning them stays where they are; a sign or a bootstrap gone wrong goes left."""
    world = Corridor()
    batch = world.play(world.uniform(), 300, seed=seed)
    config = IQLConfig(gamma=GAMMA, expectile=0.9, beta=5.0, lr=5e-3, target_rate=0.1)
    learner = taught(corridor_learner(config, seed), batch)
    best, random = world.values(None)[0, 2], world.values(world.uniform())[0, 2]
    learned = world.values(world.of_network(learner.policy, greedy=True))[0, 2]
    sampled = world.values(world.of_network(learner.policy, greedy=False))[0, 2]
    assert random < 0.6 * best
    assert learned >= 0.99 * best
    assert sampled > random + 0.5 * (best - random)
    value = learner.v(batch.inputs(), batch.plan())[batch.first].mean().item()
    assert random + 0.1 < value < best + 0.1  # an expectile under 1 is below the optimum


def test_at_the_mean_it_evaluates_what_was_done() -> None:
    """tau 0.5: V is the value of the behaviour, by whatever it did."""
    world = Corridor()
    batch = world.play(world.uniform(), 300, seed=1)
    config = IQLConfig(gamma=GAMMA, expectile=0.5, beta=0.0, lr=5e-3, target_rate=0.1)
    learner = taught(corridor_learner(config), batch)
    random = world.values(world.uniform())[0, 2]
    value = learner.v(batch.inputs(), batch.plan())[batch.first].mean().item()
    assert value == pytest.approx(random, abs=0.1)
    own = learner.policy(batch.inputs()).value[batch.first].mean().item()
    assert own == pytest.approx(value, abs=0.25)  # what PPO would go on from


# Growth


def growth_learner(
    config: IQLConfig,
    *,
    privileged: int = 3,
    telescopes: bool = False,
    normalize: Callable[[Tensor], Tensor] | None = None,
) -> IQL:
    space = random_episodes(40).space
    policy = GrowthPolicy(space, hidden_size=16, generator=generator())
    return IQL(
        policy,
        lambda drawn: GrowthBody(space, privileged_features=privileged, hidden_size=16, generator=drawn),
        config,
        telescopes=telescopes,
        normalize=normalize,
    )


def test_without_preference_it_is_cloning() -> None:
    """tau 0.5 and beta 0: loss and gradients of the policy are those of `PolicyNetwork`, whatever the critics say."""
    recording = random_episodes(40)
    learner = growth_learner(IQLConfig(expectile=0.5, beta=0.0))
    clone = PolicyNetwork(recording.space, hidden_size=16)
    clone.policy.load_state_dict(learner.policy.state_dict())
    loss, _ = clone._loss(recording)
    terms = learner.terms(recording)
    assert terms.policy_loss.item() == pytest.approx(loss.item(), rel=1e-6)
    loss.backward()
    learner.update(recording)
    theirs = dict(clone.policy.named_parameters())
    norm = torch.stack(
        [p.grad.norm() for name, p in theirs.items() if p.grad is not None and not name.startswith("critic.")]
    ).norm()
    for name, parameter in learner.policy.named_parameters():
        if name.startswith("critic."):
            continue
        expected, found = theirs[name].grad, parameter.grad
        assert expected is not None
        assert found is not None
        scale = min(1.0, 1.0 / norm.item())  # the learner clips
        torch.testing.assert_close(found, expected * scale, rtol=1e-3, atol=1e-7, msg=name)
    sharper = growth_learner(IQLConfig(expectile=0.5, beta=2.0)).terms(recording)
    assert sharper.policy_loss.item() != pytest.approx(loss.item(), rel=1e-3)


def test_an_action_is_worth_what_it_does() -> None:
    """Choices that the operation does not use change nothing; every one that it uses does."""
    recording = random_episodes(40)
    space, layout = recording.space, recording.space.action_layout
    body = GrowthBody(space, hidden_size=16, generator=generator(1))
    network = QNetwork(body, generator=generator(2))
    state, parts = body.read(recording.inputs(), recording.plan())
    for op in operations(retire=space.retire):
        action = torch.zeros(recording.steps, len(HEAD_NAMES), dtype=torch.int64)
        action[:, 0] = op
        worth = network.worth(state, parts, action)
        for head, name in enumerate(HEAD_NAMES[1:], start=1):
            other = action.clone()
            other[:, head] = layout.sizes[head] - 1
            changed = not torch.equal(network.worth(state, parts, other), worth)
            assert changed == bool(layout.relevance[op, head]), (op, name)
    assert (worth[0] != worth[1]).any()  # the twins differ


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_what_was_paid_before_a_step(gamma: float) -> None:
    """The rest of an episode is its whole, less what was paid: for any rewards and discount."""
    recording = random_episodes(40, gamma=gamma)
    paid = recording.paid(gamma)
    assert paid[recording.first].tolist() == [0.0] * 40
    begin, length = int(recording.first[3]), int(recording.length[3])
    rewards = recording.reward[begin : begin + length].double().tolist()
    for time in (1, length - 1):
        expected = sum(gamma ** (k - time) * rewards[k] for k in range(time))
        assert paid[begin + time].item() == pytest.approx(expected, abs=1e-6)


def test_a_telescoping_reward_is_learned_as_a_whole() -> None:
    """Critics then learn the return of the whole episode at each step; the policy's own critic what is left of it."""
    recording = random_episodes(40)
    config = IQLConfig(expectile=0.5, beta=0.0, trace=1.0, lr=3e-3, target_rate=0.1)
    learner = growth_learner(config, telescopes=True)
    for _ in range(60):
        terms = learner.update(recording)
    assert terms.explained_variance > 0.3
    returns = recording.returns.repeat_interleave(recording.length)
    value = learner.v(recording.inputs(3), recording.plan())
    assert torch.corrcoef(torch.stack((value.detach(), returns)))[0, 1] > 0.5
    left = returns - recording.paid(1.0)
    hidden = learner.policy.initial_hidden(40)
    own = learner.policy(recording.inputs(), hidden, recording.plan()).value.detach()
    ends = recording.last
    assert (own[ends] - left[ends]).square().mean() < (own[ends] - returns[ends]).square().mean()


def test_critics_may_see_observations_otherwise_than_the_policy() -> None:
    recording = random_episodes(40)
    plain, doubled = (
        growth_learner(IQLConfig(beta=0.0), normalize=how) for how in (None, lambda seen: 2.0 * seen)
    )
    one, other = plain.terms(recording), doubled.terms(recording)
    assert one.policy_loss.item() == other.policy_loss.item()
    assert one.value_loss.item() != other.value_loss.item()
    again = plain.terms(recording.seen_through(lambda seen: 2.0 * seen, 3))
    assert again.value_loss.item() == pytest.approx(other.value_loss.item())


def test_critics_see_the_host_itself_and_begin_without_parity() -> None:
    """What pays between two extremes is even in what tells them apart: a head that begins odd learns it last."""
    recording = random_episodes(40)
    body = GrowthBody(recording.space, privileged_features=3, hidden_size=16, generator=generator(1))
    seen = recording.inputs(3)
    state, _ = body.read(seen, recording.plan())
    features = len(host_features(recording.space))
    assert torch.equal(state[:, 16 : 16 + features], seen.observation[:, :features])
    assert torch.equal(state[:, 16 + features :], recording.privileged)
    probe = torch.randn(64, body.state_size + body.action_size, generator=generator(3))
    for bounded, even in ((False, True), (True, False)):
        head = QNetwork(body, generator=generator(2), bounded=bounded).heads[0]
        assert bool((head(probe) + head(-probe)).abs().mean() > 0.1) is even


def test_critics_read_whole_episodes() -> None:
    """Each from an empty memory: an episode is worth the same alone as among others, and its past matters."""
    recording = random_episodes(40)
    body = GrowthBody(recording.space, privileged_features=3, hidden_size=16, generator=generator(1))
    network = VNetwork(body, generator=generator(2))
    together = network(recording.inputs(3), recording.plan())
    alone = recording.part([3])
    begin, length = int(recording.first[3]), int(recording.length[3])
    torch.testing.assert_close(network(alone.inputs(3), alone.plan()), together[begin : begin + length])
    alone.observation[0] += 1.0
    changed = network(alone.inputs(3), alone.plan())
    assert not torch.isclose(changed[-1], together[begin + length - 1])


def test_critics_may_learn_alone() -> None:
    """The policy then stays as it is, to the bit, and its loss is unknown; critics learn as they do with it."""
    recording = random_episodes(40)
    alone, together = growth_learner(IQLConfig()), growth_learner(IQLConfig())
    before = {name: value.clone() for name, value in alone.policy.state_dict().items()}
    terms = alone.update(recording, policy=False)
    together.update(recording)
    assert terms.policy_loss.isnan()
    assert terms.entropy.shape == (0, len(HEAD_NAMES))
    assert all(torch.equal(value, alone.policy.state_dict()[name]) for name, value in before.items())
    for name, value in alone.q.state_dict().items():
        assert torch.equal(value, together.q.state_dict()[name]), name


def test_rare_actions_count_more_for_the_policy_too() -> None:
    recording = random_episodes(40)
    plain, balanced = (
        growth_learner(IQLConfig(beta=0.0, balance=balance)).terms(recording) for balance in (0.0, 1.0)
    )
    assert plain.weight.tolist() == [1.0] * recording.steps
    torch.testing.assert_close(balanced.weight, rareness(recording.log_prob, 1.0))


def test_a_batch_that_is_not_finite_moves_nothing() -> None:
    learner, recording = growth_learner(IQLConfig()), random_episodes(40)
    before = {name: value.clone() for name, value in learner.q.state_dict().items()}
    broken = replace(recording, reward=recording.reward * np.nan)
    assert learner.update(broken).q_loss.isnan()
    assert learner.updates == 0
    assert all(torch.equal(value, learner.q.state_dict()[name]) for name, value in before.items())


def test_a_gradient_that_is_not_finite_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of finite losses, too: clipping by an infinite norm would write NaN into every weight."""
    learner, recording = growth_learner(IQLConfig()), random_episodes(40)
    before = {name: value.clone() for name, value in learner.q.state_dict().items()}
    grad = torch.autograd.grad

    def overflowing(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        first, *others = grad(*args, **kwargs)
        return torch.full_like(first, torch.inf), *others

    monkeypatch.setattr(torch.autograd, "grad", overflowing)
    assert learner.update(recording).q_loss.isfinite()
    assert learner.updates == 0
    assert all(torch.equal(value, learner.q.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"expectile": 0.4}, r"expectile is 0\.4; expected a number in \[0\.5, 1\)"),
        ({"beta": -1.0}, r"beta is -1\.0; expected a number >= 0"),
        ({"target_rate": 0.0}, r"target_rate is 0\.0; expected a number in \(0, 1\]"),
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IQLConfig(**setting)


@pytest.mark.parametrize(
    ("mode", "gamma", "horizon", "whole"),
    [
        ("shaped", 1.0, 100, True),
        ("shaped", 0.995, 100, True),
        ("shaped", 0.9, 100, False),
        ("sparse", 1.0, 20, False),
    ],
)
def test_whole_returns_are_learned_where_they_keep_their_scale(
    mode: str, gamma: float, horizon: int, whole: bool
) -> None:
    assert learns_whole_returns(mode, gamma, horizon) is whole
