"""Environments: the reward of 64 envs, steps of the toy and of digits, what a step costs outside its world, workers.

python benchmarks/bench_env.py [--quick]
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from esper.leyline import HostStep, World
from esper.simic.env import GrowthVectorEnv, make_env, make_world
from esper.simic.reward import RewardConfig, RewardInputs, Standings, compute_rewards
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report

ENVS = 64


class TimedWorld:
    """A world that adds up the seconds spent in it."""

    def __init__(self, world: World) -> None:
        self.world, self.seconds = world, 0.0
        self.begin_many, self.host = world.begin_many, world.host
        self.snapshot, self.restore = world.snapshot, world.restore

    def step_many(self, steps: Sequence[HostStep]) -> None:
        began = time.perf_counter()
        self.world.step_many(steps)
        self.seconds += time.perf_counter() - began


def reward_microseconds(rounds: int) -> float:
    rng = np.random.default_rng(0)
    batch = RewardInputs(
        Standings(*rng.random((5, ENVS))),
        Standings(*rng.random((5, ENVS))),
        np.full(ENVS, 1426.0),
        np.full(ENVS, 2000.0),
        np.full(ENVS, 2.3),
        rng.random(ENVS) < 0.05,
        np.zeros(ENVS, dtype=np.bool_),
    )
    config = RewardConfig()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        compute_rewards(config, batch).total  # noqa: B018
        seconds.append(time.perf_counter() - began)
    return 1e6 * statistics.median(seconds)


def step_rows(rounds: int) -> list[Row]:
    """Steps of 64 toy hosts: all waiting, and at random among the legal actions. Resets are counted in."""
    rows: list[Row] = []
    for policy in ("wait", "random"):
        setting = make_world("toy", ENVS)
        world = TimedWorld(setting.world)
        envs = GrowthVectorEnv(replace(setting, world=world).episodes(reward=RewardConfig()))
        envs.reset(seed=0)
        rng = np.random.default_rng(0)
        wait = np.zeros((ENVS, envs.action_layout.head_count), dtype=np.int64)
        seconds, world_seconds = 0.0, world.seconds
        for _ in range(rounds):
            actions = wait if policy == "wait" else envs.sample_legal(rng)
            began = time.perf_counter()
            envs.step(actions)
            seconds += time.perf_counter() - began
        inside = world.seconds - world_seconds
        rows.append(
            {
                "policy": policy,
                "env_steps_per_second": round(rounds * ENVS / seconds),
                "us_per_env_step": 1e6 * seconds / rounds / ENVS,
                "us_in_the_world": 1e6 * inside / rounds / ENVS,
                "ms_per_batch_outside": 1e3 * (seconds - inside) / rounds,
            }
        )
    return rows


def worker_rows(rounds: int) -> list[Row]:
    """The same in processes: what a message costs when the work itself costs nothing."""
    rows: list[Row] = []
    for workers in (0, 2):
        envs = make_env("toy", ENVS, workers=workers)
        envs.reset(seed=0)
        wait = np.zeros((ENVS, envs.action_layout.head_count), dtype=np.int64)
        seconds = []
        for _ in range(min(rounds, 19)):  # no reset in between
            began = time.perf_counter()
            envs.step(wait)
            seconds.append(time.perf_counter() - began)
        rows.append(
            {"workers": workers or "none", "us_per_env_step": 1e6 * statistics.median(seconds) / ENVS}
        )
    return rows


def engine_share_rows(epochs: int) -> list[Row]:
    """What a step costs outside the engine: digits, random legal growth (goal: <= 5 %)."""
    rows: list[Row] = []
    for hosts in (1, 8):
        setting = make_world("digits", hosts)
        world = TimedWorld(setting.world)
        alone = RewardConfig(control_variate=False)
        envs = GrowthVectorEnv(replace(setting, world=world).episodes(reward=alone))
        envs.reset(seed=0)
        rng, seconds = np.random.default_rng(0), 0.0
        for _ in range(min(epochs, setting.horizon - 1)):  # no reset in between
            actions = envs.sample_legal(rng)
            began = time.perf_counter()
            envs.step(actions)
            seconds += time.perf_counter() - began
        rows.append(
            {
                "hosts": hosts,
                "ms per host-epoch": 1e3 * seconds / min(epochs, setting.horizon - 1) / hosts,
                "share outside the engine": (seconds - world.seconds) / seconds,
            }
        )
    return rows


def engine_worker_rows(rounds: int) -> list[Row]:
    """One worker process against two, digits, 8 hosts, one epoch each in turn (goal: >= 1.7 times)."""
    vectors = {
        workers: make_env("digits", 8, workers=workers, reward=RewardConfig(control_variate=False))
        for workers in (1, 2)
    }
    for envs in vectors.values():
        envs.reset(seed=0)
    wait = np.zeros((8, 8), dtype=np.int64)
    seconds = interleaved_seconds(
        {str(workers): partial(envs.step, wait) for workers, envs in vectors.items()}, rounds=rounds, warmup=1
    )
    middle, low, high = ratio(seconds["1"], seconds["2"])
    for envs in vectors.values():
        envs.close()
    return [
        {
            "one worker, ms / step of 8": median_milliseconds(seconds["1"]),
            "two workers": median_milliseconds(seconds["2"]),
            "times faster": f"{middle:.2f}",
            "95 % low": f"{low:.2f}",
            "95 % high": f"{high:.2f}",
        }
    ]


def main() -> None:
    quick = arguments(__doc__ or "").quick
    rounds = 40 if quick else 400
    report(
        "env_reward",
        f"Rewards of {ENVS} envs at once",
        [{"microseconds": reward_microseconds(10 * rounds)}],
    )
    report("env_steps", f"Steps of {ENVS} toy hosts in one process", step_rows(rounds))
    report("env_workers", f"Steps of {ENVS} toy hosts, here and in processes", worker_rows(rounds))
    report("env_engine_share", "A step on digits outside the engine", engine_share_rows(5 if quick else 19))
    report("env_engine_workers", "Digits in one worker and in two", engine_worker_rows(4 if quick else 16))


if __name__ == "__main__":
    main()
