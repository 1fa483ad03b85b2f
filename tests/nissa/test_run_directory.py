"""Runs on disk: names, one writer, nothing overwritten, whole files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import esper
from esper.leyline.files import write_atomically, write_json
from esper.nissa import (
    Provenance,
    RunDirectory,
    RunError,
    collect_provenance,
    is_being_written,
    read_config,
    read_provenance,
    require_run_name,
)
from esper.nissa.run_directory import _git

ROOT_USER = os.geteuid() == 0


@pytest.fixture(scope="module")
def provenance() -> Provenance:
    return collect_provenance(seeds={"run": 7}, device="cpu", precision="fp32")


@pytest.fixture
def run(tmp_path: Path, provenance: Provenance) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path, "one", {"envs": 8, "suite": "cpu"}, provenance) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("x" * 101, "101 characters"),
        ("a/b", "is a path"),
        ("a\\b", "is a path"),
        ("/etc", "is a path"),
        ("..", "means another folder"),
        (".", "means another folder"),
        (".hidden", "other characters"),
        ("-rf", "other characters"),
        ("a b", "other characters"),
        ("a\n", "other characters"),
        ("a\0", "other characters"),
        ("é", "other characters"),
    ],
)
def test_bad_names_are_refused_before_any_work(
    tmp_path: Path, provenance: Provenance, name: str, why: str
) -> None:
    with pytest.raises(RunError, match=why):
        RunDirectory.create(tmp_path / "runs", name, {}, provenance)
    with pytest.raises(RunError, match=why):
        RunDirectory.resume(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["a", "digits-1", "2025.01_x", "x" * 100])
def test_good_names(name: str) -> None:
    require_run_name(name)


def test_what_a_new_run_has(run: RunDirectory, provenance: Provenance) -> None:
    assert read_config(run.path) == {"envs": 8, "suite": "cpu"}
    assert read_provenance(run.path) == provenance


def test_provenance_names_what_matters(provenance: Provenance) -> None:
    import numpy
    import torch

    assert provenance.esper == esper.__version__
    assert provenance.python == sys.version.split()[0]
    assert provenance.numpy == numpy.__version__
    assert provenance.torch is not None
    assert torch.__version__.startswith(provenance.torch.split("+")[0])
    assert provenance.seeds == {"run": 7}
    assert (provenance.device, provenance.device_name, provenance.precision) == ("cpu", None, "fp32")


def test_git_commit_and_dirtiness(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert _git(package) == (None, None)
    git("init", "-q")
    assert _git(package) == (None, None)  # contained in a repository that does not track it
    git("add", ".")
    git("commit", "-qm", "first")
    assert _git(package) == (git("rev-parse", "HEAD"), False)
    (package / "__init__.py").write_text("x = 1\n")
    assert _git(package) == (git("rev-parse", "HEAD"), True)


def test_a_name_that_is_taken_is_refused(run: RunDirectory, provenance: Provenance) -> None:
    before = {path: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(RunError, match=r"exists; `esper resume .*` goes on with it, or choose another name"):
        RunDirectory.create(run.path.parent, "one", {"envs": 9}, provenance)
    run.close()
    with pytest.raises(RunError, match="exists"):
        RunDirectory.create(run.path.parent, "one", {"envs": 9}, provenance)
    assert {path: path.read_bytes() for path in run.path.iterdir()} == before


def test_a_root_that_is_a_file_is_refused(tmp_path: Path, provenance: Provenance) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match="not a folder"):
        RunDirectory.create(tmp_path / "runs", "one", {}, provenance)


@pytest.mark.skipif(ROOT_USER, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, provenance: Provenance) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot be made"):
        RunDirectory.create(tmp_path, "one", {}, provenance)
    tmp_path.chmod(0o700)


def test_an_error_from_the_disk_is_one_clear_error(
    tmp_path: Path, provenance: Provenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("esper.nissa.run_directory.write_json", full)
    with pytest.raises(RunError, match="cannot be written"):
        RunDirectory.create(tmp_path, "one", {}, provenance)
    assert not (tmp_path / "one").exists(), "a run that never was takes no name"
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(RunError, match="No space left on device"):
        RunDirectory.create(tmp_path, "two", {}, provenance)


def test_a_second_writer_is_refused(run: RunDirectory, provenance: Provenance) -> None:
    assert is_being_written(run.path)
    with pytest.raises(RunError, match=rf"another process \({os.getpid()}\) is writing it"):
        RunDirectory.resume(run.path.parent, "one")
    run.close()
    run.close()
    assert not is_being_written(run.path)
    with RunDirectory.resume(run.path.parent, "one") as again:
        assert is_being_written(again.path)
        assert [path.name for path in run.path.glob("provenance*")] == ["provenance.json"]
        again.record_start(provenance)
    assert sorted(path.name for path in run.path.glob("provenance*")) == [
        "provenance.2.json",
        "provenance.json",
    ]


def test_asking_whether_a_run_is_written_does_not_keep_a_writer_out(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    run.close()
    asking = os.open(run.path / "writer.lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr("esper.nissa.run_directory.time.sleep", lambda _: os.close(asking))
    RunDirectory.resume(run.path.parent, "one").close()


def test_only_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no config\.json"):
        RunDirectory.resume(tmp_path, "nothing")


def test_a_killed_writer_leaves_no_lock(run: RunDirectory) -> None:
    run.close()
    holding = (
        "import sys, time; from pathlib import Path; from esper.nissa.run_directory import WriterLock\n"
        "lock = WriterLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", holding, str(run.path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout as told:
        assert told.readline() == b"held\n"
        assert is_being_written(run.path)
        with pytest.raises(RunError, match=rf"\({writer.pid}\)"):
            RunDirectory.resume(run.path.parent, "one")
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert not is_being_written(run.path)
    RunDirectory.resume(run.path.parent, "one").close()


def test_damaged_files_are_named(run: RunDirectory) -> None:
    (run.path / "config.json").write_text("[1]")
    with pytest.raises(RunError, match=r"config\.json is a list"):
        read_config(run.path)
    (run.path / "config.json").write_text('{"envs": ')
    with pytest.raises(RunError, match=r"config\.json is not JSON"):
        read_config(run.path)
    (run.path / "provenance.json").write_text("{}")
    with pytest.raises(RunError, match=r"provenance\.json is damaged"):
        read_provenance(run.path)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    target = tmp_path / "file"
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, fail)
    assert list(tmp_path.iterdir()) == []
    write_atomically(target, lambda path: path.touch())
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, fail)
    assert target.read_text() == ""
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(target, {"x": float("nan")})
    write_json(target, {"x": [1, None]})
    assert json.loads(target.read_text()) == {"x": [1, None]}


def test_writers_of_one_path_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def outer(partial: Path) -> None:
        write_json(target, {"x": 1})  # another writer begins and ends meanwhile
        partial.write_text("mine")

    write_atomically(target, outer)
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_of_checkpoints_that_cannot_be_made_is_named(run: RunDirectory) -> None:
    run.checkpoints.folder.write_text("a file")
    with pytest.raises(RunError, match=r"checkpoints/last.pt cannot be written"):
        run.checkpoints.save(lambda path: path.touch(), round_number=1, reason="last")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_is_there_at_every_step_of_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    path, previous, steps = tmp_path / "file", tmp_path / "before", []
    replace = os.replace

    def stepped(source: Path, target: Path) -> None:
        replace(source, target)
        steps.append((path.read_text(), previous.read_text()))

    def refused(*_: object) -> None:
        raise PermissionError

    path.write_text("2")
    previous.write_text("1")
    monkeypatch.setattr("os.replace", stepped)
    if not links:
        monkeypatch.setattr("os.link", refused)
    write_atomically(path, lambda partial: partial.write_text("3"), previous=previous)
    assert steps == [("2", "2"), ("3", "2")]
    assert sorted(tmp_path.iterdir()) == [previous, path]


def test_checkpoints(run: RunDirectory) -> None:
    checkpoints = run.checkpoints
    assert checkpoints.all() == []
    for number in (2, 4, 6, 8, 10):
        checkpoints.save(lambda path: path.touch(), round_number=number)
    assert [path.name for path in checkpoints.periodic()] == [f"round-{n:06d}.pt" for n in (6, 8, 10)]
    best = checkpoints.save(lambda path: path.touch(), round_number=8, reason="best")
    assert best.name == "best.pt"
    for number in (10, 11, 12):
        write = partial(Path.write_text, data=str(number))
        last = checkpoints.save(write, round_number=number, reason="last")
    previous = checkpoints.folder / "previous.pt"
    assert (last.read_text(), previous.read_text()) == ("12", "11")
    assert checkpoints.all() == [last, previous, best, *checkpoints.periodic()]
    (checkpoints.folder / ".last.pt.17.partial").write_text("half")
    checkpoints.remove_partial()
    assert sorted(path.suffix for path in checkpoints.folder.iterdir()) == [".pt"] * 6
    checkpoints.set_aside([last])
    assert checkpoints.all() == [previous, best, *checkpoints.periodic()]
    assert (checkpoints.folder / "last.damaged").read_text() == "12"


def test_a_run_that_was_killed_before_it_had_settings_does_not_take_its_name(
    tmp_path: Path, provenance: Provenance
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "writer.lock").write_text("1")
    (tmp_path / "one" / ".config.json.0123.partial").write_text("{")
    with RunDirectory.create(tmp_path, "one", {"envs": 8}, provenance) as made:
        assert read_config(made.path) == {"envs": 8}
    with pytest.raises(RunError, match=r"exists; `esper resume .*` goes on with it, or choose another name"):
        RunDirectory.create(tmp_path, "one", {"envs": 8}, provenance)


def test_a_checkpoint_that_cannot_be_written_is_named(run: RunDirectory) -> None:
    def fail(_: Path) -> None:
        raise RuntimeError("unexpected pos 388736 vs 388624")  # what torch says of a full disk

    with pytest.raises(RunError, match=r"last.pt cannot be written \(is the disk full\?\): unexpected pos"):
        run.checkpoints.save(fail, round_number=1, reason="last")
