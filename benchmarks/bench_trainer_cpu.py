"""The whole training loop on the CPU, at the sizes of the preset `demo` (8 hosts of the suite `cpu`, 20 epochs).

- the share of a round that is not hosts training and being validated (goal: <= 10 %), here and over two workers;
- full telemetry against none, one round of each in turn (goal: <= 2 %);
- peak memory over rounds (goal: no growth), hosts and slots, each in a process of its own.

python benchmarks/bench_trainer_cpu.py [--quick]
"""

import multiprocessing
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.simic.config.training_config import TrainingConfig
from esper.tolaria.data import TaskData
from esper.tolaria.tasks import register, task
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report
from training_runs import begun, peak_mebibytes, spent, temporary_folder

SLOTS = {1: (16,), 3: (8, 16, 16), 6: (8, 8, 8, 16, 16, 16)}
"""How many -> the widths of their blocks."""


HORIZON = 20


def demo(**changes: object) -> TrainingConfig:
    """Few baselines, so that it begins soon."""
    few = {"pool_cases": 4, "workers": 0, "run_tensorboard": True}
    return TrainingConfig.preset("demo", **{**few, **changes})


def share_rows(rounds: int, horizon: int, folder: Path) -> list[Row]:
    rows: list[Row] = []
    for workers in (0, 2):
        name = f"share-{workers}"
        with begun(demo(workers=workers, run_name=name, horizon=horizon), folder) as run:
            run.one()  # the first one warms up
            before = spent(run.stopwatch)
            for _ in range(rounds):
                run.one()
            used = spent(run.stopwatch, before)
            rows.append(
                {
                    "workers": workers or "none",
                    "seconds / round": used.whole / rounds,
                    "env-epochs / s": round(rounds * 8 * horizon / used.whole, 1),
                    "outside hosts": f"{used.outside:.1%}",
                    "acting": f"{used.act / used.whole:.1%}",
                    "learning": f"{used.learn / used.whole:.1%}",
                    "logging": f"{used.log / used.whole:.1%}",
                    "saving": f"{used.save / used.whole:.1%}",
                    "making hosts (inside)": f"{used.begin / used.whole:.1%}",
                }
            )
            print(f"\nworkers: {workers or 'none'}\n{run.stopwatch.tree()}", flush=True)
    return rows


def telemetry_rows(rounds: int, horizon: int, folder: Path) -> list[Row]:
    full, off = (
        demo(run_telemetry=level, run_name=f"telemetry-{level}", horizon=horizon) for level in ("full", "off")
    )
    with begun(full, folder) as loud, begun(off, folder / "off") as quiet:
        seconds = interleaved_seconds(
            {"full": loud.one, "off": quiet.one}, rounds=rounds, warmup=1, clock=time.process_time
        )
        loud_spent, quiet_spent = spent(loud.stopwatch), spent(quiet.stopwatch)
        equal = all(
            torch.equal(mine, theirs)
            for mine, theirs in zip(
                loud.trainer.agent.policy.parameters(),
                quiet.trainer.agent.policy.parameters(),
                strict=True,
            )
        )
    middle, low, high = ratio(seconds["full"], seconds["off"])
    return [
        {
            "full, CPU ms / round": median_milliseconds(seconds["full"]),
            "off": median_milliseconds(seconds["off"]),
            "full / off": f"{middle:.3f}",
            "95 % low": f"{low:.3f}",
            "95 % high": f"{high:.3f}",
            "logging, share of a round": f"{loud_spent.log / loud_spent.whole:.2%}",
            "with none": f"{quiet_spent.log / quiet_spent.whole:.2%}",
            "the same weights": str(equal),
        }
    ]


def _peaks(hosts: int, slots: int, rounds: int, folder: str, cache: str) -> list[float]:
    """Peak MiB after each round, in a process of its own: a peak never falls again."""
    os.environ["ESPER_CACHE"] = cache
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def host(data: TaskData) -> nn.Module:
        return ConvNet(1, data.classes, dims=1, widths=SLOTS[slots], pools=(1,) * slots)

    register(replace(task("digits"), name="bench_digits", host=host, epochs=6))
    settings = {"suite": "bench_digits", "num_envs": hosts, "num_minibatches": min(4, hosts)}
    config = demo(**settings, run_name=f"memory-{hosts}-{slots}", pool_cases=1)
    peaks = []
    with begun(config, Path(folder)) as run:
        for _ in range(rounds):
            run.one()
            peaks.append(peak_mebibytes())
    return peaks


def memory_rows(quick: bool, folder: Path) -> list[Row]:
    cells = [(2, 3), (4, 3)] if quick else [(2, 3), (8, 3), (32, 3), (8, 1), (8, 6)]
    spawn = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    for hosts, slots in cells:
        rounds = 4 if quick else 24
        with spawn.Pool(1) as pool:
            cache = os.environ["ESPER_CACHE"]
            peaks = pool.apply(_peaks, (hosts, slots, rounds, str(folder), cache))
        half = rounds // 2  # until then every kind of seed was met, and the allocators have what they need
        rows.append(
            {
                "hosts": hosts,
                "slots": slots,
                f"peak MiB, round {half}": round(peaks[half - 1], 1),
                f"round {rounds}": round(peaks[-1], 1),
                "growth / round": round((peaks[-1] - peaks[half - 1]) / (rounds - half), 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    quick = arguments(__doc__ or "").quick
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="advantage std", category=RuntimeWarning)
    horizon = 6 if quick else HORIZON
    with temporary_folder() as folder:
        os.environ["ESPER_CACHE"] = str(folder / "cache")
        share = share_rows(1 if quick else 8, horizon, folder)
        report("trainer_cpu_share", "A round outside its hosts, preset demo", share)
        telemetry = telemetry_rows(3 if quick else 12, horizon, folder)
        report("trainer_cpu_telemetry", "Full telemetry against none", telemetry)
        report("trainer_cpu_memory", "Peak memory of a run", memory_rows(quick, folder))


if __name__ == "__main__":
    main()
