"""The few elements the page is made of. Texts out of records only ever become text, never markup."""

from collections.abc import Callable, Sequence

from nicegui import ui
from nicegui.events import GenericEventArguments

from esper.karn.watch.figures import Figure
from esper.karn.watch.verdicts import MARKS, Tile


class Plots:
    """Figures by name; one is sent to the browser only when it changed."""

    def __init__(self) -> None:
        self._plots: dict[str, ui.plotly] = {}
        self._shown: dict[str, Figure] = {}

    def add(self, name: str, title: str, size: str) -> None:
        with ui.element("div").classes("panel"):
            plot = ui.plotly({"data": [], "layout": {}, "config": {"displayModeBar": False}})
            plot.classes(size).props(f'role="img" aria-label="{title}" data-testid="{name}"')
        self._plots[name] = plot

    def show(self, name: str, figure: Figure) -> None:
        if self._shown.get(name) == figure:
            return
        self._shown[name] = figure
        self._plots[name].update_figure(figure)

    def resize(self, name: str, height: int) -> None:
        self._plots[name].style(f"height: {height}px")


class Tiles:
    """A row of answers."""

    def __init__(self, count: int) -> None:
        self._labels: list[tuple[ui.label, ui.label, ui.label]] = []
        with ui.element("div").classes("tiles"):
            for _ in range(count):
                with ui.element("div").classes("tile").props('role="status"'):
                    self._labels.append(
                        (
                            ui.label().classes("name"),
                            ui.label().classes("value"),
                            ui.label().classes("detail"),
                        )
                    )

    def show(self, tiles: Sequence[Tile]) -> None:
        for (name, value, detail), tile in zip(self._labels, tiles, strict=True):
            name.set_text(tile.title)
            mark = "" if tile.mood == "neutral" else f"{MARKS[tile.mood]} "
            value.set_text(f"{mark}{tile.value}")
            detail.set_text(tile.detail)


class Scrubber:
    """A slider over whole numbers: the browser's own, which keyboards and screen readers know."""

    def __init__(self, name: str, moved: Callable[[int], None]) -> None:
        self._moved = moved
        self.value = 1
        self._input = ui.element("input").classes("scrubber")
        self._input.props(f'type="range" min="1" max="1" step="1" aria-label="{name}"')
        self._input.on(
            "input", self._take, js_handler="event => emit(Number(event.target.value))", throttle=0.05
        )

    def show(self, first: int, last: int, value: int) -> None:
        self.value = value
        self._input.props(f'min="{first}" max="{last}" value="{value}"')

    def move(self, value: int) -> None:
        """As if the visitor had."""
        self.value = value
        self._input.props(f'value="{value}"')
        self._moved(value)

    def _take(self, event: GenericEventArguments) -> None:
        if isinstance(event.args, int) and event.args != self.value:
            self.move(event.args)


def section(number: int, title: str, anchor: str, why: str) -> None:
    with ui.element("h2").classes("section").props(f'id="{anchor}" tabindex="-1"'):
        ui.label(f"{number}  {title}").style("display: inline")
        ui.label(why).classes("why").style("display: inline; margin-left: 10px")


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names and values, side by side."""
    with ui.element("div").classes("facts"):
        for name, value in rows:
            ui.label(name).classes("k")
            ui.label(value).classes("v")
