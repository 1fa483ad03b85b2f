"""One episode, looked up in the file on demand: its steps, in words and in figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from pydantic import JsonValue

from esper.karn.drawing import (
    MARKERS,
    OPERATIONS,
    STAGES,
    UNKNOWN,
    Card,
    Fact,
    Theme,
    by_epoch,
    clipped,
    draw_network,
    finite,
    number,
    operation,
    signed,
    thousands,
)
from esper.karn.watch.charts import Figure, Trace, figure, safe, scatter
from esper.karn.watch.state import RunState, whole
from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    STYLES,
    TEMPOS,
    DecisionTaken,
    EpisodeFinished,
    LifecycleOp,
    Stage,
)
from esper.nissa.event_file import decode_event

MOST_DECISIONS = 5000
"""Steps of an episode that are read."""
_EMPTY = (Stage.DORMANT.name, Stage.EMBARGOED.name)
_CHOSEN = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
MOST_CHOICES = 24
"""Choices of one head that are drawn."""
_STAGE_ORDER = tuple(STAGES)
_CHOICES: Mapping[str, Sequence[str]] = {
    "op": [op.name for op in LifecycleOp],
    "style": [style.value for style in STYLES],
    "tempo": [str(tempo) for tempo in TEMPOS],
    "alpha_target": [str(target) for target in ALPHA_TARGETS],
    "alpha_speed": [str(speed) for speed in ALPHA_SPEEDS],
    "alpha_curve": [curve.value for curve in ALPHA_CURVES],
}
"""Head -> its choices, where they are the same everywhere; blueprints that were masked are not recorded."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot at a decision; what was not recorded is None."""

    name: str
    stage: str | None
    alpha: float | None
    contribution: float | None
    blueprint: str | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of an episode: the decision, and the slots as they were then."""

    decision: DecisionTaken
    slots: tuple[SlotView, ...]

    @property
    def epoch(self) -> int:
        """Epoch that was trained after the decision."""
        return self.decision.epoch


def read_episode(state: RunState, file: BinaryIO, row: EpisodeFinished) -> list[Frame]:
    """The steps of an episode in order; empty if its decisions were not recorded."""
    mark = b'"env":%d,"episode":%d,' % (row.env, row.episode)
    # Its steps are in the rounds from the end of that env's episode before, to its own end.
    before = [other.round or 0 for other in state.by_env.get(row.env, ()) if other.episode < row.episode]
    first, last = max(before, default=0), row.round or 0
    by_epoch: dict[int, DecisionTaken] = {}
    for round_number in [each for each in state.blocks if first <= each <= last]:
        for line in state.decisions(file, round_number):
            if mark in line[:300] and len(by_epoch) < MOST_DECISIONS:
                event = decode_event(line)
                if isinstance(event, DecisionTaken) and whole(event.epoch) is not None:
                    by_epoch[event.epoch] = event
    return frames([by_epoch[epoch] for epoch in sorted(by_epoch)])


def frames(decisions: Sequence[DecisionTaken]) -> list[Frame]:
    """The steps with the blueprint that grows at each slot, which only the germination records."""
    recorded = next((decision.stages for decision in decisions if decision.stages is not None), None)
    # In the order of the network; where slots were not recorded, those that something was done to.
    names = tuple(recorded or sorted({decision.slot for decision in decisions if decision.slot is not None}))
    growing: dict[str, str | None] = {}
    found: list[Frame] = []
    for decision in decisions:
        found.append(Frame(decision, tuple(_view(decision, name, growing.get(name)) for name in names)))
        if decision.op is LifecycleOp.GERMINATE and decision.slot is not None:
            growing[decision.slot] = decision.blueprint
    return found


def _view(decision: DecisionTaken, name: str, blueprint: str | None) -> SlotView:
    stage, alpha, contribution = (
        (decision.stages or {}).get(name),
        (decision.alphas or {}).get(name),
        (decision.contributions or {}).get(name),
    )
    return SlotView(name, stage, alpha, contribution, None if stage in _EMPTY else blueprint)


# In words


def decision_facts(frame: Frame | None) -> list[Fact]:
    """What was decided, and its result."""
    if frame is None:
        return [("decision", UNKNOWN)]
    decision = frame.decision
    rows = [("operation", operation(decision.op.name))]
    used = ((name, getattr(decision, name)) for name in _CHOSEN)
    rows += [(name.replace("_", " "), clipped(str(value), 60)) for name, value in used if value is not None]
    if decision.illegal is not None:
        rows.append(("illegal", clipped(decision.illegal)))
    rows += [
        ("value", signed(decision.value)),
        ("log-probability", number(decision.log_prob)),
        ("contribution", signed(decision.contribution)),
        ("accuracy after", number(decision.validation_accuracy)),
        ("reward", signed(decision.reward, 4)),
    ]
    return rows + [
        (f"· {clipped(name, 40).replace('_', ' ')}", signed(part, 4))
        for name, part in decision.reward_components.items()
        if part
    ]


def observation_facts(frame: Frame | None) -> list[Fact]:
    """What the policy saw, feature by feature."""
    seen = None if frame is None else frame.decision.observation
    if seen is None:
        return [(UNKNOWN, "recorded with --run-telemetry debug")]
    return [(clipped(name, 60), number(value, 4)) for name, value in seen.items()]


def episode_line(row: EpisodeFinished | None, *, recorded: bool) -> str:
    """An episode in one line; `recorded` says whether its decisions were."""
    if row is None:
        return "no episode has ended"
    accuracy, baseline = number(row.validation_accuracy), number(row.control_accuracy)
    parts = [
        f"round {row.round}",
        f"accuracy {accuracy}, baseline {baseline}",
        f"added parameters {thousands(row.added_parameters)}",
    ]
    if row.rolled_back is not None:
        parts.append(f"rolled back: {clipped(row.rolled_back)}")
    if row.lost:
        parts.append("lost")
    if not recorded:
        parts.append("decisions not recorded")
    return "  ·  ".join(parts)


# In figures

_OBSERVED = "%{y:.3f} on the half of validation that decisions are made by"
_JUDGED = "%{y:.3f} on the other half, which rewards are paid by"


def course(frames: Sequence[Frame], at: int, row: EpisodeFinished | None, theme: Theme) -> Figure:
    """Accuracy and operations above, the stages of the slots below; `at` is the index of the frame looked at.

    On a stream the changes of its data are marked, and between the two is what growth has added of the budget.
    """
    epochs = [frame.epoch for frame in frames]
    accuracies = [finite(frame.decision.validation_accuracy) for frame in frames]
    style: Figure = {"color": theme.runs[0], "width": 2}
    # Decisions are made by one half of validation; the other half judges, and the baseline is known there alone.
    traces = [
        scatter(
            epochs,
            accuracies,
            name="accuracy, on the half of validation that decides",
            line=style,
            hovertemplate=_OBSERVED,
        )
    ]
    baseline = None if row is None else finite(row.control_accuracy)
    if baseline is not None and frames:
        dash: Figure = {"symbol": "line-ew-open", "size": 14, "color": theme.faint}
        end = scatter(
            epochs[-1:],
            [baseline],
            mode="markers",
            name="baseline at the end, on the half that rewards",
            marker=dash,
        )
        traces.append({**end, "hovertemplate": _JUDGED})
    traces += [_done(frames, op, theme) for op in LifecycleOp if op is not LifecycleOp.WAIT]
    stages = _stages(frames, theme)
    traces += stages
    planned = by_epoch(None if row is None else row.changes)
    changes = {epoch: words for epoch, words in planned.items() if epoch + 1 in epochs}
    traces += _changed(changes, frames, theme)
    budget = _budget(frames, row, theme)
    traces += budget
    here = frames[at].epoch if frames else 0
    marker: Figure = {"type": "line", "x0": here, "x1": here, "yref": "paper", "y0": 0, "y1": 1}
    marker["line"] = {"color": theme.text, "width": 1.5, "dash": "dash"}
    middle = 0.18 if budget else 0.0
    bottom = 0.36 if stages else 0.0
    top = bottom + middle + (0.06 if stages or budget else 0.0)
    below: Figure = {
        "domain": [0.0, bottom],
        "automargin": True,
        "gridcolor": theme.grid,
        "autorange": "reversed",
    }
    span: Figure = {"range": [epochs[0] - 0.6, epochs[-1] + 0.6]} if epochs else {}
    return figure(
        [trace for trace in traces if trace["x"]],
        theme,
        "The episode",
        x_title="epoch",
        y={"domain": [top, 1.0]},
        shapes=[marker, *(_line_before(epoch, theme) for epoch in changes)],
        layout={
            "hovermode": "closest",
            **({"yaxis2": below} if stages else {}),
            **({"yaxis3": _budget_axis(bottom, middle, theme)} if budget else {}),
        },
        x={"anchor": "y2" if stages else "y", "dtick": max(len(frames) // 10, 1), **span},
    )


def probabilities(frame: Frame | None, theme: Theme) -> Figure:
    """Every choice of the heads that were used: its probability, whether it was taken, whether it was masked."""
    if frame is None or frame.decision.probabilities is None:
        return figure([], theme, "Probabilities", x_title="", legend=False, layout={"height": 160})
    bars = _bars(frame)
    colours: list[JsonValue] = [theme.runs[0] if chosen else theme.faint for *_, chosen in bars]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": [0.0 if value is None else finite(value) for _, _, value, _ in bars],
        "y": [_label(head, name, chosen) for head, name, _, chosen in bars],
        "text": ["masked" if value is None else f"{value:.1%}" for _, _, value, _ in bars],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
        "hoverinfo": "skip",
    }
    return figure(
        [trace],
        theme,
        "Probabilities (▶ was taken)",
        x_title="",
        x={"range": [0, 1.16], "tickformat": ".0%", "tickvals": [0, 0.5, 1]},
        y={"autorange": "reversed", "type": "category"},
        legend=False,
        layout={"hovermode": "closest", "height": 76 + 19 * max(len(bars), 3)},
    )


def _bars(frame: Frame) -> list[tuple[str, str, float | None, bool]]:
    """Head, choice, its probability (None if it was masked), whether it was taken; of heads with a choice."""
    decision, bars = frame.decision, list[tuple[str, str, float | None, bool]]()
    known = {**_CHOICES, "slot": [slot.name for slot in frame.slots]}
    for head, choices in (decision.probabilities or {}).items():
        if len(choices) < 2 and head != "op":
            continue
        taken = decision.op.name if head == "op" else str(getattr(decision, head, None))
        names = [*choices, *(name for name in known.get(head, ()) if name not in choices)]
        bars += [(head, name, choices.get(name), name == taken) for name in names[:MOST_CHOICES]]
    return bars


def _label(head: str, name: str, chosen: bool) -> str:
    shown = operation(name) if head == "op" else name
    return f"{'▶ ' if chosen else ''}{safe(head.replace('_', ' '), 20)}: {safe(shown, 24)}"


def _done(frames: Sequence[Frame], op: LifecycleOp, theme: Theme) -> Trace:
    acted = [frame for frame in frames if frame.decision.op is op]
    edge: Figure = {"width": 1, "color": theme.text}
    return scatter(
        [frame.epoch for frame in acted],
        [finite(frame.decision.validation_accuracy) for frame in acted],
        mode="markers",
        text=[
            safe(" ".join(filter(None, (frame.decision.blueprint, frame.decision.slot)))) for frame in acted
        ],
        name=operation(op.name),
        marker={"symbol": MARKERS[op.name], "size": 10, "color": OPERATIONS[op.name], "line": edge},
        hovertemplate="%{text}",
    )


def _changed(changes: Mapping[int, str], frames: Sequence[Frame], theme: Theme) -> list[Trace]:
    """A mark on the curve at the first epoch of changed data, with what changed."""
    if not changes:
        return []
    symbol: Figure = {"symbol": "line-ns-open", "size": 16, "color": theme.faint}
    accuracies = {frame.epoch: finite(frame.decision.validation_accuracy) for frame in frames}
    return [
        scatter(
            [epoch + 1 for epoch in changes],
            [accuracies[epoch + 1] for epoch in changes],
            mode="markers",
            name="the data change",
            marker=symbol,
            text=[safe(words) for words in changes.values()],
            hovertemplate="%{text}",
        )
    ]


def _line_before(epoch: int, theme: Theme) -> Figure:
    """Between the last epoch of the old data and the first of the new."""
    place = epoch + 0.5
    return {
        "type": "line",
        "x0": place,
        "x1": place,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.faint, "width": 1, "dash": "dot"},
    }


def _budget(frames: Sequence[Frame], row: EpisodeFinished | None, theme: Theme) -> list[Trace]:
    """What growth has added, and the budget; nothing where there was none, or it was not recorded."""
    added = [frame.decision.added_parameters for frame in frames]
    if row is None or row.parameter_budget is None or all(each is None for each in added):
        return []
    epochs = [frame.epoch for frame in frames]
    shown: Figure = {"yaxis": "y3", "showlegend": False}
    steps: Figure = {"color": theme.runs[1], "width": 2, "shape": "hv"}
    limit: Figure = {"color": theme.faint, "width": 1, "dash": "dash"}
    return [
        {
            **scatter(epochs, added, line=steps, hovertemplate="%{y:,} parameters added<extra></extra>"),
            **shown,
        },
        {
            **scatter(
                [epochs[0], epochs[-1]],
                [row.parameter_budget] * 2,
                line=limit,
                hovertemplate="a budget of %{y:,}<extra></extra>",
            ),
            **shown,
        },
    ]


def _budget_axis(bottom: float, middle: float, theme: Theme) -> Figure:
    return {
        "domain": [bottom + 0.04, bottom + middle],
        "automargin": True,
        "gridcolor": theme.grid,
        "rangemode": "tozero",
        "nticks": 3,
        "tickfont": {"size": 11},
        "title": {"text": "added", "font": {"size": 11}},
    }


def _stages(frames: Sequence[Frame], theme: Theme) -> list[Trace]:
    """A row of colours for each slot, with alpha as text; nothing if stages were not recorded."""
    if not any(slot.stage for frame in frames for slot in frame.slots):
        return []
    names = [slot.name for slot in frames[0].slots]
    rows: list[JsonValue] = []
    words: list[JsonValue] = []
    for place in range(len(names)):
        views = [frame.slots[place] for frame in frames]
        rows.append([_STAGE_ORDER.index(view.stage) if view.stage in STAGES else None for view in views])
        words.append([_in_short(view) for view in views])
    count = len(_STAGE_ORDER)
    scale: list[JsonValue] = []
    for place, stage in enumerate(_STAGE_ORDER):
        scale += [[place / count, theme.stage(stage)], [(place + 1) / count, theme.stage(stage)]]
    return [
        {
            "type": "heatmap",
            "x": [frame.epoch for frame in frames],
            "y": [safe(name, 24) for name in names],
            "z": rows,
            "text": words,
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "colorscale": scale,
            "zmin": -0.5,
            "zmax": count - 0.5,
            "showscale": False,
            "xgap": 1,
            "ygap": 2,
            "yaxis": "y2",
        }
    ]


def _in_short(slot: SlotView) -> str:
    parts = [
        safe((slot.stage or "unknown").lower()),
        None if slot.blueprint is None else safe(slot.blueprint),
        None if slot.alpha is None else f"alpha {slot.alpha:.2f}",
    ]
    return ", ".join(part for part in parts if part)


def network(frame: Frame | None, theme: Theme) -> str:
    """The host and its slots at one step, as SVG; the slot acted on has a thick frame."""
    if frame is None or not frame.slots:
        return draw_network((), "no slots recorded", theme)
    decided = operation(frame.decision.op.name)
    cards = [
        Card(
            slot.name,
            slot.stage,
            slot.blueprint,
            slot.alpha,
            (f"contribution {signed(slot.contribution)}",),
            decided if frame.decision.slot == slot.name else "",
        )
        for slot in frame.slots
    ]
    slots = "; ".join(f"{clipped(card.slot, 24)}: {(card.stage or 'unknown').lower()}" for card in cards)
    return draw_network(cards, f"epoch {frame.epoch}. {slots}. then {decided}", theme)
