"""What a grower did and why: one decision an epoch, in words and numbers."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Json, TypeAdapter, ValidationError
from torch import Tensor

from esper.grower.finishing import SavedBest
from esper.grower.measuring import EpochMetrics, Scale
from esper.kasmina import GrowingModel
from esper.kasmina.drawing import draw_text
from esper.kasmina.persistence import ModelFileError, ModelRecord
from esper.leyline import ActionSpec, EpochReport, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.leyline.colours import BLUE, GREY, STAGE_COLOURS, VERMILION
from esper.leyline.errors import first_finding
from esper.leyline.utility import rent_due
from esper.tamiyo.deciders import Choice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided after an epoch. It is carried out at once; the next epoch shows it."""

    epoch: int
    """Epochs trained so far."""
    action: ActionSpec
    """What was done."""
    controller: str
    """Name of the controller or rule that decided."""
    reason: str
    """Why, in words."""
    metrics: EpochMetrics
    """Of the epoch that ended."""
    score: float | None
    """How well validation goes, more is better: accuracy; without one, minus the loss over the first; or the metric
    in its unit, the span of the first epochs."""
    forecast: float | None
    """The score that was to be expected without growth: measured while no seed takes part, else extrapolated."""
    gain_forecast: float | None
    """Score minus rent, over that forecast. A forecast, not a measurement: the other model was never trained."""
    added_parameters: int
    """Parameters of all seeds after it."""
    slots: dict[str, SlotSnapshot]
    """Every slot at the end of the epoch, before the decision."""
    probability: float | None = None
    """That the controller gave its choice; None for a rule."""
    rolled_back: str | None = None
    """Why the governor went back to the last good epoch."""
    notes: tuple[str, ...] = field(default=())
    """What else happened: warnings, recompilation, seeds that were removed."""

    @property
    def seeds_take_part(self) -> bool:
        """Whether the score is that of a model with seeds in it; one in TRAINING changes nothing yet."""
        return any(slot.alpha > 0.0 for slot in self.slots.values())

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {described(self.action)} ({self.reason})"


DECISIONS = TypeAdapter(tuple[Decision, ...])
"""To and from JSON."""


FORMAT, VERSION = "esper grower", 9


class SavedState(BaseModel):
    """What a checkpoint of a grower holds, checked before anything is changed."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    model: Json[ModelRecord]
    tensors: dict[str, Tensor]
    report: EpochReport
    last_operation: LifecycleOp
    observer: dict[str, object]
    decider: dict[str, object]
    guard: dict[str, object]
    watch: dict[str, object]
    pay: dict[str, object]
    scale: Scale
    seed_scale: Scale
    twin: dict[str, object] | None
    warned: set[str]
    """Names of the warnings that are given once."""
    notes: list[str]
    """For the next decision."""
    waiting: EpochMetrics | None
    """Of an epoch that was taken in and not decided on."""
    history: Json[tuple[Decision, ...]]
    phases: dict[str, object] | None
    """Of a run without an end."""
    best: SavedBest | None
    """Where the best epoch is kept."""


def read_state(state: object, controller: str, *, twin: bool) -> SavedState:
    """The state that a Grower under this controller, with or without a twin, saved; else raises ValueError."""
    if not isinstance(state, Mapping):
        raise ValueError(f"the state is a {type(state).__name__}; expected what state_dict() returned")
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise ValueError(
            f"the state has format {state.get('format')!r}, version {state.get('version')!r}; this Esper reads "
            f"{FORMAT!r}, version {VERSION}"
        )
    if state.get("controller") != controller:
        raise ValueError(
            f"the state was saved under controller {state.get('controller')!r}; this Grower has {controller!r}"
        )
    if (state.get("twin") is not None) != twin:
        saved, made = ("with", "without") if twin is False else ("without", "with")
        raise ValueError(f"the state was saved {saved} a twin; this Grower was made {made} one")
    try:
        return SavedState.model_validate(state)
    except ValidationError as error:
        raise ModelFileError(f"the saved state is damaged: {first_finding(error)}") from None


_PACKAGE = __name__.partition(".")[0]


class GrowthWarning(UserWarning):
    """Something is not as it should be; training goes on, and the message says what to do."""


@dataclass(slots=True)
class Notes:
    """What happened since the last decision, for the next one to carry."""

    silent: bool = False
    """Of several processes one warns; all note the same."""
    warned: set[str] = field(default_factory=set)
    pending: list[str] = field(default_factory=list)
    """Notes since the last decision."""

    def add(self, note: str) -> None:
        """Note something for the next decision."""
        self.pending.append(note)

    def warn(self, message: str, *, once: str | None = None, epoch: int | None = None) -> None:
        """Warn and note it; what has a name in `once` only the first time.

        epoch  named in the warning; the note belongs to a decision, which says it
        """
        if once is not None:
            if once in self.warned:
                return
            self.warned.add(once)
        self.add(message)
        if self.silent:
            return
        message = message if epoch is None else f"epoch {epoch}: {message}"
        warnings.warn(message, GrowthWarning, stacklevel=_levels_to_user() + 1)

    def take(self) -> tuple[str, ...]:
        """The notes since the last call."""
        taken, self.pending = tuple(self.pending), []
        return taken


def _levels_to_user() -> int:
    """Frames from the caller up to the first that is not Esper's: a warning points at the user's own line."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, levels = frame.f_back, levels + 1
    return levels - 1


def described(action: ActionSpec) -> str:
    """An action in words."""
    if action.op is LifecycleOp.WAIT:
        return "wait"
    verb = action.op.name.lower().replace("_", " ")
    if action.op is LifecycleOp.GERMINATE:
        return f"{verb} {action.blueprint} at {action.slot}"
    if action.op is LifecycleOp.SET_ALPHA_TARGET:
        return f"{verb} of {action.slot} to {action.alpha_target:g}"
    return f"{verb} {action.slot}"


def reason_for(action: ActionSpec, situation: Situation, rent: float, choice: Choice) -> str:
    """What decided an action, as its rule says; else the facts that speak to it: a controller does not say."""
    signals = situation.signals
    facts: list[str] = []
    seed = next((slot for slot in situation.slots if slot.name == action.slot), None)
    if action.op is LifecycleOp.GERMINATE:
        card = next(card for card in situation.cards[str(action.slot)] if card.name == action.blueprint)
        facts.append(
            f"{card.parameters:,} parameters, {card.parameters / signals.host_parameters:.1%} of the host"
        )
        stuck = signals.plateau_epochs
        unstuck = "the score is not known yet" if signals.score is None else "validation improves"
        facts.append(f"validation has not improved for {_epochs(stuck)}" if stuck else unstuck)
    elif seed is not None:
        if seed.probe is not None:
            facts.append(f"switching it on would change the score by {seed.probe:+.3f}")
        if choice.reason is not None:
            facts.append(choice.reason)
        elif seed.contribution is not None:
            owed = rent_due(rent, seed.parameters, signals.host_parameters)
            facts.append(f"contribution {seed.contribution:+.3f} by leaving it out, rent {owed:.4f}")
        elif seed.probe is None:
            facts.append("its contribution is unknown")
        if seed.decay_epochs:
            facts.append(f"below its rent for {_epochs(seed.decay_epochs)}")
        facts.append(f"{_epochs(seed.age)} old")
    else:
        live = [slot.name for slot in situation.slots if slot.stage.is_live]
        facts.append(f"seeds at {', '.join(live)}" if live else "no seed is live")
    if choice.probability is not None:
        facts.append(f"chosen with probability {choice.probability:.2f}")
    return "; ".join(facts)


def _epochs(count: int) -> str:
    return f"{count} epoch" if count == 1 else f"{count} epochs"


def explain(
    model: GrowingModel,
    history: Sequence[Decision],
    controller: str,
    removed: Mapping[str, str],
    *,
    scale: Scale,
    returned: int | None = None,
    phases: Sequence[str] = (),
) -> str:
    """What was done and why, and where that has led; `removed` are the blueprints that the end took out, by slot.

    returned  the epoch that the end went back to, where it did
    phases    those of a run without an end, in words; its history is that of the last epochs
    """
    trained = history[-1].epoch if history else 0
    lines = [f"controller {controller}, {trained} epochs", f"score: {scale}", "", draw_text(model), ""]
    if phases:
        lines += [*phases, "", f"the last {_epochs(len(history))}:"]
    shown = [
        decision
        for decision in history
        if decision.action.op is not LifecycleOp.WAIT or decision.rolled_back or decision.notes
    ]
    for decision in shown:
        if decision.action.op is not LifecycleOp.WAIT or decision.rolled_back:
            lines.append(str(decision))
        lines += [f"epoch {decision.epoch}: {note}" for note in decision.notes]
    if not shown:
        lines.append("nothing was grown")
    if removed:
        gone = ", ".join(f"{blueprint} at {slot}" for slot, blueprint in removed.items())
        lines.append(f"finish: removed {gone} (unfinished, or not worth the rent)")
    if returned is not None:
        lines.append(f"finish: back at epoch {returned}, which validated best")
        history = [decision for decision in history if decision.epoch <= returned]
    lines += ["", *_last_score(history, scale, settled=bool(removed)), *_outcome(model, history)]
    return "\n".join(lines)


def _last_score(history: Sequence[Decision], scale: Scale, *, settled: bool) -> list[str]:
    """The last score that is known, in its unit; a settled model is not measured again."""
    scored = [decision for decision in history if decision.score is not None]
    if not scored:
        return []
    last, before = scored[-1], ", before finish removed seeds" if settled else ""
    return [f"score {last.score:.4f} after epoch {last.epoch}{before} ({scale})"]


def _outcome(model: GrowingModel, history: Sequence[Decision]) -> list[str]:
    share = model.added_parameters / model.host_parameters
    lines = [
        f"added {model.added_parameters:,} parameters, {share:.1%} of the host's {model.host_parameters:,}"
    ]
    if not model.added_parameters:  # the forecast is of a model without growth, and this is one
        return lines
    scored = [decision for decision in history if decision.gain_forecast is not None]
    bare = [decision.epoch for decision in scored if not decision.seeds_take_part]
    if bare and scored[-1].seeds_take_part:
        last = scored[-1]
        lines.append(
            f"the trend up to epoch {bare[-1]}, the last without a seed, led to {last.forecast:.4f} after epoch "
            f"{last.epoch}: utility {last.gain_forecast:+.4f} over the forecast, which is no measurement"
        )
    return lines


# A picture of a run that grew: validation against its forecast, and the life of every seed.


def plot(history: Sequence[Decision], title: str, *, scale: Scale) -> "Figure":
    """Above: the score, epoch by epoch, with what was done. Below: a lane a slot, coloured by stage."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot() needs matplotlib: pip install 'esper-grow[draw]'") from None

    slots = list(history[0].slots) if history else []
    figure = Figure(figsize=(9.0, 3.4 + 0.45 * len(slots)), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, 0.3 + 0.45 * len(slots)])
    above.set_title(title, loc="left", size=10, weight="bold")
    _draw_score(above, history)
    above.set_ylabel(str(scale).replace(", ", "\n", 1))
    _draw_lanes(below, history, slots)
    return figure


def _draw_score(axes: "Axes", history: Sequence[Decision]) -> None:
    known = [(decision.epoch, decision.score) for decision in history if decision.score is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=BLUE, label="validation")
    grown = [decision for decision in history if any(slot.blueprint for slot in decision.slots.values())]
    forecast = [(decision.epoch, decision.forecast) for decision in grown if decision.forecast is not None]
    if forecast:
        axes.plot(*zip(*forecast, strict=True), color=GREY, linestyle="--", label="forecast without growth")
    for decision in history:
        if decision.action.op is not LifecycleOp.WAIT:
            axes.axvline(decision.epoch, color=GREY, alpha=0.4, linewidth=0.8, zorder=0)
            axes.annotate(
                described(decision.action),
                (decision.epoch, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="bottom",
                ha="right",
                size=7,
            )
        if decision.rolled_back is not None:
            why = f"restored: {decision.rolled_back}"
            axes.axvline(decision.epoch, color=VERMILION, linewidth=1.2, label=why)
    if known:
        axes.legend(loc="best", frameon=False, fontsize=8)


def _draw_lanes(axes: "Axes", history: Sequence[Decision], slots: Sequence[str]) -> None:
    shown: set[Stage] = set()
    for lane, slot in enumerate(reversed(slots)):
        for decision in history:
            standing = decision.slots[slot]
            height = 0.15 + 0.65 * standing.alpha
            empty = standing.blueprint is None
            axes.bar(
                decision.epoch,
                0.06 if empty else height,
                bottom=lane,
                width=0.9,
                color=STAGE_COLOURS[standing.stage],
                alpha=0.35 if empty else 1.0,
                label=None if standing.stage in shown else standing.stage.name.lower(),
            )
            shown.add(standing.stage)
    axes.set_yticks([lane + 0.4 for lane in range(len(slots))], list(reversed(slots)))
    axes.set_ylim(-0.1, max(len(slots), 1))
    axes.set_xlabel("epoch (a lane's height is alpha)")
    if shown:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
