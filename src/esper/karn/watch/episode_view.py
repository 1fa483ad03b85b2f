"""The part of the page about one episode: which one, the network at an epoch, and why a decision was taken."""

from collections.abc import Awaitable, Callable

from nicegui import run, ui
from nicegui.events import ValueChangeEventArguments

from esper.karn.watch import episode_charts, texts
from esper.karn.watch.drawing import network
from esper.karn.watch.episodes import Frame
from esper.karn.watch.facts import decision_facts, episode_told, observation_facts
from esper.karn.watch.hub import Hub, Watched
from esper.karn.watch.palette import Theme
from esper.karn.watch.rows import EpisodeRow
from esper.karn.watch.selection import Selection
from esper.karn.watch.widgets import Facts, Plots, Scrubber, section

MOST_OFFERED = 100
"""Episodes of one env in the menu, the last ones."""
_RECENT = 2000
"""Episodes among which the best and the worst are looked for."""


class EpisodeView:
    """changed  is called when the visitor chose another episode or epoch"""

    def __init__(self, hub: Hub, selection: Selection, changed: Callable[[], None]) -> None:
        self._hub, self._selection, self._changed = hub, selection, changed
        self._plots = Plots()
        self._watched: Watched | None = None
        self._theme: Theme | None = None
        self._row: EpisodeRow | None = None
        self._frames: list[Frame] = []
        self._loaded: tuple[str, EpisodeRow, bool] | None = None
        self._quiet = False

    def build_picker(self) -> None:
        with ui.element("div").classes("picker"):
            self._env = ui.select({}, label="env", on_change=self._env_chosen).props("dense outlined")
            self._env.style("width: 90px").props('data-testid="env"')
            self._episode = ui.select({}, label="episode", on_change=self._episode_chosen)
            self._episode.props("dense outlined").style("width: 330px").props('data-testid="episode"')
            self._button("latest", self._latest)
            self._button("best gain", lambda: self._extreme(best=True))
            self._button("worst gain", lambda: self._extreme(best=False))
            self._told = ui.label().classes("faint").props('data-testid="episode-told"')
        with ui.element("div").classes("picker").style("flex-wrap: nowrap"):
            self._button("◀", lambda: self._step(-1), "one epoch back")
            self._scrubber = Scrubber("epoch", self._scrubbed)
            self._button("▶", lambda: self._step(1), "one epoch on")
            self._where = (
                ui.label().style("min-width: 110px; text-align: right").props('data-testid="epoch-told"')
            )

    def build_course(self) -> None:
        self._plots.add("course", "accuracy, operations and stages of the episode by epoch", "course")

    def build_network(self) -> None:
        with ui.element("div").classes("panel padded scroll").props('tabindex="0" aria-label="network"'):
            # Made by our own drawing, which escapes every text that it is given.
            self._network = ui.html("", sanitize=False).props('data-testid="network"')

    def build_why(self) -> None:
        section(4, "Why?", "why", "the decision at the chosen epoch: what was seen, allowed and weighed")
        with ui.element("div").classes("grid thirds"):
            with ui.element("div").classes("panel padded"):
                self._facts = Facts("decision")
            self._plots.add("probabilities", "probability of every choice", "")
            with (
                ui.element("div")
                .classes("panel padded scroll")
                .props('tabindex="0" aria-label="observation"')
            ):
                ui.label("Observation").style("font-weight: 600")
                self._observation = Facts("observation")

    @staticmethod
    def _button(text: str, act: Callable[[], object], said: str | None = None) -> None:
        ui.button(text, on_click=act).props(
            f'dense outline no-caps size="md" aria-label="{said or text}"'
        ).style("padding: 2px 10px; color: var(--text) !important")

    # What is shown

    async def update(self, watched: Watched, theme: Theme) -> None:
        """Follow the run; what the visitor chose stays chosen."""
        other_theme = theme is not self._theme
        self._watched, self._theme = watched, theme
        row = self._wanted(watched)
        # The decisions of a round can be looked up once it has ended; until then there are none to keep.
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
        self._show()

    def _wanted(self, watched: Watched) -> EpisodeRow | None:
        chosen = self._selection
        if chosen.env is not None and chosen.episode is not None:
            found = watched.state.episode(chosen.env, chosen.episode)
            if found is not None:
                return found
        told = (row for row in reversed(watched.state.episodes) if row.round in watched.state.blocks)
        return next(told, watched.state.episodes[-1] if watched.state.episodes else None)

    def _offer(self, watched: Watched, row: EpisodeRow | None) -> None:
        """The menus; setting them must not be taken for a choice of the visitor's."""
        envs = sorted(watched.state.by_env)
        offered = [] if row is None else watched.state.by_env.get(row.env, [])[-MOST_OFFERED:]
        if row is not None and row not in offered:
            offered = [row, *offered]
        self._quiet = True
        try:
            _set(self._env, {env: str(env) for env in envs}, None if row is None else row.env)
            _set(
                self._episode,
                {each.episode: _offered(each) for each in reversed(offered)},
                None if row is None else row.episode,
            )
        finally:
            self._quiet = False

    def _show(self) -> None:
        count = len(self._frames)
        first, last = (self._frames[0].epoch, self._frames[-1].epoch) if count else (1, 1)
        epoch = last if self._selection.epoch is None else min(max(self._selection.epoch, first), last)
        self._scrubber.show(first, last, epoch)
        self._told.set_text(episode_told(self._row, recorded=count > 0))
        self._show_epoch()

    def _show_epoch(self) -> None:
        assert self._theme is not None
        at = self._at()
        frame = self._frames[at] if self._frames else None
        control = None if self._row is None else self._row.control_accuracy
        self._where.set_text(
            "no epochs" if frame is None else f"epoch {frame.epoch} of {self._frames[-1].epoch}"
        )
        self._plots.show("course", episode_charts.course(self._frames, at, control, self._theme))
        self._network.set_content(network(frame, self._theme))
        self._show_why(frame)

    def _show_why(self, frame: Frame | None) -> None:
        assert self._theme is not None
        self._facts.show(decision_facts(frame))
        self._observation.show(observation_facts(frame))
        if frame is not None and frame.decision.probabilities is not None:
            slots = [slot.name for slot in frame.slots]
            shown = episode_charts.probabilities(frame.decision, slots, self._theme)
            self._plots.resize("probabilities", episode_charts.bars_height(frame.decision, slots))
        else:
            shown = episode_charts.no_probabilities(self._theme)
            self._plots.resize("probabilities", 160)
        self._plots.show("probabilities", shown)

    def _at(self) -> int:
        """The frame of the scrubber's epoch; the last where that one was not recorded."""
        epochs = [frame.epoch for frame in self._frames]
        wanted = self._scrubber.value
        return epochs.index(wanted) if wanted in epochs else max(len(epochs) - 1, 0)

    # What the visitor does

    def _scrubbed(self, epoch: int) -> None:
        if self._theme is None:
            return
        self._pin()
        self._selection.epoch = epoch
        self._show_epoch()
        self._changed()

    def _step(self, by: int) -> None:
        if self._frames:
            at = min(max(self._at() + by, 0), len(self._frames) - 1)
            self._scrubber.move(self._frames[at].epoch)

    def _pin(self) -> None:
        """Whoever looks closely at an episode keeps it, whatever ends meanwhile."""
        if self._row is not None:
            self._selection.env, self._selection.episode = self._row.env, self._row.episode

    # The handlers of menus look at once whether it was us who set them; what they return is then awaited.

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
        if self._watched is None:
            return
        known = [row for row in self._watched.state.episodes[-_RECENT:] if row.gain is not None]
        await self._choose((max if best else min)(known, key=lambda row: row.gain or 0.0, default=None))

    async def _choose(self, row: EpisodeRow | None) -> None:
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


def _offered(row: EpisodeRow) -> str:
    return f"{row.episode}  ·  gain {texts.signed(row.gain)}  ·  {texts.clipped(row.case, 32)}"
