"""Functions of tests in several processes, which form a gloo group on the CPU."""

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from esper.tolaria.worlds.worker import worker_context

Result = TypeVar("Result")
LONGEST = timedelta(seconds=60)
"""That one process waits for another."""


def in_processes(work: Callable[..., Result], *arguments: object, count: int = 2) -> list[Result]:
    """What `work(*arguments)` returns, by rank. An error in one process ends all and is raised here."""
    worker_context()  # so that the processes are copies of one that has imported what they need
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_run, (count, folder, work, arguments), nprocs=count, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _run(
    rank: int, count: int, folder: str, work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=LONGEST
    )
    try:
        torch.save(work(*arguments), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()
