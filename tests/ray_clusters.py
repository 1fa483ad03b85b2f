"""Ray clusters of several nodes on this machine, with room for one worker on each."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from ray.cluster_utils import Cluster

_STORE_BYTES = 80 * 2**20


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """A head and another node, whose workers import what the tests do."""
    head = {"num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}):
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            add_node(cluster)
            yield cluster
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]


def add_node(cluster: Cluster) -> None:
    """One more node."""
    cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
