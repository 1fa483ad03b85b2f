"""The single environment: Gymnasium's own checks, registered ids, rendering."""

import subprocess
import sys
from dataclasses import asdict
from typing import cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation, RecordEpisodeStatistics, TimeLimit

import esper.envs  # noqa: F401 # registers the ids
from copies import run_in_a_copy
from esper.leyline import HEAD_NAMES, ActionSpec, EpisodeFinished, LifecycleOp
from esper.simic.env import GrowthEnv, make_env, make_single_env
from esper.tamiyo.actions import encode

TOY = "esper/Growth-toy-v0"


def made(render_mode: str | None = None) -> GrowthEnv:
    return cast(GrowthEnv, gym.make(TOY, render_mode=render_mode).unwrapped)


def test_gymnasium_is_content() -> None:
    check_env(made())
    check_env(made(render_mode="rgb_array"))


def test_actions_are_in_the_order_of_the_heads() -> None:
    env = made()
    assert env.action_space.shape == (len(HEAD_NAMES),)
    assert tuple(env.action_layout.names) == HEAD_NAMES


def test_gymnasiums_wrappers_work() -> None:
    env = RecordEpisodeStatistics(FlattenObservation(TimeLimit(gym.make(TOY), 7)))
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    for step in range(7):
        *_, truncated, info = env.step(env.action_space.sample())
        assert truncated == (step == 6)
    assert info["episode"]["l"] == 7


def test_vector_ids_work() -> None:
    envs = gym.make_vec(TOY, num_envs=3)
    envs.reset(seed=1)
    for _ in range(30):
        envs.step(envs.action_space.sample())
    envs = gym.make_vec(TOY, num_envs=2, vectorization_mode="sync")
    envs.reset(seed=1)
    for _ in range(30):
        envs.step(envs.action_space.sample())


def test_one_env_is_a_vector_of_one() -> None:
    single, vector = make_single_env("toy"), make_env("toy", 1)
    rng = np.random.default_rng(0)
    observation, info = single.reset(seed=5)
    batch, _ = vector.reset(seed=5)
    for _ in range(70):
        assert np.array_equal(info["action_mask"], vector.action_masks()[0])
        assert all(np.array_equal(observation[name], batch[name][0]) for name in observation)
        action = single.sample_legal(rng)
        observation, reward, terminated, _, info = single.step(action)
        batch, rewards, *_, infos = vector.step(action[np.newaxis])
        assert reward == rewards[0]
        assert reward == pytest.approx(sum(info["reward"].values()))
        if terminated:
            assert asdict(info["summary"]) == asdict(infos["final_info"]["summary"][0])
            assert all(np.array_equal(observation[name], infos["final_obs"][0][name]) for name in observation)
            observation, info = single.reset()


def test_illegal_is_a_wait_that_is_told_and_counted() -> None:
    env = make_single_env("toy")
    env.reset(seed=1)
    illegal = encode(ActionSpec(LifecycleOp.FOSSILIZE, "blocks.1"), env.space, env.space.slot_config)
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step(illegal)
        assert (info["illegal"].head, info["illegal"].value) == ("op", "FOSSILIZE")
    assert isinstance(info["summary"], EpisodeFinished)
    assert info["summary"].illegal_actions == info["summary"].epochs == 20
    with pytest.raises(RuntimeError, match="the episode is over"):
        env.step(illegal)


def test_state_goes_on() -> None:
    env, other = make_single_env("toy_shift"), make_single_env("toy_shift")
    env.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(7):
        env.step(env.sample_legal(rng))
    other.load_state_dict(env.state_dict())
    for _ in range(13):
        action = env.sample_legal(rng)
        ours, theirs = env.step(action), other.step(action)
        assert ours[1:4] == theirs[1:4]
    first, second = env.reset()[0], other.reset()[0]  # the next episode is the same one too
    assert np.array_equal(first["host"], second["host"])


def test_a_finished_episode_is_taken_up_as_finished() -> None:
    env, other = make_single_env("toy"), make_single_env("toy")
    env.reset(seed=2)
    wait = np.zeros(len(HEAD_NAMES), dtype=np.int64)
    for _ in range(20):
        env.step(wait)
    other.load_state_dict(env.state_dict())
    with pytest.raises(RuntimeError, match="the episode is over"):
        other.step(wait)
    assert np.array_equal(env.reset()[0]["host"], other.reset()[0]["host"])


def test_an_unseeded_env_works_and_a_seeded_one_repeats() -> None:
    env = make_single_env("toy")
    env.reset()
    first, _ = env.reset(seed=4)
    again, _ = env.reset(seed=4)
    next_one, _ = env.reset()
    assert np.array_equal(first["host"], again["host"])
    assert not np.array_equal(first["host"], next_one["host"])


def test_rendering_shows_slots_stages_and_alphas() -> None:
    env = make_single_env("toy", render_mode="ansi")
    env.reset(seed=1)
    for action in (
        ActionSpec(LifecycleOp.GERMINATE, "blocks.1", "norm"),
        ActionSpec(LifecycleOp.ADVANCE, "blocks.1"),
    ):
        env.step(encode(action, env.space, env.space.slot_config))
    text = env.render()
    assert isinstance(text, str)
    assert "epoch 2: validation accuracy" in text
    assert "blocks.1  BLENDING norm, alpha 0.333 of 1, 16 parameters" in text
    assert "blocks.0  DORMANT" in text
    env.render_mode = "rgb_array"
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.std() > 10  # something is drawn
    assert np.median(picture) == 255  # on white
    with pytest.raises(ValueError, match="render_mode is 'human'; expected one of rgb_array, ansi"):
        make_single_env("toy", render_mode="human")
    envs = make_env("toy", 2, render_mode="ansi")
    envs.reset(seed=1)
    frames = envs.render()
    assert frames is not None
    assert len(frames) == 2


@pytest.mark.parametrize(
    ("imports", "env_id"),
    [
        ("import gymnasium", f"esper.envs:{TOY}"),
        ("import gymnasium, esper.envs", TOY),
        ("import esper.envs, gymnasium", TOY),
    ],
)
def test_ids_are_registered_by_their_module(imports: str, env_id: str) -> None:
    code = (
        "import sys; assert not {'gymnasium', 'esper.envs'} & sys.modules.keys(); "
        f"{imports}; print(gymnasium.make('{env_id}').unwrapped.action_space)"
    )
    assert run_in_a_copy(code).startswith("MultiDiscrete")


def test_importing_esper_imports_no_gymnasium_and_hooks_nothing() -> None:
    code = (
        "import sys; before = list(sys.meta_path); import esper; "
        "sys.exit(sys.meta_path != before or 'gymnasium' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
