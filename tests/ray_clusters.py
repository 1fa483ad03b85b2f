"""Ray clusters of several nodes on this machine, with room for one worker on each."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.cluster_utils import Cluster

_STORE_BYTES = 80 * 2**20


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """A head and another node."""
    head = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        add_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def add_node(cluster: Cluster) -> None:
    """One more node."""
    cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
