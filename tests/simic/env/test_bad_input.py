"""Seeds, actions and options that are none are named, and the running episode goes on; what is closed is closed."""

from typing import Any

import numpy as np
import pytest

from esper.simic.env import make_env, make_single_env


@pytest.mark.parametrize("seed", [-1, 1.5, "ab", True, [1, None], [1, "a"], (2, -3)])
def test_a_seed_that_is_none_is_named(seed: Any) -> None:
    envs = make_env("toy", 2)
    with pytest.raises(
        ValueError, match=r"seed is .*; expected a whole number >= 0, or one for each of several"
    ):
        envs.reset(seed=seed)
    if not isinstance(seed, list | tuple):
        with pytest.raises(ValueError, match="expected a whole number >= 0"):
            make_single_env("toy").reset(seed=seed)


@pytest.mark.parametrize("chosen", [0.9, np.nan, None, "a"])
def test_an_action_that_is_no_choice_is_named_and_not_cut_down_to_one(chosen: Any) -> None:
    envs, env = make_env("toy", 2), make_single_env("toy")
    heads = len(envs.action_layout.names)
    envs.reset(seed=0)
    env.reset(seed=0)
    several: Any = [[chosen] * heads] * 2
    with pytest.raises(ValueError, match=r"the action is .*; expected whole numbers"):
        envs.step(several)
    with pytest.raises(ValueError, match=r"the action is .*; expected whole numbers"):
        env.step(several[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"case": 5}, "'case'. is 5; expected a text"),
        ({"case": ["toy:draw=1", 2]}, "'case'. is 2; expected a text"),
        ({"host_seed": "x"}, "'host_seed'. is 'x'; expected a whole number"),
        ({"host_seed": -1}, "'host_seed'. is -1; expected a whole number"),
        ({"host_seed": 2.5}, r"'host_seed'. is 2\.5; expected a whole number"),
        ({"host_seed": True}, "'host_seed'. is True; expected a whole number"),
        ({"host_seed": [3, 10**30]}, "'host_seed'. is 10+; expected a whole number"),
        ({"task": "toy"}, "options has task; expected case, host_seed"),
        ("case", "options is 'case'; expected a dict"),
    ],
)
def test_options_of_a_reset_are_named_and_the_episode_goes_on(options: Any, message: str) -> None:
    envs, same = make_env("toy", 2), make_env("toy", 2)
    for each in (envs, same):
        each.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.reset(seed=1, options=options)
    with pytest.raises(ValueError, match=message):
        make_single_env("toy").reset(options=options)
    wait = np.zeros((2, len(envs.action_layout.names)), dtype=np.int64)
    assert np.array_equal(envs.step(wait)[1], same.step(wait)[1])
    assert np.array_equal(envs.reset()[1]["action_mask"], same.reset()[1]["action_mask"])


def test_what_is_closed_takes_no_step() -> None:
    envs = make_env("toy", 2)
    envs.reset(seed=0)
    envs.close()
    with pytest.raises(RuntimeError, match="the environments are closed"):
        envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="the environments are closed"):
        envs.step(envs.sample_legal(np.random.default_rng(0)))
