"""What cannot be joined is said before anything starts: the setting, its value, what to do; what a worker takes."""

import socket
from pathlib import Path

import pytest

import esper
from esper.cli import main
from esper.leyline.errors import EsperError
from esper.runs.train import require_trainable
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_env
from esper.tolaria.worlds.cluster.connecting import (
    ClusterError,
    Share,
    require_cluster,
    share_of_a_worker,
    workers_by_default,
)


def closed_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def test_without_the_extra_every_door_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("esper.tolaria.worlds.cluster.connecting.find_spec", lambda _: None)
    expected = r"cluster is 'local', and the package ray is not installed: pip install 'esper-grow\[ray\]'"
    with pytest.raises(ClusterError, match=expected):
        make_env("toy", 2, cluster="local")
    with pytest.raises(ClusterError, match=expected):
        esper.bench(tmp_path, cluster="local")
    with pytest.raises(ClusterError, match=expected):
        require_trainable(TrainingConfig(suite="toy", cluster="local"))
    assert main(["train", "--suite", "toy", "--cluster", "local"]) == 2
    assert "pip install 'esper-grow[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["everywhere", "ray://head:10001", "head:", "head:port", "none"])
def test_a_setting_that_is_no_address_is_refused_with_the_settings(wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=r"cluster is .*; expected 'local', 'auto', HOST:PORT of a head node"
    ):
        TrainingConfig(cluster=wrong)


@pytest.mark.parametrize("wrong", ["everywhere", "head:99999", ":6379"])
def test_so_it_is_from_python(wrong: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match=rf"cluster is '{wrong}'; expected 'local', 'auto' or HOST:PORT"):
        require_cluster(wrong, "cpu")


def test_an_address_where_nobody_answers_is_an_error_that_says_what_to_do() -> None:
    pytest.importorskip("ray")
    port = closed_port()
    with pytest.raises(
        ClusterError, match=rf"cluster is '127.0.0.1:{port}', and nothing answers there .*ray start --head"
    ):
        make_env("toy", 2, cluster=f"127.0.0.1:{port}")


def test_a_cluster_chooses_the_gpu() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match=r"device is 'cuda:1'; on a cluster Ray chooses the GPU"):
        require_cluster("local", "cuda:1")
    assert issubclass(ClusterError, EsperError)


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
