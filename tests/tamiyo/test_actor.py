"""The handle for inference keeps the memory and cannot be called without a mask."""

import inspect

import pytest
import torch

from esper.tamiyo import Actor, RecurrentActorCritic, discrete_layout


def make(*, uses_previous: bool = False) -> RecurrentActorCritic:
    return RecurrentActorCritic(
        3,
        discrete_layout(4),
        hidden_size=5,
        uses_previous=uses_previous,
        generator=torch.Generator().manual_seed(0),
    )


def test_the_mask_is_demanded_and_kept() -> None:
    assert inspect.signature(Actor.act).parameters["mask"].default is inspect.Parameter.empty
    actor = Actor(make(), 2, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[False, True, False, False], [False, False, False, True]])
    assert actor.act(torch.zeros(2, 3), mask).tolist() == [[1], [3]]
    with pytest.raises(ValueError, match="no legal choice"):
        actor.act(torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask is torch\.bool"):
        actor.act(torch.zeros(2, 3), mask[:, :2])
    with pytest.raises(ValueError, match="observation has shape"):
        actor.act(torch.zeros(2, 2), mask)


def test_memory_is_kept_between_steps_and_forgotten_on_reset() -> None:
    actor = Actor(make(), 2)
    mask = torch.ones(2, 4, dtype=torch.bool)
    blank = actor.state_dict()
    actor.act(torch.ones(2, 3), mask)
    after = actor.state_dict()
    assert not torch.equal(after["hidden"], blank["hidden"])
    actor.reset(torch.tensor([True, False]))
    assert actor.state_dict()["hidden"][:, 0].abs().max() == 0
    assert torch.equal(actor.state_dict()["hidden"][:, 1], after["hidden"][:, 1])
    actor.load_state_dict(after)
    assert torch.equal(actor.state_dict()["hidden"], after["hidden"])
    with pytest.raises(ValueError, match="hidden has shape"):
        Actor(make(), 3).load_state_dict(after)


def test_a_policy_that_sees_rewards_demands_them() -> None:
    actor = Actor(make(uses_previous=True))
    mask = torch.ones(1, 4, dtype=torch.bool)
    actor.act(torch.zeros(1, 3), mask)
    with pytest.raises(ValueError, match="reward is missing"):
        actor.act(torch.zeros(1, 3), mask)
    actor.act(torch.zeros(1, 3), mask, reward=torch.ones(1))
    actor.reset()
    actor.act(torch.zeros(1, 3), mask)


@pytest.mark.parametrize("begun_anew", [False, True])
def test_one_that_goes_on_elsewhere_treats_the_next_reward_alike(begun_anew: bool) -> None:
    mask, stale = torch.ones(2, 4, dtype=torch.bool), torch.tensor([50.0, -50.0])
    actor, other = Actor(make(uses_previous=True), 2), Actor(make(uses_previous=True), 2)
    actor.act(torch.ones(2, 3), mask)
    if begun_anew:
        actor.reset(torch.tensor([True, False]))
    other.load_state_dict(actor.state_dict())
    with pytest.raises(ValueError, match="reward is missing"):
        other.act(torch.ones(2, 3), mask)
    for each in (actor, other):
        each.act(torch.ones(2, 3), mask, reward=stale)
    theirs = other.state_dict()
    assert theirs["previous_reward"].tolist() == [0.0 if begun_anew else 50.0, -50.0]
    assert all(torch.equal(value, theirs[name]) for name, value in actor.state_dict().items())
    with pytest.raises(ValueError, match="state has hidden; expected awaits_reward, fresh, hidden"):
        other.load_state_dict({"hidden": theirs["hidden"]})


def test_the_reward_of_the_old_episode_is_not_seen_in_the_new_one() -> None:
    mask = torch.ones(2, 4, dtype=torch.bool)
    hidden = []
    for reward in (torch.tensor([5.0, 1.0]), torch.tensor([0.0, 1.0])):
        actor = Actor(make(uses_previous=True), 2)
        actor.act(torch.ones(2, 3), mask)
        actor.reset(torch.tensor([True, False]))
        actor.act(torch.ones(2, 3), mask, reward=reward)
        actor.act(torch.ones(2, 3), mask, reward=torch.ones(2))  # this one counts in both envs
        assert actor.state_dict()["previous_reward"].tolist() == [1.0, 1.0]
        hidden.append(actor.state_dict()["hidden"])
    assert torch.equal(hidden[0], hidden[1])
