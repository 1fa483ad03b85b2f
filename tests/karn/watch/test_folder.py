"""Nothing outside the folder is opened, whatever a name, a link or a pipe says."""

import os
import shutil
import time
from pathlib import Path

import pytest

from esper.karn.watch.runs import RunsFolder
from esper.nissa.run_directory import LOCK_FILE, WriterLock

HOSTILE = ["<img src=x onerror=alert(1)>", "a\nb", "'; drop table--", "%2e%2e", "ünï", "{{7*7}}", "x" * 200]


def make(root: Path, name: str, events: bytes = b"one\n") -> Path:
    run = root / name
    run.mkdir()
    (run / "config.json").write_text('{"rounds": 3}')
    (run / "events.jsonl").write_bytes(events)
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    root.mkdir()
    return root


def test_runs_by_when_they_were_written(root: Path) -> None:
    for age, name in enumerate(["new", "old", "oldest"]):
        run, when = make(root, name), time.time() - 100 * age
        for file in run.iterdir():
            os.utime(file, (when, when))
    (root / "no-run").mkdir()
    (root / "file").write_text("")
    assert RunsFolder(root).names() == ["new", "old", "oldest"]
    assert RunsFolder(root / "missing").names() == []


@pytest.mark.parametrize("name", HOSTILE)
def test_odd_names_are_names(root: Path, name: str) -> None:
    make(root, name)
    folder = RunsFolder(root)
    assert folder.names() == [name]
    assert folder.config(name) == {"rounds": 3}
    file = folder.open_events(name)
    assert file is not None
    with file:
        assert file.read() == b"one\n"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../outside", "/etc", "runs/../../outside", "a\0b", "missing"]
)
def test_paths_are_refused(root: Path, name: str) -> None:
    make(root.parent, "outside")
    folder = RunsFolder(root)
    assert folder.open_events(name) is None
    assert folder.config(name) == {}
    assert not folder.is_being_written(name)


def test_links_that_lead_out_are_no_runs(root: Path) -> None:
    outside = make(root.parent, "outside")
    (root / "linked").symlink_to(outside)
    inside = make(root, "inside")
    (inside / "events.jsonl").unlink()
    (inside / "events.jsonl").symlink_to(outside / "events.jsonl")
    folder = RunsFolder(root)
    assert folder.names() == ["inside"]
    assert folder.open_events("linked") is None
    assert folder.open_events("inside") is None


def test_a_folder_that_is_a_link_itself_is_fine(root: Path) -> None:
    make(root, "run")
    (root.parent / "link").symlink_to(root)
    folder = RunsFolder(root.parent / "link")
    assert folder.names() == ["run"]
    file = folder.open_events("run")
    assert file is not None
    file.close()


def test_a_pipe_does_not_keep_us_waiting(root: Path) -> None:
    run = make(root, "run")
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")
    assert RunsFolder(root).open_events("run") is None


def test_a_name_that_is_no_text_is_not_offered(root: Path) -> None:
    run = Path(os.fsdecode(os.fsencode(root) + b"/\xff"))
    run.mkdir()
    (run / "config.json").write_text("{}")
    assert RunsFolder(root).names() == []


@pytest.mark.parametrize("content", ["", "[1]", "{", "null"])
def test_a_config_that_is_none(root: Path, content: str) -> None:
    (make(root, "run") / "config.json").write_text(content)
    assert RunsFolder(root).config("run") == {}


def test_links_in_a_circle_and_names_no_disk_can_hold_spoil_nothing(root: Path) -> None:
    make(root, "run")
    (root / "circle").symlink_to(root / "circle")
    folder = RunsFolder(root)
    assert folder.names() == ["run"]
    for name in ("circle", "x" * 5000, "\udc80", "a\0b"):
        assert folder.open_events(name) is None
        assert folder.config(name) == {}
        assert not folder.is_being_written(name)


def test_a_lock_that_is_a_link_or_a_pipe_is_none(root: Path, tmp_path: Path) -> None:
    outside = WriterLock(tmp_path)  # held, and not by this run
    linked, piped = make(root, "linked"), make(root, "piped")
    (linked / LOCK_FILE).symlink_to(tmp_path / LOCK_FILE)
    os.mkfifo(piped / LOCK_FILE)
    folder = RunsFolder(root)
    assert not folder.is_being_written("linked")
    assert not folder.is_being_written("piped")  # and nobody waited for a writer
    outside.release()


def test_a_folder_that_is_gone_or_a_file_has_no_runs(root: Path) -> None:
    make(root, "run")
    folder = RunsFolder(root)
    shutil.rmtree(root)
    assert folder.names() == []
    assert folder.open_events("run") is None
    root.write_text("no folder")
    assert folder.names() == []
    assert not folder.holds("run")
