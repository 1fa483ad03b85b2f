"""The live page: one visitor's view of a run and of those beside it, updated once a second."""

from collections.abc import Awaitable

from nicegui import run, ui
from nicegui.events import ValueChangeEventArguments

from esper.karn.drawing import THEMES, ThemeName, clipped
from esper.karn.watch.episode_view import EpisodeView
from esper.karn.watch.runs import MOST_BESIDE, Hub, Selection
from esper.karn.watch.sheet import (
    CSS,
    SECTIONS,
    SEED_COLUMNS,
    Panel,
    Section,
    heading,
    run_contents,
    seeds_note,
)
from esper.karn.watch.state import Watched
from esper.karn.watch.widgets import Board, button

SECONDS = 1.0
"""Between two looks at the runs."""
_PREFERS_DARK = "window.matchMedia('(prefers-color-scheme: dark)').matches"


class WatchPage:
    """One visitor's page."""

    def __init__(self, hub: Hub, selection: Selection) -> None:
        self._hub, self._selection = hub, selection
        self._board = Board()
        self._episode = EpisodeView(hub, selection, self._board, self._remember)
        self._theme_name: ThemeName = selection.theme or "light"
        self._seen: tuple[object, ...] = ()
        self._names: list[str] = []
        self._busy = self._quiet = False

    def build(self) -> None:
        """Make the elements of the page, and start to follow the runs."""
        ui.add_css(CSS)
        self._dark = ui.dark_mode(self._theme_name == "dark")
        self._build_top()
        with ui.element("main").classes("sheet") as sheet:
            self._notice = ui.label().classes("notice").props('role="alert"').props('data-testid="notice"')
            self._board.add(Panel("tiles", "answers", "tiles", is_figure=False))
            for number, section in enumerate(SECTIONS, start=1):
                self._build_section(number, section)
            self._build_seeds()
        ui.skip_link("Skip to the figures", target=sheet)
        self._notice.set_visibility(False)
        ui.timer(SECONDS, self.tick, immediate=True)

    def _build_section(self, number: int, section: Section) -> None:
        title = ui.html(heading(number, section, section.about), sanitize=False, tag="h2")
        title.classes("section").props(f'id="{section.anchor}" tabindex="-1"')
        if section.anchor == "doing":
            self._episode.build()
        for columns, panels in section.rows:
            with ui.element("div").classes(f"grid {columns}"):
                for panel in panels:
                    self._board.add(panel)

    def _build_seeds(self) -> None:
        self._counting = ui.label().classes("faint")
        columns = [
            {"name": name, "label": name, "field": name, "align": align, "sortable": True}
            for name, align in zip(SEED_COLUMNS, ["left"] * 2 + ["right"] * 6, strict=True)
        ]
        pages = {"rowsPerPage": 12, "sortBy": "germinated", "descending": True}
        self._seeds = ui.table(columns=columns, rows=[], row_key="key", pagination=pages)
        self._seeds.props('dense flat aria-label="seeds by blueprint and slot" data-testid="seeds"')

    def _build_top(self) -> None:
        with ui.header().classes("top"):
            ui.label("Esper").classes("brand")
            self._run = ui.select([], label="run", with_input=True, on_change=self._run_chosen)
            self._run.props("dense outlined options-dense").style("width: 250px").props('data-testid="run"')
            self._beside = ui.select([], label="beside it", multiple=True, on_change=self._beside_chosen)
            self._beside.props(f'dense outlined options-dense use-chips max-values="{MOST_BESIDE}"')
            self._beside.style("min-width: 170px; max-width: 380px").props('data-testid="beside"')
            self._standing = ui.label().props('data-testid="standing"')
            ui.element("div").classes("grow")
            with ui.element("nav").style("display: flex; gap: 12px").props('aria-label="sections"'):
                for section in SECTIONS:
                    ui.link(section.anchor.capitalize(), f"#{section.anchor}")
            button("Dark / light", self._switch_theme).props('data-testid="theme"')

    # Following the runs

    async def tick(self) -> None:
        """Look at the runs and draw what changed, unless the last look is still going on."""
        if self._busy:
            return
        self._busy = True
        try:
            await self._find_theme()
            await self._follow()
        finally:
            self._busy = False

    async def _follow(self) -> None:
        self._offer(await run.io_bound(self._hub.names) or [])
        if self._selection.run is None:
            self._notify(
                f"There is no run in {self._hub.folder.root}. `esper train --preset demo` makes one."
            )
            return
        names = dict.fromkeys([self._selection.run, *self._selection.beside])
        watched = [await run.io_bound(self._hub.look, name) for name in names]
        found = [each for each in watched if each is not None]
        if len(found) < len(names):  # the server is closing
            return
        seen = (self._theme_name, *((each.name, each.state.version) for each in found))
        if seen != self._seen:
            await self._draw(found)
            self._seen = seen

    async def _draw(self, runs: list[Watched]) -> None:
        first, theme = runs[0], THEMES[self._theme_name]
        name = clipped(first.name)
        self._standing.set_text(first.standing)
        if first.standing == "gone" and not first.state.events:
            self._notify(f"There is no run {name}.")
        elif first.standing == "gone":
            self._notify(f"The run {name} is gone from the disk. This is what was known of it.")
        elif first.standing == "not begun":
            self._notify("Nothing has been recorded yet.")
        else:
            self._notice.set_visibility(False)
        self._board.show(run_contents(runs, theme))
        self._counting.set_text(seeds_note(first))
        rows = [
            {"key": f"{row.blueprint} {row.slot}", **{name: pick(row) for name, pick in SEED_COLUMNS.items()}}
            for row in first.state.seed_counts()
        ]
        if rows != self._seeds.rows:
            self._seeds.rows = rows
        await self._episode.update(first, theme)

    def _offer(self, names: list[str]) -> None:
        """Fill the menus of runs; one that was deleted stays in them while it is looked at."""
        if self._selection.run is None and names:
            self._selection.run = names[0]
        kept = [name for name in (self._selection.run, *self._selection.beside) if name]
        offered = list(dict.fromkeys([*names, *kept]))
        if offered == self._names:
            return
        self._names = offered
        self._quiet = True
        try:
            options = {name: clipped(name, 80) for name in offered}
            self._run.set_options(options, value=self._selection.run)
            self._beside.set_options(options, value=list(self._selection.beside))
        finally:
            self._quiet = False

    def _notify(self, text: str) -> None:
        self._notice.set_text(text)
        self._notice.set_visibility(True)

    # What the visitor does. A menu's handler returns at once unless the visitor chose; what it returns is awaited.

    def _run_chosen(self, event: ValueChangeEventArguments[object]) -> Awaitable[None] | None:
        if self._quiet or not isinstance(event.value, str):
            return None
        self._selection.run = event.value
        self._selection.env = self._selection.episode = self._selection.epoch = None
        self._remember()
        return self.tick()

    def _beside_chosen(self, event: ValueChangeEventArguments[object]) -> Awaitable[None] | None:
        if self._quiet or not isinstance(event.value, list):
            return None
        self._selection.beside = [str(name) for name in event.value][:MOST_BESIDE]
        self._remember()
        return self.tick()

    async def _switch_theme(self) -> None:
        self._selection.theme = "light" if self._theme_name == "dark" else "dark"
        self._use_theme(self._selection.theme)
        self._remember()
        await self.tick()

    async def _find_theme(self) -> None:
        """Once: the browser's preference, unless the address names a theme."""
        if self._selection.theme is None and not self._seen:
            dark = await ui.run_javascript(_PREFERS_DARK, timeout=5.0)
            self._use_theme("dark" if dark else "light")

    def _use_theme(self, name: ThemeName) -> None:
        self._theme_name = name
        self._dark.value = name == "dark"

    def _remember(self) -> None:
        ui.navigate.history.replace(self._selection.address())
