"""The sheet that the page and the single file both show, declared once: its look, its sections, and its texts.

Panels are declared by name; `run_contents` and `episode_contents` give what each shows, a figure or HTML. Recorded
texts are escaped here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from esper.karn import texts
from esper.karn.palette import DARK, LIGHT, Theme
from esper.karn.watch.charts import Figure, run_figures
from esper.karn.watch.episode_charts import course, network, probabilities
from esper.karn.watch.episodes import Fact, Frame, decision_facts, observation_facts
from esper.karn.watch.runs import Watched
from esper.karn.watch.seed_tally import SeedCount
from esper.karn.watch.verdicts import WINDOW, Tile, Warning, cost_facts, tiles, time_tree, warnings
from esper.leyline import EpisodeFinished

MOST_WARNINGS = 6
"""Kinds of anomaly that are listed."""


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
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    """(CSS class of the columns, panels)."""


def _text(name: str, label: str, classes: str = "padded") -> Panel:
    return Panel(name, label, classes, is_figure=False)


SECTIONS = (
    Section(
        "Is it learning?",
        "learning",
        "against the same hosts left alone; bands are 95 % intervals",
        (
            (
                "three",
                (
                    Panel("gain", "gain over waiting by round", "tall"),
                    Panel("utility", "utility by round, with the baseline", "tall"),
                    Panel("accuracy", "accuracy by round, with the baseline", "tall"),
                ),
            ),
        ),
    ),
    Section(
        "Is it healthy?",
        "health",
        "the learner's own measurements, by round",
        (
            (
                "four",
                (
                    Panel("explained", "explained variance by round", "low"),
                    Panel("kl", "KL divergence by round", "low"),
                    Panel("entropy", "entropy of each head by round", "low"),
                    Panel("gradients", "gradient norm by round", "low"),
                ),
            ),
            ("", (_text("warnings", "anomalies", ""),)),
        ),
    ),
    Section(
        "What is it doing?",
        "doing",
        "operations over the run, and one episode epoch by epoch",
        (
            (
                "wide",
                (
                    Panel("operations", "share of each operation by round", "course"),
                    Panel("course", "accuracy, operations and stages of the episode by epoch", "course"),
                ),
            ),
            ("", (_text("network", "network", "padded scroll"),)),
        ),
    ),
    Section(
        "Why?",
        "why",
        "the decision at the chosen epoch: what was seen, allowed and weighed",
        (
            (
                "thirds",
                (
                    _text("decision", "decision"),
                    Panel("probabilities", "probability of every choice", ""),
                    _text("observation", "observation", "padded scroll"),
                ),
            ),
        ),
    ),
    Section(
        "What did it cost?",
        "cost",
        "time, speed and memory",
        (
            (
                "five",
                (
                    _text("costs", "costs"),
                    _text("time-tree", "parts of the time of a round"),
                    Panel("speed", "env-epochs per second by round", "low"),
                    Panel("seconds", "seconds per round", "low"),
                    Panel("memory", "peak memory by round", "low"),
                ),
            ),
        ),
    ),
    Section("Which seeds earned their keep?", "seeds", "by blueprint and slot, over the whole run", ()),
)
"""In the order of the page. The last one is a table, of SEED_COLUMNS."""
SEED_COLUMNS: dict[str, Callable[[SeedCount], str | int]] = {
    "blueprint": lambda row: row.blueprint,
    "slot": lambda row: row.slot,
    "germinated": lambda row: row.germinated,
    "fossilised": lambda row: row.fossilized,
    "pruned": lambda row: row.pruned,
    "neither": lambda row: row.undecided,
    "share fossilised": lambda row: texts.share(row.fossilized, row.germinated),
    "mean contribution": lambda row: texts.signed(row.contribution, 4),
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


def html(text: str, longest: int = texts.LONGEST) -> str:
    """A recorded text as HTML."""
    return escape(texts.clipped(text, longest), quote=True)


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


def _facts(rows: Sequence[Fact], title: str = "") -> str:
    pairs = (f"<div class='k'>{html(name)}</div><div class='v'>{html(value)}</div>" for name, value in rows)
    return f"{f'<b>{title}</b>' if title else ''}<div class='facts'>{''.join(pairs)}</div>"


# The look of the page; colours come from the palette.


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
.panel.tiles {{ background: none; border: 0; }}
.padded {{ padding: 10px 12px; }}
.section {{ font-size: 15px; font-weight: 650; margin: 4px 0 0; line-height: 22px; letter-spacing: 0;
  scroll-margin-top: 8px; }}
.section .about {{ font-weight: 400; color: var(--faint); font-size: 13px; }}
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
