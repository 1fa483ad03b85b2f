"""The vector environment gives the same numbers: for the same seed, beside others, and after it was saved."""

import io
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline import (
    ActionSpec,
    DecisionSettings,
    LifecycleOp,
)
from esper.simic.env import make_env
from esper.simic.reward import RewardConfig
from esper.tolaria.worlds.toy.instance import toy_case
from growth_envs import encoded, random_run, same, summaries

G, P, F, A, S = (
    LifecycleOp.GERMINATE,
    LifecycleOp.PRUNE,
    LifecycleOp.FOSSILIZE,
    LifecycleOp.ADVANCE,
    LifecycleOp.SET_ALPHA_TARGET,
)
CASE = toy_case(17)
WAIT = ActionSpec()


def test_the_same_seed_gives_the_same_numbers() -> None:
    runs = []
    for _ in range(2):
        envs = make_env("toy_slots", 3)
        envs.reset(seed=7)
        runs.append(random_run(envs, 50, np.random.default_rng(1)))
    assert same(*runs)
    envs.reset(seed=8)
    assert not same(runs[0], random_run(envs, 50, np.random.default_rng(1)))


def test_an_env_does_not_depend_on_its_neighbours() -> None:
    many, one = make_env("toy", 3), make_env("toy", 1)
    many.reset(seed=5)
    one.reset(seed=7)  # env i has seed + i
    for step in range(45):
        ours, mine = many.step(encoded(many, WAIT)), one.step(encoded(one, WAIT))
        assert np.array_equal(ours[0]["host"][2], mine[0]["host"][0]), step
        assert ours[1][2] == mine[1][0]


@pytest.mark.parametrize("retire", [False, True])
@pytest.mark.parametrize("suite", ["toy", "toy_slots", "toy_shift"])
def test_a_saved_env_goes_on_bit_for_bit(suite: str, retire: bool) -> None:
    decisions = DecisionSettings(retire=retire)
    envs = make_env(suite, 3, decisions=decisions)
    envs.reset(seed=7)
    rng = np.random.default_rng(1)
    random_run(envs, 31, rng)
    buffer = io.BytesIO()
    torch.save(envs.state_dict(), buffer)
    position = rng.bit_generator.state
    expected = random_run(envs, 40, rng)

    other = make_env(suite, 3, decisions=decisions)
    other.reset(seed=99)
    buffer.seek(0)
    observation, info = other.load_state_dict(torch.load(buffer, weights_only=True))
    assert info["action_mask"].any()
    assert other.observation_space.contains(observation)
    rng.bit_generator.state = position
    assert same(expected, random_run(other, 40, rng))


def test_a_state_of_other_envs_is_refused_by_name() -> None:
    envs = make_env("toy", 2)
    envs.reset(seed=1)
    with pytest.raises(ValueError, match="not that of 3 environments"):
        make_env("toy", 3).load_state_dict(envs.state_dict())
    with pytest.raises(ValueError, match="have slot_ids"):
        make_env("toy_slots", 2).load_state_dict(envs.state_dict())


@pytest.mark.parametrize(
    ("options", "name"),
    [({"reward": RewardConfig(control_variate=False)}, "reward"), ({"settle": "committed"}, "settle")],
)
def test_a_state_that_would_go_on_to_other_rewards_is_refused(options: dict[str, Any], name: str) -> None:
    envs = make_env("toy", 1, **options)
    envs.reset(seed=1)
    with pytest.raises(ValueError, match=f"the saved environments have {name} "):
        make_env("toy", 1).load_state_dict(envs.state_dict())


def test_a_saved_state_is_not_moved_by_going_on() -> None:
    envs = make_env("toy", 2)
    envs.reset(seed=1)
    random_run(envs, 5, np.random.default_rng(0))
    state = envs.state_dict()
    runs = []
    for _ in range(2):
        envs.load_state_dict(state)
        runs.append(random_run(envs, 20, np.random.default_rng(1)))
    assert same(*runs)


def test_the_untrained_loss_and_what_was_counted_are_saved() -> None:
    reward = RewardConfig(family="loss")
    envs, other = (make_env("toy", 2, reward=reward, on_illegal="noop") for _ in range(2))
    envs.reset(seed=1)
    illegal = encoded(envs, ActionSpec(F, "blocks.0"))
    envs.step(illegal)
    other.load_state_dict(envs.state_dict())
    for _ in range(19):
        ours, theirs = envs.step(illegal), other.step(illegal)
        assert np.array_equal(ours[1], theirs[1])
    assert summaries(theirs[-1]) == summaries(ours[-1])
    assert summaries(theirs[-1])[0].illegal_actions == 20


def test_a_reset_after_loading_goes_on_drawing() -> None:
    envs, other = make_env("toy", 2), make_env("toy", 2)
    envs.reset(seed=1)
    other.load_state_dict(envs.state_dict())
    assert np.array_equal(envs.reset()[0]["host"], other.reset()[0]["host"])
