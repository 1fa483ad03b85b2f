"""What a worker takes of a node, and whether the nodes have room for all of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.tolaria.worlds.cluster.connecting import ClusterError

HOSTS = "esper_hosts"
"""A resource that nodes may declare: hosts that they take. Where none does, their CPUs alone count."""
NodeResources = Mapping[str, float]
"""Name of a resource -> how much of it a node has."""


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
