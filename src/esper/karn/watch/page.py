"""The live page: one visitor's view of a run and of those beside it, updated once a second.

`WatchPage` follows the runs, `EpisodeView` one episode and epoch; both fill the panels of a `Board` by name.
"""

import json
from collections.abc import Awaitable, Callable, Mapping

from nicegui import run, ui
from nicegui.events import GenericEventArguments, ValueChangeEventArguments
from pydantic_core import to_json

from esper.karn.drawing import THEMES, Theme, ThemeName, clipped, finite, in_points
from esper.karn.watch.charts import Figure
from esper.karn.watch.episodes import Frame, episode_line
from esper.karn.watch.runs import MOST_BESIDE, Hub, Selection
from esper.karn.watch.sheet import (
    CSS,
    SECTIONS,
    SEED_COLUMNS,
    Panel,
    Section,
    episode_contents,
    heading,
    run_contents,
    seeds_note,
)
from esper.karn.watch.state import Watched
from esper.leyline import EpisodeFinished

SECONDS = 1.0
"""Between two looks at the runs."""
_PREFERS_DARK = "window.matchMedia('(prefers-color-scheme: dark)').matches"
MOST_OFFERED = 100
"""Episodes of one env in the menu, the last ones."""
_RECENT = 2000
"""Episodes among which the best and the worst are searched."""


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


class EpisodeView:
    """The picker of episodes and epochs, and the panels it controls.

    board    has the panels
    changed  is called when the visitor chose another episode or epoch
    """

    def __init__(self, hub: Hub, selection: Selection, board: Board, changed: Callable[[], None]) -> None:
        self._hub, self._selection, self._board, self._changed = hub, selection, board, changed
        self._watched: Watched | None = None
        self._theme: Theme | None = None
        self._row: EpisodeFinished | None = None
        self._frames: list[Frame] = []
        self._loaded: tuple[str, EpisodeFinished, bool] | None = None
        self._quiet = False
        """Set while the menus are filled: that is not a choice of the visitor's."""

    def build(self) -> None:
        """Make the picker here."""
        with ui.element("div").classes("picker"):
            self._env = ui.select({}, label="env", on_change=self._env_chosen)
            self._env.props("dense outlined stack-label")
            self._env.style("width: 90px").props('data-testid="env"')
            self._episode = ui.select({}, label="episode", on_change=self._episode_chosen)
            self._episode.props("dense outlined stack-label").style("width: 330px").props(
                'data-testid="episode"'
            )
            button("latest", self._latest)
            button("best gain", lambda: self._extreme(best=True))
            button("worst gain", lambda: self._extreme(best=False))
            self._about = ui.label().classes("faint").props('data-testid="episode-told"')
        with ui.element("div").classes("picker").style("flex-wrap: nowrap"):
            button("◀", lambda: self._step(-1), "one epoch back")
            self._scrubber = Scrubber("epoch", self._scrubbed)
            button("▶", lambda: self._step(1), "one epoch on")
            self._where = ui.label().style("min-width: 110px; text-align: right")
            self._where.props('data-testid="epoch-told"')

    # What is shown

    async def update(self, watched: Watched, theme: Theme) -> None:
        """Follow the run; what the visitor chose stays chosen."""
        other_theme = theme is not self._theme
        self._watched, self._theme = watched, theme
        row = self._wanted(watched)
        # The decisions of a round can be read once it has ended; until then there are none to keep.
        wanted = None if row is None else (watched.name, row, row.round in watched.state.blocks)
        if row is not None and wanted != self._loaded:
            self._frames = await run.io_bound(self._hub.episode, watched.name, row) or []
            self._loaded = wanted
        elif row is None:
            self._frames, self._loaded = [], None
        elif not other_theme:
            self._offer(watched, row)
            return
        self._row = row
        self._offer(watched, row)
        epochs = [frame.epoch for frame in self._frames] or [1]
        epoch = epochs[-1] if self._selection.epoch is None else self._selection.epoch
        self._scrubber.show(epochs[0], epochs[-1], min(max(epoch, epochs[0]), epochs[-1]))
        self._about.set_text(episode_line(self._row, recorded=bool(self._frames)))
        self._show_epoch()

    def _wanted(self, watched: Watched) -> EpisodeFinished | None:
        """The chosen episode, or else the last one whose decisions can be read."""
        chosen, state = self._selection, watched.state
        if chosen.env is not None and chosen.episode is not None:
            found = state.episode(chosen.env, chosen.episode)
            if found is not None:
                return found
        readable = (row for row in reversed(state.episodes) if row.round in state.blocks)
        return next(readable, state.episodes[-1] if state.episodes else None)

    def _offer(self, watched: Watched, row: EpisodeFinished | None) -> None:
        offered = [] if row is None else watched.state.by_env.get(row.env, [])[-MOST_OFFERED:]
        if row is not None and row not in offered:
            offered = [row, *offered]
        envs = {env: str(env) for env in sorted(watched.state.by_env)}
        self._quiet = True
        try:
            _set(self._env, envs, None if row is None else row.env)
            _set(
                self._episode,
                {each.episode: _offered(each) for each in reversed(offered)},
                None if row is None else row.episode,
            )
        finally:
            self._quiet = False

    def _show_epoch(self) -> None:
        assert self._theme is not None
        at = self._at()
        last = self._frames[-1].epoch if self._frames else None
        self._where.set_text("no epochs" if last is None else f"epoch {self._frames[at].epoch} of {last}")
        self._board.show(episode_contents(self._row, self._frames, at, self._theme))

    def _at(self) -> int:
        """Index of the frame of the scrubber's epoch; the last frame if that epoch was not recorded."""
        epochs = [frame.epoch for frame in self._frames]
        wanted = self._scrubber.value
        return epochs.index(wanted) if wanted in epochs else max(len(epochs) - 1, 0)

    # What the visitor does

    def _scrubbed(self, epoch: int) -> None:
        if self._theme is None:
            return
        if self._row is not None:  # who looks closely at an episode keeps it when others end
            self._selection.env, self._selection.episode = self._row.env, self._row.episode
        self._selection.epoch = epoch
        self._show_epoch()
        self._changed()

    def _step(self, by: int) -> None:
        if self._frames:
            at = min(max(self._at() + by, 0), len(self._frames) - 1)
            self._scrubber.move(self._frames[at].epoch)

    # A menu's handler returns at once unless the visitor chose; what it returns is then awaited.

    def _env_chosen(self, event: ValueChangeEventArguments[object]) -> Awaitable[None] | None:
        if self._quiet or self._watched is None:
            return None
        of_env = self._watched.state.by_env.get(event.value, []) if isinstance(event.value, int) else []
        return self._choose(of_env[-1] if of_env else None)

    def _episode_chosen(self, event: ValueChangeEventArguments[object]) -> Awaitable[None] | None:
        if self._quiet or self._watched is None or self._row is None or not isinstance(event.value, int):
            return None
        return self._choose(self._watched.state.episode(self._row.env, event.value))

    async def _latest(self) -> None:
        self._selection.env = self._selection.episode = self._selection.epoch = None
        if self._watched is not None and self._theme is not None:
            await self.update(self._watched, self._theme)
        self._changed()

    async def _extreme(self, *, best: bool) -> None:
        if self._watched is not None:
            recent = self._watched.state.episodes[-_RECENT:]
            known = [(gain, row) for row in recent if (gain := finite(row.gain)) is not None]
            pick = max if best else min
            await self._choose(pick(known, key=lambda each: each[0])[1] if known else None)

    async def _choose(self, row: EpisodeFinished | None) -> None:
        if row is None or self._watched is None or self._theme is None:
            return
        self._selection.env, self._selection.episode, self._selection.epoch = row.env, row.episode, None
        await self.update(self._watched, self._theme)
        self._changed()


def _set(menu: ui.select, options: dict[int, str], value: int | None) -> None:
    """Menus are long: one is sent only when it changed."""
    if menu.options != options:
        menu.set_options(options, value=value)
    elif menu.value != value:
        menu.value = value


def _offered(row: EpisodeFinished) -> str:
    return f"{row.episode}  ·  gain {in_points(row.gain)}  ·  {clipped(row.case, 32)}"


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
            for name, align in zip(
                SEED_COLUMNS, ["left"] * 2 + ["right"] * (len(SEED_COLUMNS) - 2), strict=True
            )
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
