"""`esper watch`: what it refuses, what it prints, and how it serves."""

import socket
from pathlib import Path

import pytest

from esper.cli import main, watch
from esper.karn.watch import server
from esper.karn.watch.runs import RunsFolder
from synthetic_run import write_synthetic_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_synthetic_run(tmp_path / "runs" / "first", rounds=3)
    return tmp_path / "runs"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the server was started with, instead of starting it."""
    calls: list[dict[str, object]] = []

    def serve(folder: RunsFolder, **options: object) -> None:
        calls.append({"root": folder.root, **options})

    monkeypatch.setattr(server, "serve", serve)
    return calls


def test_this_machine_only_by_default(
    runs: Path, served: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "first", "--directory", str(runs)]) == 0
    (call,) = served
    assert (call["host"], call["token"], call["run"]) == ("127.0.0.1", None, "first")
    assert "token" not in capsys.readouterr().out


def test_ctrl_c_is_how_it_ends(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", serve)
    assert main(["watch", "--directory", str(runs)]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("stopped watching\n")
    assert not told.err


def test_another_address_needs_a_token_that_is_printed_once(
    runs: Path, served: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["watch", "--directory", str(runs), "--host", "0.0.0.0"]) == 0
    tokens = [str(call["token"]) for call in served]
    said = capsys.readouterr().out
    assert all(len(token) >= 24 and said.count(token) == 1 for token in tokens)
    assert tokens[0] != tokens[1]


def test_a_run_elsewhere_is_watched_in_its_own_folder(runs: Path, served: list[dict[str, object]]) -> None:
    assert main(["watch", str(runs / "first")]) == 0
    assert (served[0]["root"], served[0]["run"]) == (runs.resolve(), "first")


def test_ports(runs: Path, served: list[dict[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["watch", "--directory", str(runs), "--port", str(port)]) == 2
        assert f"port {port}" in capsys.readouterr().err
    assert main(["watch", "--directory", str(runs), "--port", "99999"]) == 2
    assert main(["watch", "--directory", str(runs / "none"), "--terminal"]) == 2
    assert main(["watch", "--directory", str(runs), "--host", "203.0.113.1"]) == 2
    assert "cannot listen on 203.0.113.1" in capsys.readouterr().err
    assert served == []


def test_what_is_missing_is_named_with_its_remedy(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "find_spec", lambda _package: None)
    assert main(["watch", "--directory", str(runs)]) == 2
    assert "needs nicegui and plotly: pip install 'esper-grow[watch]'" in capsys.readouterr().err


def test_at_a_terminal(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "first", "--directory", str(runs), "--terminal"]) == 0
    assert "Is it learning?" in capsys.readouterr().out


def test_once(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    assert main(["watch", "--directory", str(runs), "--once", str(out), "--dark"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.stat().st_size > 1_000_000  # the drawing library is in it
    assert main(["watch", "--directory", str(runs), "--once", "out.gif"]) == 2
    assert "expected a name that ends in .html or .png" in capsys.readouterr().err
    assert main(["watch", "--directory", str(runs), "--port", "99999"]) == 2
    assert "--port is 99999; expected at most 65535" in capsys.readouterr().err
    assert main(["watch", "--directory", str(runs), "--once", str(tmp_path / "no" / "out.html")]) == 2


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for how in (["--terminal"], ["--once", "x.html"]):
        assert main(["watch", "--directory", str(tmp_path), *how]) == 2
        assert "esper train --preset demo" in capsys.readouterr().err
    assert main(["watch", "missing", "--directory", str(tmp_path)]) == 2


def test_every_address_is_printed_as_one_that_can_be_opened(
    runs: Path,
    served: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "laboratory")
    assert main(["watch", "--directory", str(runs), "--host", "0.0.0.0"]) == 0
    assert f"http://laboratory:{served[0]['port']}/?token={served[0]['token']}" in capsys.readouterr().out


def test_options_that_say_nothing_together_are_refused(
    runs: Path, tmp_path: Path, served: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["watch", "--directory", str(runs)]
    assert main([*given, "--dark"]) == 2
    assert "--dark goes with --once" in capsys.readouterr().err
    assert main([*given, "--terminal", "--once", str(tmp_path / "x.html")]) == 2
    assert main([*given, "--once", str(tmp_path / "no" / "x.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert served == []
