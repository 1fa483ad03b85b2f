"""The sheet that the live page and the single file both show, declared once: its look, its sections, and its texts.

Panels are declared by name; `run_contents` and `episode_contents` give what each shows, a figure or HTML. Recorded
texts are escaped here. `draw` writes a run as one file: a page that holds everything it needs, or a picture of it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pydantic_core import to_json

from esper.karn.drawing import DARK, LIGHT, LONGEST, THEMES, Fact, Theme, ThemeName, clipped, share, signed
from esper.karn.seeds import SeedCount
from esper.karn.watch.charts import Figure, run_figures
from esper.karn.watch.episodes import (
    Frame,
    course,
    decision_facts,
    episode_line,
    network,
    observation_facts,
    probabilities,
)
from esper.karn.watch.runs import COUNT_ALL, Hub, RunsFolder
from esper.karn.watch.state import Watched
from esper.karn.watch.verdicts import (
    NODE_COLUMNS,
    WINDOW,
    NodeWork,
    Tile,
    Warning,
    cost_facts,
    tiles,
    time_tree,
    warnings,
    work_by_node,
)
from esper.leyline import EpisodeFinished
from esper.leyline.errors import EsperError

MOST_WARNINGS = 6
"""Kinds of anomaly that are listed."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, HEIGHT = 1280, 2280
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A place for one figure or one piece of HTML."""

    name: str
    """By which its content is given, and found in tests."""
    label: str
    """What it shows, for screen readers."""
    classes: str
    """CSS: the size of a figure, or the padding of a text."""
    is_figure: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """A question, and the rows of panels that answer it."""

    title: str
    anchor: str
    """In the address, and in the menu of sections."""
    about: str
    """What the panels show, in a few words."""
    rows: tuple[tuple[str, tuple[Panel, ...]], ...] = ()
    """(CSS class of the columns, panels)."""


_LEARNING = (
    Panel("gain", "gain over waiting by round", "tall"),
    Panel("utility", "utility by round, with the baseline", "tall"),
    Panel("accuracy", "accuracy by round, with the baseline", "tall"),
)
_HEALTH = (
    Panel("explained", "explained variance by round", "low"),
    Panel("kl", "KL divergence by round", "low"),
    Panel("entropy", "entropy of each head by round", "low"),
    Panel("gradients", "gradient norm by round", "low"),
)
_WARNINGS = (Panel("warnings", "anomalies", "", is_figure=False),)
_DOING = (
    Panel("operations", "share of each operation by round", "course"),
    Panel("course", "accuracy, operations and stages of the episode by epoch", "course"),
)
_NETWORK = (Panel("network", "network", "padded scroll", is_figure=False),)
_WHY = (
    Panel("decision", "decision", "padded", is_figure=False),
    Panel("probabilities", "probability of every choice", ""),
    Panel("observation", "observation", "padded scroll", is_figure=False),
)
_COST = (
    Panel("costs", "costs", "padded", is_figure=False),
    Panel("time-tree", "parts of the time of a round", "padded", is_figure=False),
    Panel("speed", "env-epochs per second by round", "low"),
    Panel("seconds", "seconds per round", "low"),
    Panel("memory", "peak memory by round", "low"),
)
_NODES = (Panel("nodes", "what each node of the cluster did", "", is_figure=False),)
_AGAINST = "against the same hosts left alone; bands are 95 % intervals"
_STEPS = "operations over the run, and one episode epoch by epoch"
_WEIGHED = "the decision at the chosen epoch: what was seen, allowed and weighed"
SECTIONS = (
    Section("Is it learning?", "learning", _AGAINST, (("three", _LEARNING),)),
    Section(
        "Is it healthy?",
        "health",
        "the learner's own measurements, by round",
        (("four", _HEALTH), ("", _WARNINGS)),
    ),
    Section("What is it doing?", "doing", _STEPS, (("wide", _DOING), ("", _NETWORK))),
    Section("Why?", "why", _WEIGHED, (("thirds", _WHY),)),
    Section("What did it cost?", "cost", "time, speed and memory", (("five", _COST), ("", _NODES))),
    Section("Which seeds earned their keep?", "seeds", "by blueprint and slot, over the whole run"),
)
"""In the order of the page. The last one is a table, of SEED_COLUMNS."""
SEED_COLUMNS: dict[str, Callable[[SeedCount], str | int]] = {
    "blueprint": lambda row: row.blueprint,
    "slot": lambda row: row.slot,
    "germinated": lambda row: row.germinated,
    "fossilised": lambda row: row.fossilized,
    "retired": lambda row: row.retired,
    "pruned": lambda row: row.pruned,
    "neither": lambda row: row.undecided,
    "share fossilised": lambda row: share(row.fossilized, row.germinated),
    "mean contribution": lambda row: signed(row.contribution, 4),
}
"""Title of a column -> what it shows of the seeds of one blueprint at one slot; the first two are names."""


def run_contents(runs: Sequence[Watched], theme: Theme) -> dict[str, Figure | str]:
    """Name of a panel -> its content, for everything about the first run and those beside it."""
    watched = runs[0]
    state = watched.state
    return {
        **run_figures(runs, theme),
        "tiles": _tiles(tiles(watched)),
        "warnings": _warnings(warnings(state)[:MOST_WARNINGS]),
        "costs": _facts(cost_facts(watched)),
        "time-tree": _facts(time_tree(state.rounds[-WINDOW:]), f"Time of the last {WINDOW} rounds"),
        "nodes": _nodes(work_by_node(state.rounds[-WINDOW:])),
    }


def episode_contents(
    row: EpisodeFinished | None, frames: Sequence[Frame], at: int, theme: Theme
) -> dict[str, Figure | str]:
    """Name of a panel -> its content, for everything about one episode at the frame with index `at`."""
    frame = frames[at] if frames else None
    return {
        "course": course(frames, at, row, theme),
        "network": network(frame, theme),
        "decision": _facts(decision_facts(frame)),
        "probabilities": probabilities(frame, theme),
        "observation": _facts(observation_facts(frame), "Observation"),
    }


def seeds_note(watched: Watched) -> str:
    """What to know about the table of seeds."""
    counted = watched.state.seeds_counted
    if not watched.state.seed_counts():
        return "No seed was germinated in what was recorded; decisions need run_telemetry full."
    if counted < 1.0:
        return f"Counting: {counted:.0%} of the rounds so far."
    return (
        "Contribution is accuracy with the seed minus without it, when it was last decided about. "
        "That is dependence, not gain."
    )


def html(text: str, longest: int = LONGEST) -> str:
    """A recorded text as HTML."""
    return escape(clipped(text, longest), quote=True)


def heading(number: int, section: Section, about: str) -> str:
    """The title of a section."""
    return f"{number}&ensp;{section.title} <span class='about'>{html(about, 200)}</span>"


def _tiles(shown: Iterable[Tile]) -> str:
    return "".join(
        f"<div class='tile' role='status'><div class='name'>{html(tile.title)}</div>"
        f"<div class='value'>{html(tile.marked)}</div><div class='detail'>{html(tile.detail)}</div></div>"
        for tile in shown
    )


def _warnings(found: Iterable[Warning]) -> str:
    rows = [
        f"<div class='warning'><div class='n'>{html(each.marked)}</div><div>{each.when}</div>"
        f"<div>{html(f'{each.last.detail}. {each.last.advice}', 300)}</div></div>"
        for each in found
    ]
    return "".join(rows) or "<div class='faint padded'>No anomaly was raised.</div>"


def _nodes(rows: Sequence[NodeWork]) -> str:
    """A table of the last rounds; nothing without a cluster."""
    if not rows:
        return ""
    titles = "".join(f"<th scope='col'>{title}</th>" for title in NODE_COLUMNS)
    cells = ("".join(f"<td>{html(pick(row))}</td>" for pick in NODE_COLUMNS.values()) for row in rows)
    body = "".join(f"<tr>{each}</tr>" for each in cells)
    return (
        f"<table class='nodes'><caption>Nodes, last {WINDOW} rounds</caption><tr>{titles}</tr>{body}</table>"
    )


def _facts(rows: Sequence[Fact], title: str = "") -> str:
    pairs = (f"<div class='k'>{html(name)}</div><div class='v'>{html(value)}</div>" for name, value in rows)
    return f"{f'<b>{title}</b>' if title else ''}<div class='facts'>{''.join(pairs)}</div>"


def _colours(theme: Theme) -> str:
    return (
        f"--page: {theme.page}; --card: {theme.card}; --text: {theme.text}; --faint: {theme.faint}; "
        f"--line: {theme.grid}; --mark: {theme.runs[0]};"
    )


CSS = f"body {{ {_colours(LIGHT)} }}\nbody.body--dark {{ {_colours(DARK)} }}\n" + Path(__file__).with_name(
    "sheet.css"
).read_text(encoding="utf-8")
"""The look of the page; colours come from the palette."""


# One file


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
    parts.append(_seed_table(watched))
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


def _seed_table(watched: Watched) -> str:
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
