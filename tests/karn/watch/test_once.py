"""A run as one file: it holds everything, loads nothing, and says what it cannot do."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from esper.karn.drawing import DARK, LIGHT
from esper.karn.watch.runs import RunsFolder
from esper.karn.watch.sheet import BROWSERS, CannotDraw, draw, render
from esper.leyline import AnomalyRaised, EpisodeFinished
from run_examples import example
from synthetic_run import line_of, write_synthetic_run

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    write_synthetic_run(tmp_path / "runs" / "run", rounds=12, envs=2)
    return RunsFolder(tmp_path / "runs")


def page_without_library(page: str) -> str:
    from plotly.offline import get_plotlyjs

    return page.replace(get_plotlyjs(), "")


def test_a_page_holds_everything(folder: RunsFolder, tmp_path: Path) -> None:
    draw(folder, "run", tmp_path / "out.html", theme="dark")
    page = page_without_library((tmp_path / "out.html").read_text())
    for question in (
        "Is it learning?",
        "Is it healthy?",
        "What is it doing?",
        "Why?",
        "What did it cost?",
        "earned their keep",
    ):
        assert question in page
    assert "src=" not in page
    assert "href=" not in page
    assert DARK.card in page
    data = page.partition("const figures = ")[2].partition("; for (const")[0]
    assert "\\u003cextra" in data  # plotly's own markup is in there,
    assert "<" not in data  # and not as something that could end a script


def test_hostile_content_stays_text(folder: RunsFolder) -> None:
    with (folder.root / "run" / "events.jsonl").open("ab") as file:
        file.write(
            line_of(replace(example(AnomalyRaised), name=HOSTILE, detail=HOSTILE, advice=HOSTILE), 1.0)
        )
        file.write(line_of(replace(example(EpisodeFinished), case=HOSTILE, rolled_back=HOSTILE), 1.0))
    page = page_without_library(render(folder, "run", LIGHT))
    assert "<img" not in page
    assert page.count("</script>") == 2  # the library's and our own
    assert "&lt;img" in page


def test_an_empty_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    page = render(RunsFolder(tmp_path), "run", LIGHT)
    assert "unknown yet" in page


def test_a_picture_needs_a_browser(
    folder: RunsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(CannotDraw, match="apt-get install chromium"):
        draw(folder, "run", tmp_path / "out.png")


def test_a_picture(folder: RunsFolder, tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in BROWSERS):
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    draw(folder, "run", tmp_path / "out.png")
    content = (tmp_path / "out.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000  # a page without its figures is much smaller
