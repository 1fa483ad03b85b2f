"""The growth policy: one update over 64 envs x 150 steps, and acting in 64 envs at once.

On CUDA also the host syncs of an update (goal: one per epoch or fewer).

    python benchmarks/bench_growth_policy.py [--quick] [--device cuda] [--precision bf16]
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Literal

import torch

from esper.simic.agent import PPOAgent, PPOConfig
from harness import Row, report
from synthetic_growth import SyntheticGrowth, growth_policy

SLOTS, BLUEPRINTS = 4, 13
Precision = Literal["fp32", "bf16"]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: str) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - began) * 1e3


def count_syncs(work: Callable[[], object]) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def measure(device: str, precision: Precision, envs: int, steps: int, repeats: int) -> Row:
    policy = growth_policy(SLOTS, BLUEPRINTS, torch.Generator().manual_seed(0)).to(device)
    config = PPOConfig(target_kl=None, precision=precision)
    agent = PPOAgent(policy, config, num_envs=envs, num_steps=steps, seed=0)
    source = SyntheticGrowth(policy, envs, torch.Generator().manual_seed(1), device=device)
    times: list[float] = []
    syncs: int | None = None
    for repeat in range(repeats + 1):
        after = source.fill(agent)
        if device == "cuda" and repeat == 1:
            synchronize(device)
            syncs = count_syncs(lambda after=after: agent.update(after))  # type: ignore[misc]
        else:
            times.append(milliseconds(lambda after=after: agent.update(after), device))  # type: ignore[misc]
    actor = agent.actor(envs, generator=agent.action_generator)
    observation, mask, reward = source.observation(), source.mask(), source.reward()
    acting = [
        milliseconds(lambda: actor.act(observation, mask, reward=reward), device) for _ in range(50 * repeats)
    ]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, 1 thread",
        "precision": precision,
        "update_ms": sorted(times[1:])[len(times[1:]) // 2],
        "epochs": agent.n_epochs,
        "minibatches": config.num_minibatches,
        "syncs_per_update": "not on CUDA" if syncs is None else syncs,
        "act_us": sorted(acting)[len(acting) // 2] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 envs x 30 steps, two repeats")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    envs, steps, repeats = (8, 30, 2) if arguments.quick else (64, 150, 5)
    row = measure(arguments.device, arguments.precision, envs, steps, repeats)
    title = f"The growth policy: update and act, {envs} envs x {steps} steps, {SLOTS} slots, {BLUEPRINTS} blueprints"
    report(f"growth_policy_{arguments.device}_{arguments.precision}", title, [row])


if __name__ == "__main__":
    main()
