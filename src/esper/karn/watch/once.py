"""A run as one file: a page that holds everything it needs, or a picture of that page."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from pydantic_core import to_json

from esper.karn.palette import DARK, LIGHT, THEMES, Theme, ThemeName
from esper.karn.watch import charts, episode_charts, texts
from esper.karn.watch.charts import Shown
from esper.karn.watch.episode_view import network
from esper.karn.watch.episodes import read_episode
from esper.karn.watch.facts import cost_facts, decision_facts, episode_told, time_tree
from esper.karn.watch.figures import Figure
from esper.karn.watch.runs import COUNT_ALL, Hub, RunsFolder, Watched
from esper.karn.watch.verdicts import MARKS, WINDOW, tiles, warnings
from esper.leyline.errors import EsperError

# How the page looks, in one place; colours come from the palette.


def _colours(theme: Theme) -> str:
    return (
        f"--page: {theme.page}; --card: {theme.card}; --text: {theme.text}; --faint: {theme.faint}; "
        f"--line: {theme.grid}; --mark: {theme.runs[0]};"
    )


CSS = f"""
body {{ {_colours(LIGHT)} }}
body.body--dark {{ {_colours(DARK)} }}
body, .q-page, .nicegui-content {{ background: var(--page); color: var(--text); }}
body {{ font-family: system-ui, sans-serif; font-size: 14px; line-height: 1.35; margin: 0; }}
.nicegui-content {{ padding: 0; gap: 0; align-items: stretch; }}
.top {{ display: flex; align-items: center; gap: 14px; padding: 6px 16px; background: var(--card);
  border-bottom: 1px solid var(--line); color: var(--text); min-height: 50px; box-shadow: none; }}
.top .brand {{ font-weight: 700; font-size: 16px; white-space: nowrap; }}
.top .grow {{ flex: 1; }}
.top a {{ color: var(--faint); text-decoration: none; white-space: nowrap; font-size: 13px; }}
.top a:hover, .top a:focus {{ color: var(--text); text-decoration: underline; }}
.sheet {{ max-width: 1600px; width: 100%; margin: 0 auto; padding: 8px 16px 40px; box-sizing: border-box;
  display: flex; flex-direction: column; gap: 8px; }}
.notice {{ border-left: 4px solid var(--mark); background: var(--card); padding: 6px 12px; }}
.tiles {{ display: grid; grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 8px; width: 100%; }}
.tile, .panel {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px; min-width: 0; }}
.tile {{ padding: 6px 12px; }}
.tile .name {{ color: var(--faint); font-size: 12px; }}
.tile .value {{ font-size: 16px; line-height: 24px; font-weight: 650; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }}
.tile .detail {{ color: var(--faint); font-size: 12px; overflow-wrap: anywhere; }}
.panel {{ overflow: hidden; }}
.padded {{ padding: 10px 12px; }}
.section {{ font-size: 15px; font-weight: 650; margin: 4px 0 0; line-height: 22px; letter-spacing: 0;
  scroll-margin-top: 8px; }}
.section .why {{ font-weight: 400; color: var(--faint); font-size: 13px; }}
.grid {{ display: grid; gap: 8px; width: 100%; }}
.three {{ grid-template-columns: repeat(3, minmax(0, 1fr)); }}
.four {{ grid-template-columns: repeat(4, minmax(0, 1fr)); }}
.five {{ grid-template-columns: repeat(5, minmax(0, 1fr)); }}
.wide {{ grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }}
.thirds {{ grid-template-columns: minmax(0, 3fr) minmax(0, 5fr) minmax(0, 4fr); }}
.tall {{ height: 228px; width: 100%; }}
.low {{ height: 186px; width: 100%; }}
.course {{ height: 300px; width: 100%; }}
.scroll {{ overflow: auto; max-height: 420px; width: 100%; box-sizing: border-box; }}
.picker {{ display: flex; align-items: center; gap: 10px; width: 100%; flex-wrap: wrap; }}
.scrubber {{ flex: 1; accent-color: var(--mark); height: 22px; }}
.facts {{ display: grid; grid-template-columns: auto 1fr; gap: 2px 14px; width: 100%; font-size: 13px; }}
.facts .k {{ color: var(--faint); white-space: nowrap; }}
.facts .v {{ overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }}
.warning {{ display: grid; grid-template-columns: 220px 130px 1fr; gap: 12px; width: 100%; font-size: 13px;
  padding: 5px 12px; border-top: 1px solid var(--line); }}
.warning:first-child {{ border-top: 0; }}
.warning .n {{ font-weight: 600; overflow-wrap: anywhere; }}
.faint {{ color: var(--faint); font-size: 13px; }}
.sheet .q-table__container {{ background: var(--card); color: var(--text); width: 100%; box-shadow: none;
  border: 1px solid var(--line); border-radius: 8px; }}
.q-field__native, .q-field__label, .q-field__append, .q-field__input {{ color: var(--text) !important; }}
:focus-visible {{ outline: 2px solid var(--mark); outline-offset: 2px; }}
@media (max-width: 900px) {{
  .three, .four, .five, .wide, .thirds {{ grid-template-columns: minmax(0, 1fr); }}
  .tiles {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
  .top {{ flex-wrap: wrap; }}
}}
"""

STATIC_CSS = """
h1 { font-size: 18px; margin: 4px 0; }
h1 .why { font-weight: 400; color: var(--faint); font-size: 14px; margin-left: 8px; }
table.panel { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { padding: 4px 12px; text-align: right; border-top: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; border-top: 0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
"""


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
    figures: dict[str, Figure] = {}
    body = "".join(_sections(folder, watched, theme, figures))
    data = to_json(figures, inf_nan_mode="null").decode().replace("<", "\\u003c")
    dark = " body--dark" if theme.name == "dark" else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{_text(run)} - Esper</title><style>{CSS}{STATIC_CSS}</style>"
        f"<script>{get_plotlyjs()}</script></head><body class='{dark}'><main class='sheet'>{body}</main>"
        f"<script>const figures = {data}; for (const [name, each] of Object.entries(figures)) "
        "Plotly.newPlot(name, each.data, each.layout, each.config);</script></body></html>"
    )


def _sections(folder: RunsFolder, watched: Watched, theme: Theme, figures: dict[str, Figure]) -> list[str]:
    runs, state = [Shown(watched.name, watched.state, 0)], watched.state

    def plot(name: str, figure: Figure, size: str) -> str:
        figures[name] = figure
        return f"<div class='panel'><div id='{name}' class='{size}'></div></div>"

    row = next(iter(reversed(state.episodes)), None)
    file = None if row is None else folder.open_events(watched.name)
    frames = []
    if row is not None and file is not None:
        with file:
            frames = read_episode(state, file, row)
    at = max(len(frames) - 1, 0)
    frame = frames[at] if frames else None
    slots = [] if frame is None else [slot.name for slot in frame.slots]
    weighed = (
        episode_charts.no_probabilities(theme)
        if frame is None
        else episode_charts.probabilities(frame.decision, slots, theme)
    )
    course = episode_charts.course(frames, at, None if row is None else row.control_accuracy, theme)
    return [
        f"<h1>{_text(watched.name)} <span class='why'>{_text(watched.standing)}</span></h1>",
        _tiles(watched),
        _heading(1, "Is it learning?", "against the same hosts left alone; bands are 95 % intervals"),
        "<div class='grid three'>",
        plot("gain", charts.gain(runs, theme), "tall"),
        plot("utility", charts.utility(runs, theme), "tall"),
        plot("accuracy", charts.accuracy(runs, theme), "tall"),
        "</div>",
        _heading(2, "Is it healthy?", "the learner's own measurements, by round"),
        "<div class='grid four'>",
        plot("explained", charts.explained_variance(runs, theme), "low"),
        plot("kl", charts.divergence(runs, theme, watched.target_kl), "low"),
        plot("entropy", charts.entropy(runs[0], theme), "low"),
        plot("gradients", charts.gradient_norm(runs, theme), "low"),
        "</div>",
        _warnings(watched),
        _heading(3, "What is it doing?", f"the last episode: {episode_told(row, recorded=bool(frames))}"),
        "<div class='grid wide'>",
        plot("operations", charts.operation_mix(runs[0], theme), "course"),
        plot("course", course, "course"),
        "</div>",
        f"<div class='panel padded scroll'>{network(frame, theme)}</div>",
        _heading(4, "Why?", "the last decision of that episode"),
        "<div class='grid wide'>",
        f"<div class='panel padded'>{_facts(decision_facts(frame))}</div>",
        plot("probabilities", weighed, ""),
        "</div>",
        _heading(5, "What did it cost?", "time, speed and memory"),
        "<div class='grid five'>",
        f"<div class='panel padded'>{_facts(cost_facts(watched))}</div>",
        f"<div class='panel padded'><b>Time of the last {WINDOW} rounds</b>"
        f"{_facts(time_tree(state.rounds[-WINDOW:]))}</div>",
        plot("speed", charts.speed(runs, theme), "low"),
        plot("seconds", charts.seconds(runs, theme), "low"),
        plot("memory", charts.memory(runs, theme), "low"),
        "</div>",
        _heading(6, "Which seeds earned their keep?", "by blueprint and slot, over the whole run"),
        _seeds(watched),
    ]


def _tiles(watched: Watched) -> str:
    shown = tiles(watched.state, watched.standing, watched.planned_rounds)
    return "".join(
        [
            "<div class='tiles'>",
            *(
                f"<div class='tile'><div class='name'>{_text(tile.title)}</div>"
                f"<div class='value'>{'' if tile.mood == 'neutral' else MARKS[tile.mood]} {_text(tile.value)}</div>"
                f"<div class='detail'>{_text(tile.detail)}</div></div>"
                for tile in shown
            ),
            "</div>",
        ]
    )


def _warnings(watched: Watched) -> str:
    found = warnings(watched.state)[:6]
    rows = [
        f"<div class='warning'><div class='n'>{'▼ ' if each.recent else ''}"
        f"{_text(each.name.replace('_', ' '))}</div>"
        f"<div>{each.when}</div>"
        f"<div>{_text(f'{each.last.detail}. {each.last.advice}', 300)}</div></div>"
        for each in found
    ]
    said = "".join(rows) or "<div class='faint padded'>No anomaly was raised.</div>"
    return f"<div class='panel'>{said}</div>"


def _seeds(watched: Watched) -> str:
    names = (
        "blueprint",
        "slot",
        "germinated",
        "fossilised",
        "pruned",
        "neither",
        "share fossilised",
        "mean contribution",
    )
    rows = [
        (
            row.blueprint,
            row.slot,
            f"{row.germinated:,}",
            f"{row.fossilized:,}",
            f"{row.pruned:,}",
            f"{row.undecided:,}",
            texts.share(row.fossilized, row.germinated),
            texts.signed(row.contribution, 4),
        )
        for row in watched.state.seed_counts()
    ]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table class='panel'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    told = "".join(
        f"<div class='k'>{_text(name)}</div><div class='v'>{_text(value)}</div>" for name, value in rows
    )
    return f"<div class='facts'>{told}</div>"


def _heading(number: int, title: str, why: str) -> str:
    return f"<h2 class='section'>{number}&ensp;{title} <span class='why'>{_text(why, 200)}</span></h2>"


def _text(text: str, longest: int = texts.LONGEST) -> str:
    return escape(texts.clipped(text, longest), quote=True)


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
