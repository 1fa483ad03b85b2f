"""Figures as plain data for plotly.js, made without plotly: their common look, and the curves of runs over rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pydantic import JsonValue

from esper.karn.drawing import DASHES, HEADS, OPERATIONS, Theme, clipped, finite, operation, see_through
from esper.karn.watch.state import EPISODE_MEASURES, RunState, Watched
from esper.leyline import HEAD_NAMES, LifecycleOp

Figure = dict[str, JsonValue]
Trace = dict[str, JsonValue]
Value = float | None
CONFIG: Figure = {"displayModeBar": False, "responsive": True}
_FROM_ZERO: Figure = {"rangemode": "tozero"}
_IN_POINTS = ("gain",)


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure over rounds; an unknown value is None and drawn as a gap."""

    rounds: list[int]
    values: list[Value]
    low: list[Value]
    """Lower ends of the 95 % intervals."""
    high: list[Value]
    """Upper ends of the 95 % intervals."""


def curve_of(state: RunState, measure: str) -> Curve:
    """A measure of rounds or of their episodes, by its name in `state`; only the latter have intervals."""
    points = state.points()
    rounds = [point.round for point in points]
    if measure not in EPISODE_MEASURES:
        unknown: list[Value] = [None] * len(points)
        return Curve(rounds, [point.measured[measure] for point in points], unknown, unknown)
    moments = [point.episodes[measure] for point in points]
    intervals = [each.interval or (None, None) for each in moments]
    return Curve(
        rounds,
        [each.mean for each in moments],
        [low for low, _ in intervals],
        [high for _, high in intervals],
    )


def shown_curve(state: RunState, measure: str) -> Curve:
    """The same in the unit that it is shown in: gains in points."""
    curve = curve_of(state, measure)
    if measure not in _IN_POINTS:
        return curve
    parts = ([_hundredths(value) for value in values] for values in (curve.values, curve.low, curve.high))
    return Curve(curve.rounds, *parts)


def _hundredths(value: Value) -> Value:
    known = finite(value)
    return None if known is None else finite(100.0 * known)


def safe(text: str, longest: int = 40) -> str:
    """A recorded text in a figure: escaped, since plotly reads some HTML in names."""
    return escape(clipped(text, longest), quote=True)


# The parts of a figure


def figure(
    traces: Sequence[Trace],
    theme: Theme,
    title: str,
    *,
    x_title: str = "round",
    x: Figure | None = None,
    y: Figure | None = None,
    shapes: Sequence[Figure] = (),
    notes: Sequence[Figure] = (),
    legend: bool = True,
    layout: Figure | None = None,
) -> Figure:
    """A figure in the look that all share. If it has nothing to show, it says so."""
    annotations: list[JsonValue] = [*notes]
    if not any(_has_points(trace) for trace in traces):
        annotations.append(note("nothing recorded yet", theme, x=0.5, y=0.5, xref="paper", yref="paper"))
    axis: Figure = {
        "gridcolor": theme.grid,
        "zeroline": False,
        "linecolor": theme.grid,
        "automargin": True,
        "tickfont": {"size": 11},
    }
    heading: Figure = {"text": title, "x": 0.0, "xanchor": "left", "xref": "container", "pad": {"l": 10}}
    key: Figure = {"orientation": "h", "x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}
    return {
        "data": list(traces),
        "layout": {
            "title": {**heading, "font": {"size": 13}, "y": 0.97, "yanchor": "top"},
            "font": {"family": "system-ui, sans-serif", "color": theme.text, "size": 12},
            "paper_bgcolor": theme.card,
            "plot_bgcolor": theme.card,
            "margin": {"l": 46, "r": 12, "t": 34, "b": 34},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": theme.card, "font": {"color": theme.text, "size": 11}},
            "showlegend": legend,
            "legend": {**key, "font": {"size": 11}, "bgcolor": "rgba(0,0,0,0)"},
            "xaxis": {**axis, "title": {"text": x_title, "font": {"size": 11}, "standoff": 4}, **(x or {})},
            "yaxis": {**axis, **(y or {})},
            "shapes": list(shapes),
            "annotations": annotations,
            "uirevision": "keep",
            **(layout or {}),
        },
        "config": CONFIG,
    }


def scatter(x: Sequence[JsonValue], y: Sequence[JsonValue], **more: JsonValue) -> Trace:
    """A line or markers."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), **more}


def line(
    curve: Curve, name: str, colour: str, *, dash: str = "solid", width: float = 2.0, shown: bool = True
) -> Trace:
    """A curve; `shown` puts it into the legend."""
    return scatter(
        curve.rounds,
        curve.values,
        mode="lines+markers" if len(curve.rounds) < 3 else "lines",
        name=name,
        line={"color": colour, "dash": dash, "width": width},
        connectgaps=False,
        showlegend=shown,
        hovertemplate="%{y:.4~g}",
    )


def band(curve: Curve, colour: str) -> Trace:
    """The interval around a curve, one closed shape for every stretch where it is known."""
    x: list[JsonValue] = []
    y: list[JsonValue] = []
    for stretch in _stretches(curve):
        if x:
            x.append(None)
            y.append(None)
        x += [curve.rounds[at] for at in stretch] + [curve.rounds[at] for at in reversed(stretch)]
        y += [curve.high[at] for at in stretch] + [curve.low[at] for at in reversed(stretch)]
    fill = see_through(colour, 0.2)
    return scatter(x, y, fill="toself", fillcolor=fill, line={"width": 0}, hoverinfo="skip", showlegend=False)


def level(y: float, colour: str) -> Figure:
    """A dotted line at one height."""
    style: Figure = {"color": colour, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": style}


def note(text: str, theme: Theme, **place: JsonValue) -> Figure:
    """A short text inside a figure."""
    return {"text": text, "showarrow": False, "font": {"size": 11, "color": theme.faint}, **place}


def _stretches(curve: Curve) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for at, (low, high) in enumerate(zip(curve.low, curve.high, strict=True)):
        if low is not None and high is not None:
            found[-1].append(at)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _has_points(trace: Trace) -> bool:
    values = trace.get("y") if trace.get("type") != "heatmap" else trace.get("z")
    return isinstance(values, list) and any(value is not None for value in values)


# The figures of runs: the first run is the one looked at, the others are beside it.


def run_figures(runs: Sequence[Watched], theme: Theme) -> dict[str, Figure]:
    """Name of a panel -> its figure."""
    return {name: draw(runs, theme) for name, draw in RUN_FIGURES.items()}


def _style(theme: Theme, place: int) -> tuple[str, str, float]:
    """Colour, dash and width of a run's curve."""
    colour, dash = theme.runs[place % len(theme.runs)], DASHES[place % len(DASHES)]
    return colour, dash, 2.2 if place == 0 else 1.6


def _drawn(run: Watched, place: int, theme: Theme, measure: str, name: str = "") -> list[Trace]:
    """A run's curve, over its interval where the measure has one; by default it has the run's name."""
    (colour, dash, width), curve = _style(theme, place), shown_curve(run.state, measure)
    traces = [band(curve, colour)] if measure in EPISODE_MEASURES else []
    return [*traces, line(curve, name or safe(run.name), colour, dash=dash, width=width)]


def gain(runs: Sequence[Watched], theme: Theme) -> Figure:
    """Gain over the baseline of the same host, and the gain on held-out instances, in points."""
    traces = [trace for place, run in enumerate(runs) for trace in _drawn(run, place, theme, "gain")]
    traces += [_held_out(run, place, theme) for place, run in enumerate(runs) if run.state.evaluations]
    waiting = note("waiting", theme, x=0.0, xref="paper", y=0.0, xanchor="left", yanchor="bottom")
    title = "Gain over waiting, points"
    return figure(traces, theme, title, shapes=[level(0.0, theme.faint)], notes=[waiting])


def _held_out(run: Watched, place: int, theme: Theme) -> Trace:
    evaluated = [each for each in run.state.evaluations if each.policy == "learned"]
    points = [(each, mean) for each in evaluated if (mean := _hundredths(each.mean_gain)) is not None]

    def reach(end: float | None, mean: float, sign: float) -> float:
        bound = _hundredths(end)
        return 0.0 if bound is None else max(sign * (bound - mean), 0.0)

    edge: Figure = {"width": 1, "color": theme.card}
    return scatter(
        [each.round for each, _ in points],
        [mean for _, mean in points],
        mode="markers",
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [reach(each.gain_high, mean, 1.0) for each, mean in points],
            "arrayminus": [reach(each.gain_low, mean, -1.0) for each, mean in points],
            "thickness": 1.2,
            "width": 3,
        },
        name="held out",
        marker={"color": _style(theme, place)[0], "symbol": "diamond", "size": 7, "line": edge},
        showlegend=place == 0,
        hovertemplate="%{y:.4~g}",
    )


def against_baseline(runs: Sequence[Watched], theme: Theme, title: str, measure: str) -> Figure:
    """A measure of episodes, and the same measure of their baselines."""
    traces: list[Trace] = []
    for place, run in enumerate(runs):
        first, baseline = place == 0, curve_of(run.state, f"baseline_{measure}")
        colour = theme.faint if first else _style(theme, place)[0]
        traces += _drawn(run, place, theme, measure, "grown" if first else "")
        traces.append(line(baseline, "baseline", colour, dash="dot", width=1.4, shown=first))
    return figure(traces, theme, title)


def measured(
    runs: Sequence[Watched], theme: Theme, title: str, measure: str, y: Figure, stop: Value = None
) -> Figure:
    """A measure of rounds; `stop` is a level at which something ends."""
    traces = [trace for place, run in enumerate(runs) for trace in _drawn(run, place, theme, measure)]
    shapes, notes = [], []
    if stop is not None:
        shapes = [level(stop, theme.faint)]
        notes = [note("stops here", theme, x=1.0, xref="paper", y=stop, xanchor="right", yanchor="bottom")]
    return figure(traces, theme, title, y=y, shapes=shapes, notes=notes, legend=len(runs) > 1)


def explained_variance(runs: Sequence[Watched], theme: Theme) -> Figure:
    """The critic's explained variance; one very bad round must not flatten all others."""
    curves = [curve_of(run.state, "explained_variance").values for run in runs]
    known = [value for curve in curves for value in curve if value is not None]
    low = min(-0.3, max(min(known, default=0.0), -3.0))
    return measured(runs, theme, "Explained variance", "explained_variance", {"range": [low * 1.05, 1.05]})


def divergence(runs: Sequence[Watched], theme: Theme) -> Figure:
    """KL divergence of the updates, with the level at which an update ends early."""
    target = runs[0].target_kl
    stop = None if target is None else 1.5 * target
    return measured(runs, theme, "KL from the policy that acted", "approx_kl", _FROM_ZERO, stop)


def entropy(runs: Sequence[Watched], theme: Theme) -> Figure:
    """Entropy of every head that was used and had a choice."""
    traces = []
    for number, head in enumerate(HEAD_NAMES):
        curve = curve_of(runs[0].state, head)
        if any(value is not None for value in curve.values):
            name = head.replace("_", " ")
            traces.append(line(curve, name, HEADS[head], dash=DASHES[number % 4], width=1.8))
    return figure(traces, theme, "Entropy per head", y=_FROM_ZERO)


def operation_mix(runs: Sequence[Watched], theme: Theme) -> Figure:
    """The share of every operation over time."""
    points = runs[0].state.points()
    totals = [sum(point.operations.values()) for point in points]
    traces = []
    done = {name for point in points for name in point.operations}
    for op in LifecycleOp:
        if op is LifecycleOp.RETIRE and op.name not in done:
            continue
        shares = [
            point.operations.get(op.name, 0) / total if total else None
            for point, total in zip(points, totals, strict=True)
        ]
        traces.append(
            scatter(
                [point.round for point in points],
                shares,
                stackgroup="operations",
                name=operation(op.name),
                line={"width": 0.6, "color": theme.card},
                fillcolor=OPERATIONS[op.name],
                hovertemplate="%{y:.1%}",
            )
        )
    return figure(traces, theme, "Operations", y={"range": [0, 1], "tickformat": ".0%"})


def _of_rounds(title: str, measure: str, y: Figure) -> Callable[[Sequence[Watched], Theme], Figure]:
    return lambda runs, theme: measured(runs, theme, title, measure, y)


RUN_FIGURES: dict[str, Callable[[Sequence[Watched], Theme], Figure]] = {
    "gain": gain,
    "utility": lambda runs, theme: against_baseline(runs, theme, "Utility", "utility"),
    "accuracy": lambda runs, theme: against_baseline(runs, theme, "Validation accuracy", "accuracy"),
    "explained": explained_variance,
    "kl": divergence,
    "entropy": entropy,
    "gradients": _of_rounds("Gradient norm", "grad_norm", {"type": "log", "tickformat": "~g", "dtick": "D2"}),
    "operations": operation_mix,
    "speed": _of_rounds("Env-epochs per second", "env_epochs_per_second", _FROM_ZERO),
    "seconds": _of_rounds("Seconds per round", "seconds", _FROM_ZERO),
    "memory": _of_rounds("Peak memory, MiB", "peak_memory", _FROM_ZERO),
}
"""Name of a panel -> draws it."""
