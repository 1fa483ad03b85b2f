"""Environments over the real engine: hosts that train."""

import io
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import esper
from esper.envs import SUITES
from esper.kasmina.governor import GovernorRules
from esper.simic.config.checks import ConfigError
from esper.simic.env import GrowthVectorEnv, make_env, make_single_env
from esper.simic.reward import RewardConfig
from esper.tamiyo.rules import RULE_POLICIES, rule_policy
from esper.tolaria.tasks import forget, register, suite_names
from esper.tolaria.worlds import baselines as controls
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from tiny_tasks import tiny_task

SHARED = ("host", "slots", "blueprints")


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The task `tiny` (6 epochs of milliseconds), and controls that are kept for this test only."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    register(tiny_task())
    yield
    forget("tiny")


def _play(env: GrowthVectorEnv, steps: int, rng: np.random.Generator) -> list[tuple[bytes, ...]]:
    """Everything that legal random steps show, as bytes."""
    told = []
    for _ in range(steps):
        observation, reward, terminated, _, _ = env.step(env.sample_legal(rng))
        told.append(
            (*(observation[name].tobytes() for name in SHARED), reward.tobytes(), terminated.tobytes())
        )
    return told


def test_the_same_seed_gives_the_same_numbers_bit_for_bit() -> None:
    told = []
    for _ in range(2):
        env = make_env("tiny:change=3", 2)
        env.reset(seed=3)
        told.append(_play(env, 8, np.random.default_rng(0)))
    assert told[0] == told[1]


def test_a_vector_saved_mid_episode_goes_on_bit_for_bit() -> None:
    env = make_env("tiny", 2)
    env.reset(seed=5)
    _play(env, 4, np.random.default_rng(1))
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    rest = _play(env, 7, np.random.default_rng(2))  # into the next episode

    file.seek(0)
    twin = make_env("tiny", 2)
    twin.reset(seed=0)
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert _play(twin, 7, np.random.default_rng(2)) == rest


def test_a_reset_trains_no_baseline_and_the_rewards_are_those_of_a_known_one(tmp_path: Path) -> None:
    epochs: list[int] = []
    told = []
    for _ in range(2):
        env = make_env("tiny:change=3", 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EngineWorld, "step_many", lambda *_: epochs.append(1))
            env.reset(seed=3)
        known = len(list(tmp_path.rglob("*.json")))
        told.append(_play(env, 6, np.random.default_rng(0)))
        assert len(list(tmp_path.rglob("*.json"))) == 2
        assert known == 2 * len(told) - 2  # at first none, then both
    assert not epochs
    assert told[0] == told[1]


def test_waiting_earns_exactly_nothing() -> None:
    env = make_env("tiny", 3)
    env.reset(seed=0)
    rewards = [env.step(np.zeros((3, 8), dtype=np.int64))[1] for _ in range(6)]
    assert np.array_equal(np.stack(rewards), np.zeros((6, 3)))


def test_the_return_is_the_gain_when_nothing_is_discounted() -> None:
    env = make_env("tiny", 2, reward=RewardConfig(gamma=1.0))
    env.reset(seed=1)
    rng, total = np.random.default_rng(3), np.zeros(2)
    for step in range(6):
        _, reward, terminated, _, info = env.step(env.sample_legal(rng))
        total += reward
        assert terminated.all() == (step == 5)
    for env_idx in range(2):
        summary = info["final_info"]["summary"][env_idx]
        assert summary.gain == pytest.approx(total[env_idx], abs=1e-6)
        assert summary.epochs == 6


def test_a_broken_host_ends_its_episode_and_pays_for_it() -> None:
    env = make_env("tiny", 2)
    env.reset(seed=0)
    _play(env, 2, np.random.default_rng(0))
    host = env.episodes.host(0)
    with torch.no_grad():
        next(host.model.bare_parameters()).fill_(float("nan"))  # type: ignore[attr-defined]
    _, reward, terminated, truncated, info = env.step(np.zeros((2, 8), dtype=np.int64))
    assert terminated.tolist() == [True, False]
    assert not truncated.any()
    assert reward[0] < -1.0
    assert info["final_info"]["summary"][0].rolled_back == "not_finite"
    _play(env, 2, np.random.default_rng(0))  # the next episode goes on


@pytest.mark.parametrize("workers", [0, 1])
def test_a_host_that_the_governor_gives_up_at_once_has_crashed_and_is_not_lost(workers: int) -> None:
    """Under these rules, whatever has learned in its first epoch is condemned in the second."""
    rules = GovernorRules(learned_margin=0.0, collapse_share=1e6, collapse_patience=1, max_consecutive=1)
    paid = RewardConfig(control_variate=False)
    env = make_env("digits", 1, workers=workers, horizon=4, governor=rules, reward=paid)
    try:
        env.reset(seed=0)
        for _ in range(2):
            *_, reward, terminated, truncated, info = env.step(np.zeros((1, 8), dtype=np.int64))
        assert (terminated.tolist(), truncated.tolist(), info["lost"].tolist()) == ([True], [False], [False])
        assert reward[0] < -1.0
        assert info["final_info"]["summary"][0].rolled_back == "collapsed"
        assert env.step(np.zeros((1, 8), dtype=np.int64))[-1]["lost"].tolist() == [False]
    finally:
        env.close()


@pytest.mark.parametrize("name", sorted(RULE_POLICIES))
def test_every_rule_completes_an_episode(name: str) -> None:
    env = make_single_env("tiny:change=3", on_illegal="raise")
    env.reset(seed=0)
    policy = rule_policy(name, **_options(name))
    policy.reset()
    for step in range(6):
        action = policy.act(env.situation())
        *_, terminated, _, info = env.step(env.encode(action))
        assert terminated == (step == 5)
    assert info["summary"].illegal_actions == 0


def _options(name: str) -> dict[str, Any]:
    if name == "random":
        return {"rng": np.random.default_rng(0)}
    return {"schedule": "germinate conv_small@1 t=0; advance 1 t=1"} if name == "schedule" else {}


def test_check_env_passes_on_digits() -> None:
    env = gymnasium.make("esper.envs:esper/Growth-digits-v0", reward=RewardConfig(control_variate=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render", category=UserWarning)
        check_env(env.unwrapped, skip_render_check=True)


def test_every_registered_suite_can_be_made_and_stepped() -> None:
    assert {*suite_names(), *TOY_SUITES} <= set(SUITES)
    for suite in SUITES:
        if suite == "backbone":  # its weights are files of the reader's
            continue
        env = gymnasium.make(f"esper/Growth-{suite}-v0", reward=RewardConfig(control_variate=False))
        env.reset(seed=0)
        observation, *_ = env.step(env.unwrapped.sample_legal(np.random.default_rng(0)))  # type: ignore[attr-defined]
        assert env.observation_space.contains(observation)


def test_a_suite_draws_another_case_for_each_episode_and_pads_nothing_it_need_not() -> None:
    env = make_env("cpu", 4, reward=RewardConfig(control_variate=False))
    env.reset(seed=0)
    cases = {env.episodes.episode(env_idx).case for env_idx in range(4)}
    assert len(cases) == 4
    assert env.space.slot_config.slot_ids == ("blocks.0", "blocks.1", "blocks.2")


def test_two_workers_give_the_numbers_of_none_and_train_the_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("trained in this process, while the workers wait")

    told = []
    for workers in (2, 0):
        with monkeypatch.context() as watched:
            watched.setattr(controls, "train_here", refuse)
            env = make_env("digits", 2, workers=workers, horizon=3)
            env.reset(seed=1)  # the second time the controls are on disk
            told.append(_play(env, 2, np.random.default_rng(4)))
        if workers:
            assert isinstance(env.episodes.world, ProcessWorld)
        env.close()
    assert told[0] == told[1]
    curves = env.episodes.baselines
    episode = env.episodes.episode(0)
    assert isinstance(curves, controls.BaselineCurves)
    alone = controls.compute(episode.case, episode.host_seed, 3)
    assert curves.run(episode.case, episode.host_seed) == alone


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(
        ValueError, match=r"no suite is named 'dogits'; there are toy.*cpu.* Tasks are digits"
    ):
        make_env("dogits")
    with pytest.raises(ValueError, match="noise must be"):
        make_env("mnist1d:noise=7")


def test_importing_esper_does_not_import_gymnasium_or_torch() -> None:
    code = "import sys, esper; print('gymnasium' in sys.modules, 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
    assert callable(esper.make_env)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "sparse"}, "reward is 'sparse'; expected a RewardConfig"),
        ({"settled": "worth"}, "there is no option 'settled'; .*did you mean 'settle'"),
        ({"device": "gpu"}, "device is 'gpu'; expected cpu, cuda"),
    ],
)
def test_what_no_environment_can_be_made_with_is_named(options: dict[str, Any], message: str) -> None:
    for make in (make_env, make_single_env):
        with pytest.raises(ConfigError, match=message):
            make("digits", **options)


def test_one_environment_has_the_options_that_it_is_offered() -> None:
    with pytest.raises(ConfigError, match=r"there is no option 'horizn'; .*did you mean 'horizon'") as error:
        make_single_env("toy", horizn=5)
    env = make_single_env("toy", horizon=5, governor=GovernorRules(max_consecutive=2))
    env.reset(seed=0)
    steps = 1
    while not env.step(env.sample_legal(np.random.default_rng(0)))[2]:
        steps += 1
    assert steps == 5
    assert "workers" not in str(error.value)
    for name in ("workers", "num_envs", "cluster"):
        others: dict[str, Any] = {name: 2}
        with pytest.raises(ConfigError, match=rf"no option '{name}'; .*; esper\.make_env, .*, has it"):
            make_single_env("toy", **others)
