"""One Discrete choice and one vector: what other libraries need."""

import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import esper  # noqa: F401 # registers the ids
from esper.leyline import DecisionSettings, LifecycleOp, Style
from esper.simic.env import FlatGrowthEnv, FlatVectorEnv, make_env, make_single_env


def flat(suite: str = "toy") -> FlatGrowthEnv:
    return FlatGrowthEnv(make_single_env(suite, on_illegal="raise"))


def test_every_structural_action_has_one_number() -> None:
    env = flat()
    assert env.action_space == gym.spaces.Discrete(1 + 3 * 4 + 3 * 3)
    assert len(set(env.actions)) == len(env.actions) == 22
    assert env.actions[0].op is LifecycleOp.WAIT
    assert LifecycleOp.SET_ALPHA_TARGET not in {action.op for action in env.actions}


def test_gymnasium_is_content() -> None:
    check_env(FlatGrowthEnv(make_single_env("toy")), skip_render_check=True)


@pytest.mark.parametrize("retire", [False, True])
@pytest.mark.parametrize("suite", ["toy", "toy_slots"])
def test_the_mask_allows_exactly_what_is_legal(suite: str, retire: bool) -> None:
    """What it allows is executed without complaint; what it forbids, the host's rules forbid."""
    single = make_single_env(suite, on_illegal="raise", decisions=DecisionSettings(retire=retire))
    env = FlatGrowthEnv(single)
    assert any(action.op is LifecycleOp.RETIRE for action in env.actions) is retire
    rng = np.random.default_rng(0)
    env.reset(seed=1)
    for _ in range(200):
        mask = env.action_masks()
        legal = env.env.situation().legal
        for action, allowed in zip(env.actions, mask, strict=True):
            there = legal[action.slot].operations if action.slot in legal else set[LifecycleOp]()  # type: ignore[index]
            assert allowed == (action.op is LifecycleOp.WAIT or action.op in there)
        *_, terminated, _, info = env.step(rng.choice(np.flatnonzero(mask)))
        assert np.array_equal(info["action_mask"], env.action_masks())
        if terminated:
            env.reset()


def test_frozen_heads_are_part_of_every_choice() -> None:
    single = make_single_env(
        "toy", on_illegal="raise", decisions=DecisionSettings({"style": "gate", "tempo": 5, "alpha_speed": 5})
    )
    env = FlatGrowthEnv(single)
    env.reset(seed=1)
    assert env.action_masks().sum() == 1 + 3 * 4  # WAIT, and every germination
    germinate, prune = env.actions[1], env.actions[-1]
    assert (germinate.style, germinate.tempo, prune.alpha_speed) == (Style.GATE, 5, 5)
    env.step(np.int64(1))
    assert single.situation().slots[0].style is Style.GATE


def test_what_is_no_choice_or_no_growth_env_is_named() -> None:
    env = flat()
    env.reset(seed=1)
    for action in (-1, 22):
        with pytest.raises(ValueError, match=rf"action is {action}; expected 0\.\.21"):
            env.step(np.int64(action))
    with pytest.raises(TypeError, match=r"env is OrderEnforcing; expected a GrowthEnv: gymnasium\.make"):
        FlatGrowthEnv(gym.make("esper.envs:esper/Growth-toy-v0"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_maskable_ppo_trains_under_its_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sb3_contrib

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where its logger makes a folder

    env = flat()
    model = sb3_contrib.MaskablePPO(
        "MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=2, seed=0, device="cpu"
    )
    model.learn(4096)  # on_illegal="raise": one unmasked action would end it
    observation, _ = env.reset(seed=3)
    terminated = False
    while not terminated:
        action, _ = model.predict(observation, action_masks=env.action_masks(), deterministic=True)
        observation, _, terminated, _, info = env.step(np.int64(action.item()))
    assert info["summary"].utility is not None


def test_masks_of_the_factored_env_are_refused_to_sb3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks have a row for each choice of another head; sb3 would take them for rows of a batch, or stumble."""
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
    from stable_baselines3.common.vec_env import DummyVecEnv

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where its logger makes a folder
    env = make_single_env("toy")
    assert is_masking_supported(env)  # so that it asks, and is answered
    for asked in (env, DummyVecEnv([lambda: env])):
        with pytest.raises(TypeError, match=r"give MaskablePPO esper\.FlatGrowthEnv\(env\.unwrapped\)"):
            get_action_masks(asked)
    with pytest.raises(TypeError, match="FlatGrowthEnv"):
        MaskablePPO("MultiInputPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(8)


def test_a_flat_vector_env_says_the_same_in_one_vector() -> None:
    flat_envs, envs = FlatVectorEnv(make_env("toy_slots", 3)), make_env("toy_slots", 3)
    vector, _ = flat_envs.reset(seed=1)
    parts, _ = envs.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(25):
        assert flat_envs.observation_space.contains(vector)
        joined = [parts[name].reshape(3, -1) for name in ("host", "slots", "blueprints")]
        assert np.array_equal(vector, np.concatenate(joined, axis=1))
        actions = envs.sample_legal(rng)
        vector, rewards, *_, flat_info = flat_envs.step(actions)
        parts, expected, *_, info = envs.step(actions)
        assert np.array_equal(rewards, expected)
        if "final_obs" in info:
            last = info["final_obs"][0]
            joined = [last[name].ravel() for name in ("host", "slots", "blueprints")]
            assert np.array_equal(flat_info["final_obs"][0], np.concatenate(joined))
