"""Environments over the toy that several tests share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.kasmina import GrowthRules
from esper.leyline import ActionSpec, EpisodeFinished
from esper.simic.env import GrowthVectorEnv
from esper.simic.env.episodes import Episodes
from esper.tamiyo.actions import GrowthSpace, encode
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyWorld
from esper.tolaria.worlds.toy.instance import BLUEPRINTS, toy_case, toy_instance
from world_steps import begin_host


def toy_space(*cases: str) -> GrowthSpace:
    """Places for all of these cases' slots."""
    world = ToyWorld(len(cases))
    for host_idx, case in enumerate(cases):
        begin_host(world, host_idx, case, 0)
    return GrowthSpace.covering([world.host(host_idx) for host_idx in range(len(cases))])


def toy_envs(
    cases: Sequence[str],
    *,
    num_envs: int = 1,
    horizon: int = 6,
    rules: GrowthRules | None = None,
    **options: Any,
) -> GrowthVectorEnv:
    return GrowthVectorEnv(
        Episodes(
            ToyWorld(num_envs, rules),
            toy_space(*cases),
            cases,
            num_envs=num_envs,
            horizon=horizon,
            baselines=ToyBaselines(horizon),
            **options,
        )
    )


def encoded(envs: GrowthVectorEnv, *actions: ActionSpec) -> NDArray[np.int64]:
    """(env, head): one action for all envs, or one each."""
    chosen = actions * envs.num_envs if len(actions) == 1 else actions
    return np.stack(
        [
            encode(action, envs.space, envs.episodes.host(env_idx).slot_config)
            for env_idx, action in enumerate(chosen)
        ]
    )


def summaries(info: dict[str, Any]) -> list[EpisodeFinished]:
    final = info["final_info"]
    return [final["summary"][env_idx] for env_idx in np.flatnonzero(final["_summary"])]


def random_run(envs: GrowthVectorEnv, steps: int, rng: np.random.Generator) -> list[NDArray[Any]]:
    """Everything that came of random legal actions."""
    seen: list[NDArray[Any]] = []
    for _ in range(steps):
        observation, reward, terminated, truncated, info = envs.step(envs.sample_legal(rng))
        seen += [*observation.values(), reward, terminated, truncated, info["action_mask"]]
        if "final_obs" in info:
            for env_idx in np.flatnonzero(info["_final_obs"]):
                seen += list(info["final_obs"][env_idx].values())
            seen += [np.array([repr(summary) for summary in summaries(info)])]
    return seen


def same(ours: list[NDArray[Any]], theirs: list[NDArray[Any]]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


def harmful() -> tuple[str, str]:
    """A case and a blueprint that the governor will not have in its first slot."""
    for draw in range(2000):
        gains = toy_instance(toy_case(draw)).phases[0].gains[0]
        if min(gains) < -0.345:
            return toy_case(draw, noise=0.0), BLUEPRINTS[gains.index(min(gains))]
    raise AssertionError("no draw is harmful enough")
