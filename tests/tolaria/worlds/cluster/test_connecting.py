"""What cannot be joined is said before anything starts: the setting, its value, what to do."""

import socket
from pathlib import Path

import pytest

import esper
from esper.cli import main
from esper.leyline.errors import EsperError
from esper.runs.train import require_trainable
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_env
from esper.tolaria.worlds.cluster.connecting import ClusterError, require_cluster


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
