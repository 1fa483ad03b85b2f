"""The few elements the page is made of. Texts out of records only ever become text, never markup."""

import json
from collections.abc import Callable, Sequence

from nicegui import ui
from nicegui.events import GenericEventArguments
from pydantic_core import to_json

from esper.karn.watch.figures import Figure
from esper.karn.watch.verdicts import MARKS, Tile


class Plot(ui.element, component="figure.js"):
    """One figure, drawn by the plotly.js that NiceGUI brings."""

    def __init__(self) -> None:
        super().__init__()
        self._props["figure"] = ""

    def show(self, figure: Figure) -> None:
        """Draw it, unless it is what is drawn already."""
        text = to_json(figure, inf_nan_mode="null").decode()
        if text != self._props["figure"]:
            self._props["figure"] = text
            self.update()


class Plots:
    """Figures by name."""

    def __init__(self) -> None:
        self._plots: dict[str, Plot] = {}

    def add(self, name: str, title: str, size: str) -> None:
        with ui.element("div").classes("panel"):
            self._plots[name] = Plot()
            self._plots[name].classes(size).props(f'role="img" aria-label="{title}" data-testid="{name}"')

    def show(self, name: str, figure: Figure) -> None:
        self._plots[name].show(figure)

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
    """A slider over whole numbers: the browser's own, which keyboards and screen readers know.

    The browser keeps its value. Told back to it, a visitor's own move would undo those made in the meantime.
    """

    def __init__(self, name: str, moved: Callable[[int], None]) -> None:
        self._moved = moved
        self.value = 1
        self._ends = (1, 1)
        self._input = ui.element("input").classes("scrubber")
        self._input.props(f'type="range" min="1" max="1" step="1" aria-label="{name}"')
        self._input.on(
            "input", self._take, js_handler="event => emit(Number(event.target.value))", throttle=0.05
        )

    def show(self, first: int, last: int, value: int) -> None:
        if (first, last, value) != (*self._ends, self.value):
            self._place(first, last, value)

    def move(self, value: int) -> None:
        """As if the visitor had."""
        self._place(*self._ends, value)
        self._moved(value)

    def _place(self, first: int, last: int, value: int) -> None:
        self.value, self._ends = value, (first, last)
        places = {"min": first, "max": last, "value": value}
        self._input.client.run_javascript(
            f"Object.assign(getHtmlElement({self._input.id}), {json.dumps(places)})"
        )

    def _take(self, event: GenericEventArguments) -> None:
        if isinstance(event.args, int) and event.args != self.value:
            self.value = event.args
            self._moved(event.args)


def section(number: int, title: str, anchor: str, why: str) -> None:
    with ui.element("h2").classes("section").props(f'id="{anchor}" tabindex="-1"'):
        ui.label(f"{number}  {title}").style("display: inline")
        ui.label(why).classes("why").style("display: inline; margin-left: 10px")


class Facts:
    """Names and values, side by side."""

    def __init__(self, name: str) -> None:
        self._place = ui.element("div").classes("facts").props(f'data-testid="{name}"')
        self._names: list[str] = []
        self._values: list[ui.label] = []

    def show(self, rows: Sequence[tuple[str, str]]) -> None:
        names = [name for name, _ in rows]
        if names != self._names:
            self._names = names
            self._place.clear()
            with self._place:
                self._values = [_fact(name) for name in names]
        for label, (_, value) in zip(self._values, rows, strict=True):
            label.set_text(value)


def _fact(name: str) -> ui.label:
    ui.label(name).classes("k")
    return ui.label().classes("v")
