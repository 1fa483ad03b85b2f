"""The elements of the live page: panels that are filled by name, and a slider."""

import json
from collections.abc import Callable, Mapping

from nicegui import ui
from nicegui.events import GenericEventArguments
from pydantic_core import to_json

from esper.karn.watch.charts import Figure
from esper.karn.watch.sheet import Panel


class Plot(ui.element, component="figure.js"):
    """One figure, drawn by the plotly.js that NiceGUI brings."""

    def __init__(self) -> None:
        super().__init__()
        self._props["figure"] = ""

    def show(self, figure: Figure) -> None:
        """Draw it, unless it is drawn already. A height in its layout becomes that of the element."""
        text = to_json(figure, inf_nan_mode="null").decode()
        if text != self._props["figure"]:
            self._props["figure"] = text
            layout = figure["layout"]
            if isinstance(layout, dict) and "height" in layout:
                self.style(f"height: {layout['height']}px")
            self.update()


class Board:
    """The panels of the page by name."""

    def __init__(self) -> None:
        self._plots: dict[str, Plot] = {}
        self._texts: dict[str, ui.html] = {}

    def add(self, panel: Panel) -> None:
        """Make an empty panel here."""
        named = f'aria-label="{panel.label}" data-testid="{panel.name}"'
        if panel.is_figure:
            with ui.element("div").classes("panel"):
                self._plots[panel.name] = Plot()
                self._plots[panel.name].classes(panel.classes).props(f'role="img" {named}')
        else:
            # What is shown here is made by `sheet`, which escapes every recorded text.
            self._texts[panel.name] = (
                ui.html("", sanitize=False).classes(f"panel {panel.classes}").props(named)
            )
            if "scroll" in panel.classes:
                self._texts[panel.name].props('tabindex="0"')

    def show(self, contents: Mapping[str, Figure | str]) -> None:
        """Fill panels; what did not change is not sent."""
        for name, content in contents.items():
            if isinstance(content, str):
                self._texts[name].set_content(content)
            else:
                self._plots[name].show(content)


class Scrubber:
    """A slider over whole numbers: the browser's own, which keyboards and screen readers know.

    The browser keeps its value. Sent back to it, a visitor's own move would undo those made in the meantime.
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
        """Set the ends and the value."""
        if (first, last, value) != (*self._ends, self.value):
            self._place(first, last, value)

    def move(self, value: int) -> None:
        """Set the value as if the visitor had."""
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


def button(text: str, act: Callable[[], object], label: str | None = None) -> ui.button:
    """A small button; `label` is for screen readers."""
    made = ui.button(text, on_click=act).props(f'dense outline no-caps aria-label="{label or text}"')
    return made.style("padding: 2px 10px; color: var(--text) !important")
