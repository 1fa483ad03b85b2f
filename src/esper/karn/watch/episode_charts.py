"""One episode over its epochs, and what was weighed in one decision."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from esper.karn.palette import OPERATIONS, STAGES, Theme
from esper.karn.watch.episodes import Frame
from esper.karn.watch.figures import Figure, Trace, figure, finite, safe
from esper.karn.watch.texts import operation
from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    STYLES,
    TEMPOS,
    DecisionTaken,
    LifecycleOp,
)

MARKERS: Mapping[str, str] = {
    "GERMINATE": "triangle-up",
    "SET_ALPHA_TARGET": "square",
    "PRUNE": "x",
    "FOSSILIZE": "star",
    "ADVANCE": "triangle-right",
}
MOST_CHOICES = 24
"""Of one head that are drawn."""
_STAGE_ORDER = tuple(STAGES)


def course(frames: Sequence[Frame], at: int, control_accuracy: float | None, theme: Theme) -> Figure:
    """Accuracy and what was done above, the stages of the slots below; `at` is the frame that is looked at."""
    epochs: list[JsonValue] = [frame.epoch for frame in frames]
    accuracies = [finite(frame.decision.validation_accuracy) for frame in frames]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": epochs,
            "y": list(accuracies),
            "name": "accuracy",
            "line": {"color": theme.runs[0], "width": 2},
            "hovertemplate": "%{y:.3f}",
        }
    ]
    if control_accuracy is not None and frames:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [frames[-1].epoch],
                "y": [control_accuracy],
                "name": "wait-only at the end",
                "marker": {"symbol": "line-ew-open", "size": 14, "color": theme.faint},
                "hovertemplate": "%{y:.3f}",
            }
        )
    traces += [_done(frames, op, theme) for op in LifecycleOp if op is not LifecycleOp.WAIT]
    stages = _stages(frames, theme)
    traces += stages
    here = frames[at].epoch if frames else 0
    marker: Figure = {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": here,
        "x1": here,
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.text, "width": 1.5, "dash": "dash"},
    }
    top = 0.42 if stages else 0.0
    below: Figure = {
        "domain": [0.0, top - 0.06],
        "automargin": True,
        "gridcolor": theme.grid,
        "autorange": "reversed",
    }
    return figure(
        [trace for trace in traces if trace["x"]],
        theme,
        "The episode",
        x_title="epoch",
        y={"domain": [top, 1.0]},
        shapes=[marker],
        layout={"hovermode": "closest", **({"yaxis2": below} if stages else {})},
        x={"anchor": "y2" if stages else "y", "dtick": max(len(frames) // 10, 1), **_span(frames)},
    )


def probabilities(decision: DecisionTaken, slots: Sequence[str], theme: Theme) -> Figure:
    """Every choice of the heads that mattered: how probable it was, which was taken, which were masked."""
    bars = _bars(decision, slots)
    labels: list[JsonValue] = [_label(head, name, chosen) for head, name, _, chosen in bars]
    values: list[JsonValue] = [0.0 if value is None else finite(value) for _, _, value, _ in bars]
    said: list[JsonValue] = ["masked" if value is None else f"{value:.1%}" for _, _, value, _ in bars]
    colours: list[JsonValue] = [theme.runs[0] if chosen else theme.faint for *_, chosen in bars]
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": labels,
        "text": said,
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
        layout={"hovermode": "closest", "height": bars_height(decision, slots)},
    )


def no_probabilities(theme: Theme) -> Figure:
    return figure([], theme, "Probabilities", x_title="", legend=False)


def bars_height(decision: DecisionTaken, slots: Sequence[str]) -> int:
    """Pixels that the bars of a decision need."""
    return 76 + 19 * max(len(_bars(decision, slots)), 3)


def _bars(decision: DecisionTaken, slots: Sequence[str]) -> list[tuple[str, str, float | None, bool]]:
    """head, choice, its probability (None if it was masked), whether it was taken; of heads with a choice."""
    bars: list[tuple[str, str, float | None, bool]] = []
    for head, choices in (decision.probabilities or {}).items():
        if len(choices) < 2 and head != "op":
            continue
        taken = decision.op.name if head == "op" else str(getattr(decision, head, None))
        names = [*choices, *(name for name in _known_choices(head, slots) if name not in choices)]
        bars += [(head, name, choices.get(name), name == taken) for name in names[:MOST_CHOICES]]
    return bars


def _span(frames: Sequence[Frame]) -> Figure:
    return {"range": [frames[0].epoch - 0.6, frames[-1].epoch + 0.6]} if frames else {}


def _done(frames: Sequence[Frame], op: LifecycleOp, theme: Theme) -> Trace:
    acted = [frame for frame in frames if frame.decision.op is op]
    said = [safe(" ".join(filter(None, (frame.decision.blueprint, frame.decision.slot)))) for frame in acted]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [frame.epoch for frame in acted],
        "y": [finite(frame.decision.validation_accuracy) for frame in acted],
        "text": list(said),
        "name": operation(op.name),
        "marker": {
            "symbol": MARKERS[op.name],
            "size": 10,
            "color": OPERATIONS[op.name],
            "line": {"width": 1, "color": theme.text},
        },
        "hovertemplate": "%{text}",
    }


def _stages(frames: Sequence[Frame], theme: Theme) -> list[Trace]:
    """A row of colours for each slot, with alpha in words; nothing where stages were not recorded."""
    if not any(slot.stage for frame in frames for slot in frame.slots):
        return []
    names = [slot.name for slot in frames[0].slots]
    rows: list[JsonValue] = []
    words: list[JsonValue] = []
    for place in range(len(names)):
        views = [frame.slots[place] for frame in frames]
        rows.append([_STAGE_ORDER.index(view.stage) if view.stage in STAGES else None for view in views])
        words.append([_told(view.stage, view.alpha, view.blueprint) for view in views])
    count = len(_STAGE_ORDER)
    scale: list[JsonValue] = []
    for number, stage in enumerate(_STAGE_ORDER):
        scale += [[number / count, theme.stage(stage)], [(number + 1) / count, theme.stage(stage)]]
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


def _told(stage: str | None, alpha: float | None, blueprint: str | None) -> str:
    parts = [
        safe((stage or "unknown").lower()),
        None if blueprint is None else safe(blueprint),
        None if alpha is None else f"alpha {alpha:.2f}",
    ]
    return ", ".join(part for part in parts if part)


def _label(head: str, name: str, chosen: bool) -> str:
    shown = operation(name) if head == "op" else name
    return f"{'▶ ' if chosen else ''}{safe(head.replace('_', ' '), 20)}: {safe(shown, 24)}"


def _known_choices(head: str, slots: Sequence[str]) -> list[str]:
    """Of the heads whose choices are the same everywhere, or seen; blueprints that were masked are not recorded."""
    fixed: Mapping[str, Sequence[str]] = {
        "op": [op.name for op in LifecycleOp],
        "slot": slots,
        "style": [style.value for style in STYLES],
        "tempo": [str(tempo) for tempo in TEMPOS],
        "alpha_target": [str(target) for target in ALPHA_TARGETS],
        "alpha_speed": [str(speed) for speed in ALPHA_SPEEDS],
        "alpha_curve": [curve.value for curve in ALPHA_CURVES],
    }
    return list(fixed.get(head, ()))
