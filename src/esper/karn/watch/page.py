"""The page: one visitor's view of a run and of those beside it, brought up to date once a second."""

from collections.abc import Awaitable

from nicegui import run, ui
from nicegui.events import ValueChangeEventArguments

from esper.karn.palette import THEMES, Theme, ThemeName
from esper.karn.watch import texts
from esper.karn.watch.charts import Shown
from esper.karn.watch.episode_view import EpisodeView
from esper.karn.watch.once import CSS
from esper.karn.watch.overview import Overview
from esper.karn.watch.runs import MOST_BESIDE, Hub, Selection, Watched
from esper.karn.watch.widgets import section

SECONDS = 1.0
_PARTS = (
    ("learning", "Learning"),
    ("health", "Health"),
    ("doing", "Doing"),
    ("why", "Why"),
    ("cost", "Cost"),
    ("seeds", "Seeds"),
)
_PREFERS_DARK = "window.matchMedia('(prefers-color-scheme: dark)').matches"


class WatchPage:
    def __init__(self, hub: Hub, selection: Selection) -> None:
        self._hub, self._selection = hub, selection
        self._overview = Overview()
        self._episode = EpisodeView(hub, selection, self._remember)
        self._theme_name: ThemeName = selection.theme or "light"
        self._seen: tuple[object, ...] = ()
        self._names: list[str] = []
        self._busy = self._quiet = False

    @property
    def _theme(self) -> Theme:
        return THEMES[self._theme_name]

    def build(self) -> None:
        ui.add_css(CSS)
        self._dark = ui.dark_mode(self._theme_name == "dark")
        self._build_top()
        with ui.element("main").classes("sheet") as sheet:
            self._notice = ui.label().classes("notice").props('role="alert"').props('data-testid="notice"')
            self._overview.build_first()
            section(
                3, "What is it doing?", "doing", "operations over the run, and one episode epoch by epoch"
            )
            self._episode.build_picker()
            with ui.element("div").classes("grid wide"):
                self._overview.build_operations()
                self._episode.build_course()
            self._episode.build_network()
            self._episode.build_why()
            self._overview.build_last()
        ui.skip_link("Skip to the figures", target=sheet)
        self._notice.set_visibility(False)
        ui.timer(SECONDS, self.tick, immediate=True)

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
                for anchor, name in _PARTS:
                    ui.link(name, f"#{anchor}")
            ui.button("Dark / light", on_click=self._switch_theme).props("dense outline no-caps").style(
                "padding: 2px 10px; color: var(--text) !important"
            ).props('data-testid="theme"')

    # Following the runs

    async def tick(self) -> None:
        """Look at the runs; draw what changed. A look that takes long is not begun twice."""
        if self._busy:
            return
        self._busy = True
        try:
            await self._find_theme()
            await self._follow()
        finally:
            self._busy = False

    async def _follow(self) -> None:
        names = await run.io_bound(self._hub.names)
        self._offer(names or [])
        if self._selection.run is None:
            self._tell(f"There is no run in {self._hub.folder.root}. `esper train --preset demo` makes one.")
            return
        shown = [
            self._selection.run,
            *(name for name in self._selection.beside if name != self._selection.run),
        ]
        watched = [await run.io_bound(self._hub.look, name) for name in shown]
        if any(each is None for each in watched):  # the server is closing
            return
        found = [each for each in watched if each is not None]
        seen = (self._theme_name, *((each.name, each.state.version) for each in found))
        if seen == self._seen:
            return
        await self._draw(found)
        self._seen = seen

    async def _draw(self, found: list[Watched]) -> None:
        first = found[0]
        self._standing.set_text(first.standing)
        if first.standing == "gone" and not first.state.events:
            self._tell(f"There is no run {texts.clipped(first.name)}.")
        elif first.standing == "gone":
            self._tell(
                f"The run {texts.clipped(first.name)} is gone from the disk. This is what was known of it."
            )
        elif first.standing == "not begun":
            self._tell("Nothing has been recorded yet.")
        else:
            self._notice.set_visibility(False)
        runs = [Shown(each.name, each.state, place) for place, each in enumerate(found)]
        self._overview.update(runs, first, self._theme)
        await self._episode.update(first, self._theme)

    def _offer(self, names: list[str]) -> None:
        """The menus of runs; one that is gone stays in them while it is looked at."""
        if self._selection.run is None and names:
            self._selection.run = names[0]
        kept = [name for name in (self._selection.run, *self._selection.beside) if name]
        offered = list(dict.fromkeys([*names, *kept]))
        if offered == self._names:
            return
        self._names = offered
        self._quiet = True
        try:
            options = {name: texts.clipped(name, 80) for name in offered}
            self._run.set_options(options, value=self._selection.run)
            self._beside.set_options(options, value=list(self._selection.beside))
        finally:
            self._quiet = False

    def _tell(self, text: str) -> None:
        self._notice.set_text(text)
        self._notice.set_visibility(True)

    # What the visitor does

    # The handlers of menus look at once whether it was us who set them; what they return is then awaited.

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
        """Once: as the browser is set, unless the address says otherwise."""
        if self._selection.theme is None and not self._seen:
            dark = await ui.run_javascript(_PREFERS_DARK, timeout=5.0)
            self._use_theme("dark" if dark else "light")

    def _use_theme(self, name: ThemeName) -> None:
        self._theme_name = name
        self._dark.value = name == "dark"

    def _remember(self) -> None:
        ui.navigate.history.replace(self._selection.address())
