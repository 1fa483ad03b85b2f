"""Is it learning, is it healthy: a run at a terminal, live, without a browser."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from esper.karn.watch import texts
from esper.karn.watch.figures import Curve, measured, over_episodes
from esper.karn.watch.runs import Hub, RunsFolder, Watched
from esper.karn.watch.verdicts import MARKS, Mood, Warning, tiles, warnings
from esper.leyline import HEAD_NAMES

SECONDS = 1.0
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
_MOST_WARNINGS = 4
_STYLES: dict[Mood, str] = {"good": "bold blue", "bad": "bold red", "neutral": "bold", "unknown": "dim"}


def follow(folder: RunsFolder, name: str, console: Console | None = None) -> None:
    """Until the run ends, or somebody has seen enough; where nobody sits at a terminal, once."""
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
    parts: list[RenderableType] = [_answers(watched), _curves(watched)]
    found = warnings(watched.state)[:_MOST_WARNINGS]
    if found:
        parts.append(_warned(found))
    return Panel(Group(*parts), title=Text(texts.clipped(watched.name, 60)), border_style="dim")


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
    for tile in tiles(watched.state, watched.standing, watched.planned_rounds):
        mark = "" if tile.mood == "neutral" else f"{MARKS[tile.mood]} "
        grid.add_row(
            Text(tile.title, style="dim"),
            Text(f"{mark}{tile.value}", style=_STYLES[tile.mood]),
            Text(tile.detail, style="dim"),
        )
    return grid


def _curves(watched: Watched) -> Table:
    state = watched.state
    grid = Table.grid(padding=(0, 2))
    curves: list[tuple[str, Curve, int]] = [
        ("gain", over_episodes(state, "gain"), 3),
        ("accuracy", over_episodes(state, "accuracy"), 3),
        ("wait-only", over_episodes(state, "control_accuracy"), 3),
        ("explained variance", measured(state, "explained_variance"), 2),
        ("KL", measured(state, "approx_kl"), 4),
        ("gradient norm", measured(state, "grad_norm"), 2),
    ]
    for head in HEAD_NAMES:
        curve = measured(state, head)
        if any(value is not None for value in curve.values):
            curves.append((f"entropy of {head.replace('_', ' ')}", curve, 2))
    for name, curve, digits in curves:
        last = curve.values[-1] if curve.values else None
        grid.add_row(
            Text(name, style="dim"), Text(texts.number(last, digits)), Text(sparkline(curve.values), "blue")
        )
    return grid


def _warned(found: Sequence[Warning]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for warning in found:
        name = texts.clipped(warning.name, 40).replace("_", " ")
        grid.add_row(
            Text(f"{'▼ ' if warning.recent else ''}{name}", style="bold red" if warning.recent else "dim"),
            Text(warning.when, style="dim"),
            Text(texts.clipped(warning.last.advice, 200)),
        )
    return grid
