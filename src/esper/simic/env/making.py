"""Environments by the name of a suite: the one place that knows which world runs which suite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from esper.leyline import Controls, World
from esper.simic.env.cases import CaseSource
from esper.simic.env.single import GrowthEnv
from esper.simic.env.vector import GrowthVectorEnv
from esper.simic.rewards import RewardConfig
from esper.simic.toy.suites import TOY_SUITES
from esper.simic.toy.world import ToyControls, ToyWorld
from esper.simic.workers import ProcessWorld
from esper.tamiyo.space import GrowthSpace

TOY_HORIZON = 20


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything a suite needs to become an environment."""

    world: World
    controls: Controls
    cases: CaseSource
    space: GrowthSpace
    horizon: int
    rent: float


def make_world(suite: str, num_hosts: int, *, device: str = "cpu", workers: int = 0) -> Setting:
    """The world that runs a suite, with `num_hosts` hosts on `device`, here or spread over worker processes."""
    if suite not in _SETTINGS:
        raise ValueError(f"no suite is named {suite!r}; there are {', '.join(_SETTINGS)}")
    return _SETTINGS[suite](num_hosts, device, workers)


def make_env(
    suite: str,
    num_envs: int = 1,
    *,
    device: str = "cpu",
    workers: int = 0,
    reward: RewardConfig | None = None,
    **options: Any,
) -> GrowthVectorEnv:
    """A vector environment over a suite; `options` are those of `GrowthVectorEnv`."""
    setting = make_world(suite, num_envs, device=device, workers=workers)
    return GrowthVectorEnv(
        setting.world,
        setting.space,
        setting.cases,
        num_envs=num_envs,
        horizon=setting.horizon,
        controls=setting.controls,
        reward=_reward(setting, reward),
        **options,
    )


def make_single_env(
    suite: str, *, device: str = "cpu", reward: RewardConfig | None = None, **options: Any
) -> GrowthEnv:
    """One environment over a suite; `options` are those of `GrowthEnv`."""
    setting = make_world(suite, 1, device=device)
    return GrowthEnv(
        setting.world,
        setting.space,
        setting.cases,
        horizon=setting.horizon,
        controls=setting.controls,
        reward=_reward(setting, reward),
        **options,
    )


def make_registered_vector_env(num_envs: int, suite: str, **options: Any) -> GrowthVectorEnv:
    """What `gymnasium.make_vec` calls; as tolerant of illegal actions as the single environment."""
    return make_env(suite, num_envs, **{"on_illegal": "noop", **options})


def _reward(setting: Setting, reward: RewardConfig | None) -> RewardConfig:
    return replace(RewardConfig(), rent=setting.rent) if reward is None else reward


def _toy(suite: str, num_hosts: int, device: str, workers: int) -> Setting:
    if device != "cpu":
        raise ValueError(f"device is {device!r}; the toy has nothing to compute there, expected 'cpu'")
    source = TOY_SUITES[suite]
    world: World = ToyWorld(num_hosts)
    if workers:
        world = ProcessWorld("esper.simic.toy.world:ToyWorld", num_hosts=num_hosts, workers=workers)
    space = _toy_space(max(source.slots))
    return Setting(world, ToyControls(TOY_HORIZON), source, space, TOY_HORIZON, 0.01)


def _toy_space(slots: int) -> GrowthSpace:
    world = ToyWorld(1)
    world.begin(0, f"toy:draw=0,slots={slots}", 0)
    return GrowthSpace.covering([world.host(0)])


_SETTINGS: Mapping[str, Callable[[int, str, int], Setting]] = {
    suite: partial(_toy, suite) for suite in TOY_SUITES
}
