"""A run as one file: a page that holds everything it needs, or a picture of that page."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from pydantic_core import to_json

from esper.karn.palette import THEMES, Theme, ThemeName
from esper.karn.watch.charts import Figure
from esper.karn.watch.episodes import episode_line
from esper.karn.watch.runs import COUNT_ALL, Hub, RunsFolder, Watched
from esper.karn.watch.sheet import (
    CSS,
    SECTIONS,
    SEED_COLUMNS,
    Panel,
    episode_contents,
    heading,
    html,
    run_contents,
    seeds_note,
)
from esper.leyline.errors import EsperError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, HEIGHT = 1280, 2280
_PATIENCE = 60.0


class CannotDraw(EsperError, RuntimeError):
    """A picture that this machine cannot make; the message says what would help."""


def draw(folder: RunsFolder, run: str, file: Path, *, theme: ThemeName = "light") -> None:
    """Write a run to a .html file, or a .png file."""
    page = render(folder, run, THEMES[theme])
    if file.suffix == ".html":
        file.write_text(page, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "page.html"
        source.write_text(page, encoding="utf-8")
        _photograph(source, file)


def render(folder: RunsFolder, run: str, theme: Theme) -> str:
    """The page as text: figures, answers and tables as they are now."""
    from plotly.offline import get_plotlyjs

    hub = Hub(folder, counting_seconds=COUNT_ALL)
    watched = hub.look(run)
    row = watched.state.episodes[-1] if watched.state.episodes else None
    frames = [] if row is None else hub.episode(run, row)
    contents = run_contents([watched], theme) | episode_contents(row, frames, len(frames) - 1, theme)
    about = {
        "doing": f"the last episode: {episode_line(row, recorded=bool(frames))}",
        "why": "the last decision of that episode",
    }
    parts = [
        f"<h1>{html(watched.name)} <span class='about'>{html(watched.standing)}</span></h1>",
        f"<div class='tiles'>{contents.pop('tiles')}</div>",
    ]
    for number, section in enumerate(SECTIONS, start=1):
        parts.append(
            f"<h2 class='section'>{heading(number, section, about.get(section.anchor, section.about))}</h2>"
        )
        for columns, panels in section.rows:
            cells = "".join(_panel(panel, contents) for panel in panels)
            parts.append(f"<div class='grid {columns}'>{cells}</div>")
    parts.append(_seeds(watched))
    figures = {name: content for name, content in contents.items() if not isinstance(content, str)}
    data = to_json(figures, inf_nan_mode="null").decode().replace("<", "\\u003c")
    dark = "body--dark" if theme.name == "dark" else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html(run)} - Esper</title><style>{CSS}</style>"
        f"<script>{get_plotlyjs()}</script></head><body class='{dark}'><main class='sheet'>{''.join(parts)}</main>"
        f"<script>const figures = {data}; for (const [name, each] of Object.entries(figures)) "
        "Plotly.newPlot(name, each.data, each.layout, each.config);</script></body></html>"
    )


def _panel(panel: Panel, contents: dict[str, Figure | str]) -> str:
    if panel.is_figure:
        return f"<div class='panel'><div id='{panel.name}' class='{panel.classes}'></div></div>"
    return f"<div class='panel {panel.classes}'>{contents[panel.name]}</div>"


def _seeds(watched: Watched) -> str:
    head = "".join(f"<th>{name}</th>" for name in SEED_COLUMNS)
    rows = [[pick(row) for pick in SEED_COLUMNS.values()] for row in watched.state.seed_counts()]
    cells = (
        "".join(f"<td>{html(cell if isinstance(cell, str) else f'{cell:,}')}</td>" for cell in row)
        for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        f"<div class='faint'>{html(seeds_note(watched), 200)}</div>"
        f"<table class='panel'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _photograph(source: Path, file: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise CannotDraw(
            "a .png is drawn by Chromium, and there is none: apt-get install chromium, or draw a .html instead"
        )
    command = [
        browser,
        "--headless",
        "--hide-scrollbars",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        f"--window-size={WIDTH},{HEIGHT}",
        f"--user-data-dir={source.parent / 'profile'}",
        f"--screenshot={file.resolve()}",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # Chromium refuses its sandbox to root
        source.as_uri(),
    ]
    file.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise CannotDraw(
            f"{browser} did not answer within {_PATIENCE:.0f} seconds; draw a .html instead"
        ) from None
    if not file.is_file():
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise CannotDraw(f"{browser} drew nothing: {''.join(last)}; draw a .html instead")
