"""The part of the page about one episode: which one, the network at an epoch, and why a decision was taken."""

from collections.abc import Awaitable, Callable, Sequence
from html import escape

from nicegui import run, ui
from nicegui.events import ValueChangeEventArguments

from esper.karn.palette import STAGES, Theme
from esper.karn.watch import episode_charts, texts
from esper.karn.watch.episodes import Frame, SlotView
from esper.karn.watch.facts import decision_facts, episode_told, observation_facts
from esper.karn.watch.lines import EpisodeRow
from esper.karn.watch.runs import Hub, Selection, Watched
from esper.karn.watch.texts import UNKNOWN, clipped, number, operation, signed
from esper.karn.watch.widgets import Facts, Plots, Scrubber, section

# A host with its slots at one moment, as SVG: stages, alphas, what grows and what it brings.


_CARD, _GAP, _EDGE = 172, 46, 74
_KEY = 140
"""Width of the legend."""
_HEIGHT, _RAIL, _TOP, _TALL = 182, 150, 26, 94


def network(frame: Frame | None, theme: Theme) -> str:
    """The host as a line from input to output, every slot a card above it; the one acted on has a thick frame."""
    slots: Sequence[SlotView] = () if frame is None else frame.slots
    width = 2 * _EDGE + max(len(slots), 1) * (_CARD + _GAP)
    whole = width + _KEY
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {_HEIGHT}" width="{whole}" height="{_HEIGHT}" '
        f'role="img" aria-label="{escape(_in_words(frame), quote=True)}" '
        f'style="font-family: system-ui, sans-serif; max-width: none">',
        f'<line x1="46" y1="{_RAIL}" x2="{width - 52}" y2="{_RAIL}" stroke="{theme.faint}" stroke-width="3"/>',
        _text(8, _RAIL + 4, "input", theme.faint),
        _text(width - 46, _RAIL + 4, "output", theme.faint),
    ]
    for place, slot in enumerate(slots):
        acted = frame is not None and frame.decision.slot == slot.name
        parts.append(_slot(_EDGE + place * (_CARD + _GAP) + _GAP // 2, slot, acted, frame, theme))
    if not slots:
        parts.append(_text(_EDGE, _TOP + 40, "no slots were recorded for this episode", theme.faint))
    return "".join([*parts, _legend(width + 20, theme), "</svg>"])


def _legend(left: int, theme: Theme) -> str:
    """What the colours of the stages mean; each has its name beside it."""
    return "".join(
        f'<rect x="{left}" y="{_TOP + 24 * place}" width="12" height="12" rx="2" fill="{theme.stage(stage)}"/>'
        + _text(left + 20, _TOP + 24 * place + 10, stage.lower(), theme.faint)
        for place, stage in enumerate(STAGES)
    )


def _slot(left: int, slot: SlotView, acted: bool, frame: Frame | None, theme: Theme) -> str:
    colour = theme.stage(slot.stage)
    middle = left + _CARD // 2
    filled = slot.alpha is not None
    parts = [
        f'<line x1="{middle}" y1="{_TOP + _TALL}" x2="{middle}" y2="{_RAIL}" stroke="{theme.faint}" '
        f'stroke-width="2" stroke-dasharray="{"none" if slot.alpha else "3 4"}"/>',
        f'<circle cx="{middle}" cy="{_RAIL}" r="6" fill="{colour}" stroke="{theme.text}" stroke-width="1"/>',
        f'<rect x="{left}" y="{_TOP}" width="{_CARD}" height="{_TALL}" rx="8" fill="{theme.card}" '
        f'stroke="{theme.text if acted else theme.grid}" stroke-width="{3 if acted else 1.5}"/>',
        f'<rect x="{left + 8}" y="{_TOP + 10}" width="10" height="10" rx="2" fill="{colour}"/>',
        _text(left + 24, _TOP + 19, (slot.stage or UNKNOWN).lower(), theme.text, size=13, bold=True),
        _text(left + 8, _TOP + 39, slot.blueprint or ("empty" if not filled else UNKNOWN), theme.text),
        _text(left + 8, _TOP + 58, f"alpha {number(slot.alpha, 2)}", theme.faint),
        f'<rect x="{left + 78}" y="{_TOP + 51}" width="86" height="7" rx="3" fill="{theme.grid}"/>',
        _text(left + 8, _TOP + 78, f"contribution {signed(slot.contribution)}", theme.faint),
        _text(middle, _RAIL + 24, slot.name, theme.text, anchor="middle"),
    ]
    if slot.alpha is not None:
        share = min(max(slot.alpha, 0.0), 1.0) if slot.alpha == slot.alpha else 0.0
        parts.append(
            f'<rect x="{left + 78}" y="{_TOP + 51}" width="{86 * share:.1f}" height="7" rx="3" '
            f'fill="{colour}"/>'
        )
    if acted and frame is not None:
        parts.append(
            _text(middle, _TOP - 8, operation(frame.decision.op.name), theme.text, anchor="middle", bold=True)
        )
    return "".join(parts)


def _text(
    x: float, y: float, said: str, colour: str, *, size: int = 12, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>'
        f"{escape(clipped(said, 24), quote=True)}</text>"
    )


def _in_words(frame: Frame | None) -> str:
    """For readers who listen."""
    if frame is None or not frame.slots:
        return "no slots recorded"
    told = (f"{clipped(slot.name, 24)}: {(slot.stage or 'unknown').lower()}" for slot in frame.slots)
    return f"epoch {frame.epoch}. {'; '.join(told)}. then {operation(frame.decision.op.name)}"


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
