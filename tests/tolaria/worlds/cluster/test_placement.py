"""What a worker takes of a node: known answers."""

import pytest

from esper.tolaria.worlds.cluster.connecting import ClusterError, Share, share_of_a_worker, workers_by_default

TWO_GPUS, PLAIN = {"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0, "memory": 1e9}


def test_gpus_are_shared_evenly() -> None:
    assert share_of_a_worker([TWO_GPUS, PLAIN], "cuda", workers=2, num_hosts=8) == Share(gpus=1.0)
    assert share_of_a_worker([TWO_GPUS], "cuda", workers=5, num_hosts=8) == Share(gpus=0.3333)
    assert Share(gpus=0.3333).places(TWO_GPUS) == 6


def test_a_cpu_each_and_no_gpu_without_cuda() -> None:
    share = share_of_a_worker([TWO_GPUS, PLAIN], "cpu", workers=11, num_hosts=11)
    assert share.options() == {"num_cpus": 1, "num_gpus": 0.0, "resources": {}}


def test_nodes_that_declare_how_many_hosts_they_take_are_heeded() -> None:
    nodes = [{"CPU": 8.0, "esper_hosts": 10.0}, PLAIN]
    share = share_of_a_worker(nodes, "cpu", workers=2, num_hosts=9)
    assert share == Share(hosts=5)
    assert share.options()["resources"] == {"esper_hosts": 5}
    with pytest.raises(
        ClusterError, match=r"workers is 3, each with 1 CPU, 4 esper_hosts, .* has room for 2"
    ):
        share_of_a_worker(nodes, "cpu", workers=3, num_hosts=11)


def test_too_many_workers_and_a_missing_gpu_are_errors_that_say_what_to_do() -> None:
    with pytest.raises(
        ClusterError,
        match=r"workers is 4, each with 1 CPU, and the cluster \(1 nodes\) has room for 3: use fewer",
    ):
        share_of_a_worker([PLAIN], "cpu", workers=4, num_hosts=4)
    with pytest.raises(
        ClusterError, match=r"device is 'cuda', and no node of the cluster has a GPU: .*num-gpus"
    ):
        share_of_a_worker([PLAIN], "cuda", workers=1, num_hosts=4)


def test_by_default_there_is_a_worker_for_each_cpu_or_gpu() -> None:
    assert workers_by_default([TWO_GPUS, PLAIN], "cpu") == 11
    assert workers_by_default([TWO_GPUS, PLAIN], "cuda") == 2
    assert workers_by_default([{}], "cpu") == 1
