"""Workers on a cluster against worker processes: a round of 8 hosts, what its messages weigh, what the learner does.

OMP_NUM_THREADS=1 python benchmarks/bench_cluster.py [--quick]

The rounds of both are played in turn on the same two cores, step by step: 8 hosts of `digits` that act at random,
with two workers each. The learner's own part, which is the same, is left out of the ratio and measured by itself.
"""

import contextlib
import os
import pickle
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from esper.leyline import HostStep
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import GrowthVectorEnv, make_env
from esper.simic.reward import RewardConfig
from esper.simic.trainer import VectorizedPPOTrainer
from esper.tolaria.worlds.remote import RemoteWorld
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report

HOSTS, WORKERS, EPOCHS = 8, 2, 20
COLUMNS = 64


def spread_over(cluster: str | None) -> GrowthVectorEnv:
    """8 hosts in two workers, begun."""
    envs = make_env(
        "digits", HOSTS, workers=WORKERS, cluster=cluster, reward=RewardConfig(control_variate=False)
    )
    envs.reset(seed=0)
    return envs


def round_rows(steps: int) -> list[Row]:
    """Milliseconds of a step of all hosts in processes and on a cluster, and their ratio over whole rounds."""
    both = {"processes": spread_over(None), "cluster": spread_over("local")}
    try:
        rngs = {name: np.random.default_rng(0) for name in both}

        used: dict[str, list[float]] = {name: [] for name in both}

        def step(name: str) -> None:
            before = cpu_seconds()
            both[name].step(both[name].sample_legal(rngs[name]))
            used[name].append(cpu_seconds() - before)

        seconds = interleaved_seconds({name: partial(step, name) for name in both}, rounds=steps)
        cpu = {name: each[-steps:] for name, each in used.items()}  # without those to warm up
        rows: list[Row] = []
        for clock, taken in (("wall", seconds), ("CPU, all processes", cpu)):
            middle, low, high = ratio(taken["cluster"], taken["processes"])
            rows.append(
                {
                    "clock": clock,
                    "ms_in_processes": median_milliseconds(taken["processes"]),
                    "ms_on_cluster": median_milliseconds(taken["cluster"]),
                    "ratio": middle,
                    "from": low,
                    "to": high,
                    "of_all_steps": sum(taken["cluster"]) / sum(taken["processes"]),
                }
            )
        report("bench_cluster", f"a step of {HOSTS} hosts of digits, {WORKERS} workers, in turn", rows)
        weigh(both["processes"])
    finally:
        for envs in both.values():
            envs.close()
    return rows


def cpu_seconds() -> float:
    """CPU time so far of this process and all below it, Ray's own among them; Linux."""
    stats = process_stats()
    ticks = (int(stats[pid][11]) + int(stats[pid][12]) for pid in below() if pid in stats)
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def below() -> set[int]:
    """This process and all below it."""
    parents = {pid: int(numbers[1]) for pid, numbers in process_stats().items()}
    mine = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= found
    return mine


def process_stats() -> dict[int, list[str]]:
    """pid -> what Linux says of each process, from its state on."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return stats


def weigh(envs: GrowthVectorEnv) -> None:
    """Bytes of a worker's messages, with four hosts each, and of one host's state."""
    world = envs.episodes.world
    assert isinstance(world, RemoteWorld)
    hosts = range(0, HOSTS, WORKERS)
    steps = [HostStep(host_idx) for host_idx in hosts]
    views = [world.host(host_idx).view for host_idx in hosts]
    state = world.snapshot([0])[0]
    rows: list[Row] = [
        {"message": "a step, to a worker", "bytes": len(pickle.dumps(steps))},
        {"message": "a step, its answer", "bytes": len(pickle.dumps(views))},
        {"message": "the state of one host", "bytes": len(pickle.dumps(state))},
    ]
    report("bench_cluster_messages", f"messages of a worker with {len(hosts)} hosts", rows)


def memory_rows(samples: int) -> list[Row]:
    """Memory that a large table costs two workers with a host each: with data of their own, and from the store."""
    rows: list[Row] = []
    for cluster in (None, "local"):
        small, large = (memory_of_workers(count, cluster) for count in (1000, samples))
        rows.append(
            {
                "hosts_in": "processes" if cluster is None else "cluster",
                "table_MiB": 4 * samples * COLUMNS / 2**20,
                "MiB_over_a_small_table": (large - small) / 2**20,
            }
        )
    return rows


def memory_of_workers(samples: int, cluster: str | None) -> int:
    """Bytes that the processes of two workers have after an epoch on a table of so many rows."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((samples, COLUMNS)).astype(np.float32)
    values[:, -1] = rng.integers(4, size=samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npy"
        np.save(path, values)
        reward = RewardConfig(control_variate=False)
        envs = make_env(f"tabular:path={path}", WORKERS, workers=WORKERS, cluster=cluster, reward=reward)
        envs.reset(seed=0)
        envs.step(envs.sample_legal(rng))
        found = private_bytes()
        envs.close()
    return found


def private_bytes() -> int:
    """Memory that the processes below this one have each for itself; Linux."""
    total = 0
    for pid in below() - {os.getpid()}:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return total


def learner_rows(rounds: int) -> list[Row]:
    """What the learner does for an epoch of a host besides waiting for it: rounds on the toy."""
    config = TrainingConfig(suite="toy", num_envs=64, rounds=rounds, eval_every=0, run_telemetry="rounds")
    trainer = VectorizedPPOTrainer(config, build(config))
    trainer.begin()
    began = time.perf_counter()
    trainer.train()
    seconds, parts = time.perf_counter() - began, trainer.stopwatch.seconds
    hosts = sum(spent for path, spent in parts.items() if path.endswith("/hosts"))
    learn = sum(spent for path, spent in parts.items() if path.endswith("/learn"))
    per_epoch = 1e3 / (rounds * EPOCHS * config.num_envs)
    return [
        {"part": "observe, reward, act, store", "ms_per_env_epoch": (seconds - hosts - learn) * per_epoch},
        {"part": "learn", "ms_per_env_epoch": learn * per_epoch},
    ]


def message_rows(steps: int) -> list[Row]:
    """What a message to a worker and its answer costs: steps of toy hosts, which take microseconds."""
    rows: list[Row] = []
    for cluster in (None, "local"):
        with make_toy(cluster) as world:
            seconds = []
            for _ in range(steps):
                began = time.perf_counter()
                world.step_many([HostStep(host_idx) for host_idx in range(HOSTS)])
                seconds.append(time.perf_counter() - began)
        rows.append(
            {
                "hosts_in": "processes" if cluster is None else "cluster",
                "ms_per_message": median_milliseconds(seconds) / WORKERS,
                "messages_per_s": WORKERS / statistics.median(seconds),
            }
        )
    return rows


def make_toy(cluster: str | None) -> RemoteWorld:  # type: ignore[type-arg]
    """8 toy hosts in two workers, begun."""
    envs = make_env("toy", HOSTS, workers=WORKERS, cluster=cluster)
    envs.reset(seed=0)
    world = envs.episodes.world
    assert isinstance(world, RemoteWorld)
    return world


def main() -> None:
    quick = arguments(__doc__ or "").quick
    round_rows(10 if quick else 60)
    report(
        "bench_cluster_links",
        "messages to two workers whose hosts cost nothing",
        message_rows(50 if quick else 500),
    )
    report(
        "bench_cluster_memory",
        "memory that two workers add for one table",
        memory_rows(10_000 if quick else 160_000),
    )
    report("bench_cluster_learner", "the learner, on the toy with 64 hosts", learner_rows(2 if quick else 10))


if __name__ == "__main__":
    main()
