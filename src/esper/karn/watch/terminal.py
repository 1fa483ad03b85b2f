"""The first two questions about a run at a terminal, live, without a browser."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from esper.karn.drawing import clipped, number
from esper.karn.watch.charts import shown_curve
from esper.karn.watch.runs import Hub, RunsFolder
from esper.karn.watch.state import Watched
from esper.karn.watch.verdicts import (
    NODE_COLUMNS,
    WINDOW,
    Mood,
    NodeWork,
    Warning,
    tiles,
    warnings,
    work_by_node,
)
from esper.leyline import HEAD_NAMES

SECONDS = 1.0
"""Between two looks at the run."""
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
_MOST_WARNINGS = 4
_CURVES: dict[str, tuple[str, int]] = {
    "gain, points": ("gain", 2),
    "accuracy": ("accuracy", 3),
    "baseline": ("baseline_accuracy", 3),
    "explained variance": ("explained_variance", 2),
    "KL": ("approx_kl", 4),
    "gradient norm": ("grad_norm", 2),
    **{f"entropy of {head.replace('_', ' ')}": (head, 2) for head in HEAD_NAMES},
}
"""Name -> (measure, digits after the point)."""
_STYLES: dict[Mood, str] = {"good": "bold blue", "bad": "bold red", "neutral": "bold", "unknown": "dim"}


def follow(folder: RunsFolder, name: str, console: Console | None = None) -> None:
    """Show a run until it ends or Ctrl-C; once if it is not running or the output is no terminal."""
    hub, screen = Hub(folder), console or Console()
    watched = hub.look(name)
    if not screen.is_terminal or watched.standing != "running":
        screen.print(picture(watched))
        return
    try:
        with Live(picture(watched), console=screen, auto_refresh=False) as live:
            while watched.standing == "running":
                time.sleep(SECONDS)
                watched = hub.look(name)
                live.update(picture(watched), refresh=True)
    except KeyboardInterrupt:
        return


def picture(watched: Watched) -> RenderableType:
    """Answers, curves and warnings of a run."""
    parts: list[RenderableType] = [_answers(watched), _curves(watched)]
    nodes = work_by_node(watched.state.rounds[-WINDOW:])
    if nodes:
        parts.append(_nodes(nodes))
    found = warnings(watched.state)[:_MOST_WARNINGS]
    if found:
        parts.append(_warned(found))
    return Panel(Group(*parts), title=Text(clipped(watched.name, 60)), border_style="dim")


def sparkline(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """The last values as bars, between the lowest and the highest; an unknown one is a space."""
    shown = list(values)[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high / len(_BARS) - low / len(_BARS)) or 1.0  # their difference might overflow
    return "".join(
        " " if value is None else _BARS[min(int(value / step - low / step), len(_BARS) - 1)]
        for value in shown
    )


def _answers(watched: Watched) -> Table:
    grid = Table.grid(padding=(0, 2))
    for tile in tiles(watched):
        answer = Text(tile.marked, style=_STYLES[tile.mood])
        grid.add_row(Text(tile.title, style="dim"), answer, Text(tile.detail, style="dim"))
    return grid


def _curves(watched: Watched) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, (measure, digits) in _CURVES.items():
        values = shown_curve(watched.state, measure).values
        known = any(value is not None for value in values)
        if known or measure not in HEAD_NAMES:  # a head that never had a choice is not shown
            last = number(values[-1] if values else None, digits)
            grid.add_row(Text(name, style="dim"), Text(last), Text(sparkline(values), "blue"))
    return grid


def _nodes(rows: Sequence[NodeWork]) -> Table:
    table = Table(*NODE_COLUMNS, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(Text(clipped(pick(row), 60)) for pick in NODE_COLUMNS.values()))
    return table


def _warned(found: Sequence[Warning]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for warning in found:
        name = Text(warning.marked, style="bold red" if warning.recent else "dim")
        grid.add_row(name, Text(warning.when, style="dim"), Text(clipped(warning.last.advice, 200)))
    return grid
