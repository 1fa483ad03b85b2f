"""Joining a Ray cluster, or starting one here; what can be wrong with that, in words that say what to do."""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from esper.leyline.errors import EsperError

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 5.0
"""How long a head node may take to answer at its address."""
LOCAL_STORE_BYTES = 512 * 2**20
"""Object store of a cluster that is started here: messages, host states and data pass through it."""


class ClusterError(EsperError, RuntimeError):
    """A cluster that cannot be joined, or cannot do what is asked of it."""


class _Joined:
    """What this process holds of a cluster: Ray connects a process once, whoever uses it there."""

    users = 0
    """Worlds and benchmarks that use the connection."""
    ours = False
    """Whether it was made here, and is to be ended with its last user."""


def require_cluster(cluster: str, device: str) -> None:
    """Raise ClusterError for what can be known before anything is started."""
    if find_spec("ray") is None:
        raise ClusterError(
            f"cluster is {cluster!r}, and the package ray is not installed: pip install 'esper-grow[ray]'"
        )
    if device.startswith("cuda:"):
        raise ClusterError(
            f"device is {device!r}; on a cluster Ray chooses the GPU, expected 'cpu' or 'cuda'"
        )
    if cluster not in (LOCAL, AUTO):
        host, colon, port = cluster.rpartition(":")
        if not (colon and host and port.isdecimal() and int(port) < 2**16):
            raise ClusterError(
                f"cluster is {cluster!r}; expected 'local', 'auto' or HOST:PORT of a head node"
            )
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise ClusterError(
                f"cluster is {cluster!r}, and nothing answers there ({error}): expected the address that "
                "`ray start --head` prints, 'auto' where this machine is part of a cluster, or 'local'"
            ) from error


def join(cluster: str, *, device: str = "cpu", cpus: int = 0) -> None:
    """Connect this process to a cluster, unless it is; every `join` is to be followed by a `leave`.

    cpus  workers that one started here must have room for; there are as many as cores if it is 0
    """
    require_cluster(cluster, device)
    import ray

    if not ray.is_initialized():
        _connect(cluster, cpus)
        _Joined.ours = True
    else:
        there = ray.get_runtime_context().gcs_address
        if cluster not in (LOCAL, AUTO, there):
            raise ClusterError(f"cluster is {cluster!r}, and this process is connected to {there} already")
    _Joined.users += 1


def leave() -> None:
    """End what `join` began; the last user disconnects, which stops a cluster that was started here."""
    import ray

    _Joined.users -= 1
    if not _Joined.users and _Joined.ours:
        _Joined.ours = False
        with _signals_kept():
            ray.shutdown()


def alive_nodes() -> list[dict[str, float]]:
    """Of each node of the cluster that was joined: name of a resource -> how much of it there is."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def _connect(cluster: str, cpus: int) -> None:
    import ray

    try:
        with _signals_kept():
            if cluster == LOCAL:
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                os.environ.setdefault("RAY_worker_niceness", "0")  # as worker processes have it
                ray.init(
                    address=LOCAL,
                    num_cpus=max(cpus, os.cpu_count() or 1),
                    object_store_memory=LOCAL_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            else:
                ray.init(address=cluster, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises plain ones too
        raise ClusterError(f"cluster is {cluster!r}: {_advice(cluster, error)}") from error


def _advice(cluster: str, error: Exception) -> str:
    if cluster == AUTO and isinstance(error, ConnectionError):
        return (
            "no Ray runs on this machine. Start it with `ray start --head`, join another machine's with "
            "`ray start --address=HOST:PORT`, or use 'local'"
        )
    found = str(error).strip().splitlines()
    return f"{type(error).__name__}: {found[0] if found else 'Ray gives no reason'}"


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, by which a training or benchmark is asked to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
