"""Functions called anywhere on a cluster, behind the interface of `concurrent.futures`."""

import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import NodeDiedError, RayTaskError, WorkerCrashedError

from esper.tolaria.worlds.cluster.connecting import (
    Share,
    alive_nodes,
    join,
    leave,
    share_of_a_worker,
    workers_by_default,
)

RETRIES = 3
"""How often a call is repeated whose process or node died: it is the same wherever it is made."""


class ClusterExecutor(Executor):
    """Calls importable functions on the nodes of a cluster, one CPU and one torch thread each."""

    def __init__(self, share: Share, workers: int) -> None:
        self.workers = workers
        """Calls that are worth making at the same time."""
        self._call = ray.remote(_call).options(
            **share.options(), max_retries=RETRIES, scheduling_strategy="SPREAD"
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """The result to come of a call; `BrokenExecutor` if its process died every time."""
        asked: Future[Any] = self._call.remote(pickle.dumps(partial(fn, *args, **kwargs))).future()
        promised: Future[Any] = Future()
        asked.add_done_callback(partial(_pass_on, promised))
        return promised


@contextmanager
def cluster_executor(cluster: str, *, workers: int, device: str) -> Iterator[ClusterExecutor]:
    """An executor on a cluster that is joined for it; 0 workers are one for each CPU (or GPU) that there is."""
    join(cluster, device=device, cpus=workers)
    try:
        nodes = alive_nodes()
        workers = workers or workers_by_default(nodes, device)
        share = share_of_a_worker(nodes, device, workers=workers, num_hosts=workers)
        yield ClusterExecutor(share, workers)
    finally:
        leave()


def _call(message: bytes) -> object:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the process that keeps the results to handle
    torch.set_num_threads(1)
    return pickle.loads(message)()


def _pass_on(promised: "Future[Any]", asked: "Future[Any]") -> None:
    error = asked.exception()
    if isinstance(error, WorkerCrashedError | NodeDiedError):
        broken = BrokenExecutor(f"a call was lost {RETRIES + 1} times: {error}")
        promised.set_exception(broken)
    elif error is not None:
        cause = error.cause if isinstance(error, RayTaskError) else error
        promised.set_exception(cause if isinstance(cause, Exception) else error)
    else:
        promised.set_result(asked.result())
