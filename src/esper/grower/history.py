"""What a grower did and why: one decision an epoch, in words and numbers.

Also the phases of a run without an end: what came of each, in a few numbers, however long it goes on.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from esper.grower.measuring import EpochMetrics, Scale
from esper.kasmina import GrowingModel
from esper.kasmina.drawing import draw_text
from esper.leyline import ActionSpec, LifecycleOp, Situation, SlotSnapshot, Stage
from esper.leyline.errors import install
from esper.leyline.slots import BLUE, GREY, STAGE_COLOURS, VERMILION
from esper.leyline.utility import rent_due
from esper.tamiyo.deciders import Choice
from esper.tamiyo.tracker import FALL, Level

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

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {described(self.action)} ({self.reason})"


DECISIONS = TypeAdapter(tuple[Decision, ...])
"""To and from JSON."""


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
        seen = f"validation has not improved for {_epochs(stuck)}" if stuck else unstuck
        facts.append(choice.reason or seen)
    elif seed is not None:
        if seed.probe is not None:
            facts.append(f"switching it on would change the score by {seed.probe:+.3f}")
            if seed.probe < 0.0 and action.op is LifecycleOp.ADVANCE:
                facts.append("while it blends in, it and the host learn on")
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
        facts += [] if choice.reason is None else [choice.reason]
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
    share = model.added_parameters / model.host_parameters
    added = (
        f"added {model.added_parameters:,} parameters, {share:.1%} of the host's {model.host_parameters:,}"
    )
    return "\n".join([*lines, "", *_last_score(history, scale, settled=bool(removed)), added])


def _last_score(history: Sequence[Decision], scale: Scale, *, settled: bool) -> list[str]:
    """The last score that is known, in its unit; a settled model is not measured again."""
    scored = [decision for decision in history if decision.score is not None]
    if not scored:
        return []
    last, before = scored[-1], ", before finish removed seeds" if settled else ""
    return [f"score {last.score:.4f} after epoch {last.epoch}{before} ({scale})"]


# A picture of a run that grew: validation against its forecast, and the life of every seed.


_CURVE_SHARE = 0.6
"""Of the height of the upper picture; above the curve are the names of operations."""


def plot(history: Sequence[Decision], title: str, *, scale: Scale) -> "Figure":
    """Above: the score, epoch by epoch, with what was done. Below: a lane a slot, coloured by stage."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"plot() needs matplotlib: {install('draw')}") from None

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
    if len(forecast) > 1:  # one point is no line
        axes.plot(*zip(*forecast, strict=True), color=GREY, linestyle="--", label="forecast without growth")
    operations = [decision for decision in history if decision.action.op is not LifecycleOp.WAIT]
    if operations:  # their names stand above the curve
        low, high = axes.get_ylim()
        axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
        axes.set_ylim(low, low + (high - low) / _CURVE_SHARE)
    for decision in history:
        if decision.action.op is not LifecycleOp.WAIT:
            axes.axvline(decision.epoch, color=GREY, alpha=0.4, linewidth=0.8, zorder=0)
            axes.annotate(
                described(decision.action).replace(" at ", "\nat "),
                (decision.epoch, 0.99),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="top",
                ha="right",
                size=7,
            )
        if decision.rolled_back is not None:
            why = f"restored: {decision.rolled_back}"
            axes.axvline(decision.epoch, color=VERMILION, linewidth=1.2, label=why)
    if known:
        axes.legend(loc="lower right", frameon=False, fontsize=8)


def _draw_lanes(axes: "Axes", history: Sequence[Decision], slots: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if shown:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)


# Phases


DECISIONS_KEPT = 100
"""The last decisions of a run without an end that are kept whole."""
PHASES_KEPT = 20
"""The last phases that are kept apart; the oldest two become one beyond that."""
ACTIONS_KEPT = 12
"""The last operations of a phase that are named; of the others their number is known."""
PATIENCE = 2
"""Epochs that validation is below its level by `FALL` before a new phase begins: with the first of them."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Epochs between two falls of validation."""

    first: int
    """Epoch."""
    last: int
    """Epoch."""
    first_score: float | None
    """The first that was known."""
    best_score: float | None
    last_score: float | None
    added_parameters: int
    """After its last epoch."""
    actions: tuple[str, ...] = ()
    """The last operations with their epochs, in words."""
    operations: int = 0
    """How many there were."""
    rollbacks: int = 0
    """How often the governor went back."""

    def __str__(self) -> str:
        scores = "validation unknown"
        if self.first_score is not None:
            scores = f"score {self.first_score:.3f} to {self.last_score:.3f}, at best {self.best_score:.3f}"
        back = f", {self.rollbacks} times back to a good epoch" if self.rollbacks else ""
        return (
            f"epochs {self.first} to {self.last}: {scores}; {self.added_parameters:,} parameters added{back}"
        )


def _phase_of(decision: Decision) -> Phase:
    """A phase of one epoch."""
    score, epoch, action = decision.score, decision.epoch, decision.action
    named = () if action.op is LifecycleOp.WAIT else (f"epoch {epoch}: {described(action)}",)
    return Phase(
        first=epoch,
        last=epoch,
        first_score=score,
        best_score=score,
        last_score=score,
        added_parameters=decision.added_parameters,
        actions=named,
        operations=len(named),
        rollbacks=int(decision.rolled_back is not None),
    )


def _joined(one: Phase, other: Phase) -> Phase:
    """Two phases that follow each other as one."""
    known = [score for score in (one.best_score, other.best_score) if score is not None]
    return Phase(
        first=one.first,
        last=other.last,
        first_score=other.first_score if one.first_score is None else one.first_score,
        best_score=max(known, default=None),
        last_score=one.last_score if other.last_score is None else other.last_score,
        added_parameters=other.added_parameters,
        actions=(*one.actions, *other.actions)[-ACTIONS_KEPT:],
        operations=one.operations + other.operations,
        rollbacks=one.rollbacks + other.rollbacks,
    )


@dataclass
class Phases:
    """Divides a run where validation falls, and sums each part up. Its size does not grow."""

    level: Level = field(default_factory=Level)
    closed: list[Phase] = field(default_factory=list)
    """Phases that have ended, the oldest first."""
    running: Phase | None = None
    """The one that goes on; None before the first epoch."""
    doubtful: list[Phase] = field(default_factory=list)
    """The last epochs below the level, one by one: of this phase, or the first of the next."""

    def record(self, decision: Decision) -> None:
        """Take in an epoch."""
        self.doubtful.append(_phase_of(decision))
        if self.level.record(decision.score, drop=FALL, patience=PATIENCE) is not None:
            self.closed += [] if self.running is None else [self.running]
            self.running = None
        elif self.level.below and decision.score is not None:
            return
        self.running, self.doubtful = self._with_doubtful(), []
        if len(self.closed) > PHASES_KEPT:
            self.closed[:2] = [_joined(*self.closed[:2])]

    def _with_doubtful(self) -> Phase | None:
        """The running phase, and what has not been told from it."""
        parts = [*([] if self.running is None else [self.running]), *self.doubtful]
        return reduce(_joined, parts) if parts else None

    def lines(self) -> list[str]:
        """The phases in words, each with its last operations; none while the decisions kept say it all."""
        running = self._with_doubtful()
        if running is None or (not self.closed and running.last - running.first < DECISIONS_KEPT):
            return []
        lines: list[str] = []
        for phase in (*self.closed, running):
            lines.append(str(phase))
            hidden = phase.operations - len(phase.actions)
            lines += [f"  ({hidden} operations before these)"] if hidden else []
            lines += [f"  {action}" for action in phase.actions]
        return lines

    def state_dict(self) -> dict[str, object]:
        """Plain data."""
        plain: dict[str, object] = _PHASES.dump_python(self, mode="json")
        return plain


_PHASES = TypeAdapter(Phases)


def read_phases(state: object, history: Sequence[Decision]) -> Phases:
    """What `Phases.state_dict` gave; None, of a run whose end was known, is put together from its history."""
    if state is not None:
        return _PHASES.validate_python(state)
    phases = Phases()
    for decision in history:
        phases.record(decision)
    return phases
