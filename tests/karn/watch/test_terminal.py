"""The terminal view: the first two questions, in words and bars."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from esper.karn.watch.runs import RunsFolder
from esper.karn.watch.state import Watched
from esper.karn.watch.terminal import follow, picture, sparkline
from esper.nissa.run_directory import WriterLock
from synthetic_run import write_synthetic_run


def screen(*, at_a_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=120, color_system=None, force_terminal=at_a_terminal)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_bars() -> None:
    assert sparkline([]) == ""
    assert sparkline([None, None]) == ""
    assert sparkline([0.0, None, 0.5, 1.0]) == "▁ ▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([float(n) for n in range(100)], width=8) == "▁▂▃▄▅▆▇█"


def test_a_run_that_ended_is_shown_once(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", rounds=60, envs=4)
    console = screen()
    follow(RunsFolder(tmp_path), "run", console)
    told = said(console)
    for part in (
        "better than waiting",
        "look at it",
        "60 of 60",
        "explained variance",
        "entropy of op",
        "gain, points",
        "ratio explosion",
    ):
        assert part in told


def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_synthetic_run(tmp_path / "run", rounds=3)
    lock, console = WriterLock(tmp_path / "run"), screen(at_a_terminal=True)
    looks: list[float] = []

    def pass_time(seconds: float) -> None:
        looks.append(seconds)
        monkeypatch.setattr("esper.karn.watch.runs.FRESH_SECONDS", 0.0)
        if len(looks) == 2:
            lock.release()

    monkeypatch.setattr(time, "sleep", pass_time)
    follow(RunsFolder(tmp_path), "run", console)
    assert len(looks) == 2
    assert "finished" in said(console)


def test_nothing_known_and_hostile_names() -> None:
    console = screen()
    console.print(picture(Watched("[red]\x1b[2Jevil[/red]" * 30)))
    told = said(console)
    assert "unknown yet" in told
    assert "[red]" in told  # text, not markup
    assert "\x1b[2J" not in told


def test_bars_of_numbers_too_far_apart_to_subtract() -> None:
    assert sparkline([-1.7e308, 0.0, 1.7e308]) == "▁▅█"
