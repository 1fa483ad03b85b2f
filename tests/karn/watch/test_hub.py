"""How runs stand, while they are written, when they end, and when they are gone."""

import shutil
from pathlib import Path

import pytest

from esper.karn.watch import runs as hubs
from esper.karn.watch.runs import Hub, RunsFolder
from esper.leyline import RunFinished
from esper.nissa.run_directory import WriterLock
from synthetic_run import line_of, write_synthetic_run


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(hubs, "LISTING_SECONDS", 0.0)


def test_the_life_of_a_run(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", rounds=3, envs=2, finished=False)
    hub = Hub(RunsFolder(tmp_path))
    assert hub.names() == ["run"]
    lock = WriterLock(tmp_path / "run")
    watched = hub.look("run")
    assert (watched.standing, watched.planned_rounds, watched.target_kl) == ("running", 3, 0.03)
    lock.release()
    assert hub.look("run").standing == "crashed"
    with (tmp_path / "run" / "events.jsonl").open("ab") as file:
        file.write(line_of(RunFinished("interrupted", "SIGTERM", 3, 9, 1.0), 9.0))
    assert hub.look("run").standing == "interrupted"
    before = hub.look("run").state.version
    shutil.rmtree(tmp_path / "run")
    gone = hub.look("run")
    assert gone.standing == "gone"
    assert gone.state.version > before  # so that somebody draws it
    assert len(gone.state.rounds) == 3  # what was known stays known
    assert hub.names() == []
    assert hub.episode("run", gone.state.episodes[0]) == []


def test_a_run_that_has_only_been_configured(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text('{"rounds": true, "target_kl": "much"}')
    watched = Hub(RunsFolder(tmp_path)).look("new")
    assert (watched.standing, watched.planned_rounds, watched.target_kl) == ("not begun", None, None)


def test_names_that_are_not_there_are_not_remembered(tmp_path: Path) -> None:
    hub = Hub(RunsFolder(tmp_path))
    for number in range(100):
        assert hub.look(f"made-up-{number}").standing == "gone"
    assert hub._watched == {}


def test_a_run_is_read_once_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "FRESH_SECONDS", 60.0)
    write_synthetic_run(tmp_path / "run", rounds=1)
    hub = Hub(RunsFolder(tmp_path))
    first = hub.look("run")
    reads: list[str] = []
    monkeypatch.setattr(RunsFolder, "open_events", lambda _self, name: reads.append(name))
    assert hub.look("run") is first
    assert reads == []


def test_a_run_that_is_given_more_rounds_says_so(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", rounds=3)
    hub = Hub(RunsFolder(tmp_path))
    assert hub.look("run").planned_rounds == 3
    (tmp_path / "run" / "config.json").write_text('{"rounds": 12, "target_kl": 0.5}')
    again = hub.look("run")
    assert (again.planned_rounds, again.target_kl) == (12, 0.5)
    (tmp_path / "run" / "config.json").unlink()
    assert hub.look("run").planned_rounds == 12


@pytest.mark.parametrize("written", ["1" + "0" * 400, "NaN", "Infinity", "-1e999", "true"])
def test_what_was_asked_for_and_is_no_number_is_unknown(tmp_path: Path, written: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(f'{{"rounds": {written}, "target_kl": {written}}}')
    watched = Hub(RunsFolder(tmp_path)).look("run")
    assert (watched.planned_rounds, watched.target_kl) == (None, None)
