"""Joining a Ray cluster, or starting one here, and the room its nodes have; what is wrong, and what to do."""

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from esper.leyline.errors import EsperError, install

LOCAL, AUTO = "local", "auto"
CONNECT_SECONDS = 5.0
"""How long a head node may take to answer at its address."""
LOCAL_STORE_BYTES = 512 * 2**20
"""Object store of a cluster that is started here: messages, host states and data pass through it."""
HOSTS = "esper_hosts"
"""A resource that nodes may declare: hosts that they take. Where none does, their CPUs alone count."""
NodeResources = Mapping[str, float]
"""Name of a resource -> how much of it a node has."""


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
        raise ClusterError(f"cluster is {cluster!r}, and the package ray is not installed: {install('ray')}")
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


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker takes of its node."""

    gpus: float = 0.0
    """Less than 1 shares a GPU between workers."""
    hosts: int = 0
    """Hosts, where nodes declare how many they take; else 0."""

    def options(self) -> dict[str, object]:
        """The same as Ray takes it."""
        resources = {HOSTS: self.hosts} if self.hosts else {}
        return {"num_cpus": 1, "num_gpus": self.gpus, "resources": resources}

    def places(self, node: NodeResources) -> int:
        """Workers that a node has room for when nothing else runs there."""
        places = [int(node.get("CPU", 0))]
        if self.gpus:
            places.append(int(node.get("GPU", 0)) * round(1 / self.gpus))
        if self.hosts:
            places.append(int(node.get(HOSTS, 0)) // self.hosts)
        return min(places)

    def __str__(self) -> str:
        parts = ["1 CPU"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPU")
        if self.hosts:
            parts.append(f"{self.hosts} {HOSTS}")
        return ", ".join(parts)


def workers_by_default(nodes: Sequence[NodeResources], device: str) -> int:
    """A worker for each GPU of a cluster, or for each CPU."""
    resource = "CPU" if device == "cpu" else "GPU"
    return max(1, sum(int(node.get(resource, 0)) for node in nodes))


def share_of_a_worker(nodes: Sequence[NodeResources], device: str, *, workers: int, num_hosts: int) -> Share:
    """What each of `workers` takes, GPUs shared evenly; raises ClusterError if there is no room for all of them."""
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if device != "cpu" and not gpus:
        raise ClusterError(
            f"device is {device!r}, and no node of the cluster has a GPU: start nodes that have one with "
            "`ray start --num-gpus=N`, or use device 'cpu'"
        )
    declared = any(HOSTS in node for node in nodes)
    share = Share(
        gpus=0.0 if device == "cpu" else math.floor(1e4 / math.ceil(workers / gpus)) / 1e4,
        hosts=math.ceil(num_hosts / workers) if declared else 0,
    )
    places = sum(share.places(node) for node in nodes)
    if places < workers:
        raise ClusterError(
            f"workers is {workers}, each with {share}, and the cluster ({len(nodes)} nodes) has room for {places}: "
            "use fewer workers, or add nodes with `ray start --address=HOST:PORT`"
        )
    return share
