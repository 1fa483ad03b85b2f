"""Choosing an episode and an epoch on the live page, and showing what happened there."""

from collections.abc import Awaitable, Callable

from nicegui import run, ui
from nicegui.events import ValueChangeEventArguments

from esper.karn.drawing import Theme, clipped, finite, signed
from esper.karn.watch.episodes import Frame, episode_line
from esper.karn.watch.runs import Hub, Selection
from esper.karn.watch.sheet import episode_contents
from esper.karn.watch.state import Watched
from esper.karn.watch.widgets import Board, Scrubber, button
from esper.leyline import EpisodeFinished

MOST_OFFERED = 100
"""Episodes of one env in the menu, the last ones."""
_RECENT = 2000
"""Episodes among which the best and the worst are searched."""


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
            self._env = ui.select({}, label="env", on_change=self._env_chosen).props("dense outlined")
            self._env.style("width: 90px").props('data-testid="env"')
            self._episode = ui.select({}, label="episode", on_change=self._episode_chosen)
            self._episode.props("dense outlined").style("width: 330px").props('data-testid="episode"')
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
    return f"{row.episode}  ·  gain {signed(row.gain)}  ·  {clipped(row.case, 32)}"
