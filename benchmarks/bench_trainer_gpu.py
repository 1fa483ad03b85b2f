"""The whole training loop on CUDA: collecting with CIFAR-shaped hosts, rewards, learning, logging, saving.

The task `synthetic` (hosts of 8-16-32 channels, batch 512, 88 minibatches an epoch, bf16) with every head free, full
telemetry, one process or hosts over `--workers` more. Goals with 32 hosts: >= 600,000 trained samples/s, <= 5 % of a
round outside hosts.
Measured at 8, 32 and 128 hosts, with the device's peak memory of each.

Workers share a device best under NVIDIA's MPS (`nvidia-cuda-mps-control -d`); without it they take turns.

python benchmarks/bench_trainer_gpu.py [--quick] [--workers N]
python benchmarks/bench_trainer_gpu.py --device cpu --hosts 2     # to see that it runs
"""

import argparse
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from esper.simic.config.training_config import TrainingConfig
from esper.tolaria.tasks import Instance, task
from harness import Row, report
from training_runs import begun, peak_mebibytes, spent, temporary_folder

SAMPLES = 45_056
"""88 minibatches of 512."""


@dataclass(frozen=True, slots=True)
class Cell:
    hosts: int
    horizon: int
    rounds: int
    """The first of them, in which kernels are chosen, is not measured where there are several."""
    samples: int = SAMPLES


CELLS = (Cell(8, 10, 2), Cell(32, 10, 2), Cell(128, 6, 1))
QUICK = (Cell(8, 6, 1), Cell(32, 6, 1))


def measured(cell: Cell, device: str, workers: int, folder: Path) -> Row:
    on_gpu = device != "cpu"
    config = TrainingConfig(
        suite=f"synthetic:samples={cell.samples}",
        device=device,
        num_envs=cell.hosts,
        workers=workers,
        horizon=cell.horizon,
        rounds=cell.rounds,
        pool_cases=1,
        pool_host_seeds=2,
        eval_every=0,
        run_name=f"{device.replace(':', '-')}-{cell.hosts}",
    )
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with begun(config, folder) as run:
        prepared = time.perf_counter() - began
        for _ in range(cell.rounds - 1):
            run.one()
        before = spent(run.stopwatch)
        run.one()
        used = spent(run.stopwatch, before)
        print(f"\n{cell.hosts} hosts, all rounds\n{run.stopwatch.tree()}", flush=True)
    row = task(Instance.parse(config.suite).task)
    batch, steps = row.batch, row.steps_per_epoch or max(cell.samples // row.batch, 1)
    epochs = cell.hosts * cell.horizon
    epoch_seconds = used.hosts - used.begin
    memory = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_mebibytes()
    return {
        "hosts": cell.hosts,
        "workers": workers,
        "epochs": cell.horizon,
        "seconds / round": used.whole,
        "env-epochs / s": epochs / used.whole,
        "samples / s": round(epochs * steps * batch / used.whole),
        "samples / s in hosts": round(epochs * steps * batch / epoch_seconds),
        "outside hosts": f"{used.outside:.1%}",
        "making hosts (inside)": f"{used.begin / used.whole:.1%}",
        "acting": f"{used.act / used.whole:.1%}",
        "learning": f"{used.learn / used.whole:.1%}",
        "logging": f"{used.log / used.whole:.1%}",
        "saving": f"{used.save / used.whole:.1%}",
        "peak MiB": "of workers, not known" if workers else round(memory, 1),
        "seconds before": round(prepared, 1),
    }


def chosen_cells(options: argparse.Namespace) -> tuple[Cell, ...]:
    if options.device == "cpu":
        return (Cell(options.hosts or 2, 5, 1, samples=512),)
    cells = QUICK if options.quick else CELLS
    return tuple(cell for cell in cells if options.hosts in (None, cell.hosts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter, and without 128 hosts")
    parser.add_argument("--device", default="cuda", help="cpu: a tiny setting, to see that it runs")
    parser.add_argument("--hosts", type=int, help="only so many")
    parser.add_argument("--workers", type=int, default=0, help="processes to spread the hosts over")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print("bench_trainer_gpu: no CUDA device here, nothing was measured")
        return
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="advantage std", category=RuntimeWarning)
    rows: list[Row] = []
    with temporary_folder() as folder:
        os.environ["ESPER_CACHE"] = str(folder / "cache")
        for cell in chosen_cells(options):
            rows.append(measured(cell, options.device, options.workers, folder))
            print(rows[-1], flush=True)
    name = "trainer_gpu" if options.device != "cpu" else "trainer_gpu_tried_on_cpu"
    report(name, f"The whole training loop, hosts on {options.device}", rows)


if __name__ == "__main__":
    main()
