"""Figures as plain data: what plotly.js draws, made without plotly. Shared by the page and by single pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pydantic import JsonValue

from esper.karn.palette import Theme, see_through
from esper.karn.watch.state import RunState
from esper.karn.watch.texts import clipped

# Curves over rounds; an unknown value is a gap.


Value = float | None


@dataclass(frozen=True, slots=True)
class Curve:
    rounds: list[int]
    values: list[Value]
    low: list[Value]
    """Of the 95 % interval."""
    high: list[Value]


def measured(state: RunState, name: str) -> Curve:
    """What rounds measured, by the names of a point."""
    points = state.points()
    nothing: list[Value] = [None] * len(points)
    return Curve(
        [point.round for point in points], [point.measured[name] for point in points], nothing, nothing
    )


def over_episodes(state: RunState, name: str) -> Curve:
    """The mean over the episodes of a point with its interval, by the names of RoundSums."""
    points = state.points()
    estimates = [point.episodes[name] for point in points]
    return Curve(
        [point.round for point in points],
        [each.mean for each in estimates],
        [each.low for each in estimates],
        [each.high for each in estimates],
    )


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Figure = dict[str, JsonValue]
Trace = dict[str, JsonValue]
CONFIG: Figure = {"displayModeBar": False, "responsive": True}


def safe(text: str, longest: int = 40) -> str:
    """A text out of a record in a figure: plotly reads some HTML in names, so that none may be left."""
    return escape(clipped(text, longest), quote=True)


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
    """A figure in the house's manner. What has nothing to show says so."""
    empty = not any(_has_points(trace) for trace in traces)
    annotations: list[Figure] = list(notes)
    if empty:
        annotations.append(note("nothing recorded yet", theme, x=0.5, y=0.5, xref="paper", yref="paper"))
    axis: Figure = {
        "gridcolor": theme.grid,
        "zeroline": False,
        "linecolor": theme.grid,
        "automargin": True,
        "tickfont": {"size": 11},
    }
    return {
        "data": list(traces),
        "layout": {
            "title": {
                "text": title,
                "x": 0.0,
                "xanchor": "left",
                "xref": "container",
                "pad": {"l": 10},
                "font": {"size": 13},
                "y": 0.97,
                "yanchor": "top",
            },
            "font": {"family": "system-ui, sans-serif", "color": theme.text, "size": 12},
            "paper_bgcolor": theme.card,
            "plot_bgcolor": theme.card,
            "margin": {"l": 46, "r": 12, "t": 34, "b": 34},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": theme.card, "font": {"color": theme.text, "size": 11}},
            "showlegend": legend,
            "legend": {
                "orientation": "h",
                "y": 1.0,
                "yanchor": "bottom",
                "x": 1.0,
                "xanchor": "right",
                "font": {"size": 11},
                "bgcolor": "rgba(0,0,0,0)",
            },
            "xaxis": {**axis, "title": {"text": x_title, "font": {"size": 11}, "standoff": 4}, **(x or {})},
            "yaxis": {**axis, **(y or {})},
            "shapes": list(shapes),
            "annotations": [*annotations],
            "uirevision": "keep",
            **(layout or {}),
        },
        "config": CONFIG,
    }


def line(
    curve: Curve, name: str, colour: str, *, dash: str = "solid", width: float = 2.0, shown: bool = True
) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(curve.rounds) < 3 else "lines",
        "x": list(curve.rounds),
        "y": list(curve.values),
        "name": name,
        "line": {"color": colour, "dash": dash, "width": width},
        "connectgaps": False,
        "showlegend": shown,
        "hovertemplate": "%{y:.4~g}",
    }


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
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": see_through(colour, 0.2),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def level(y: float, colour: str) -> Figure:
    """A dotted line at one height."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": colour, "width": 1, "dash": "dot"},
    }


def note(text: str, theme: Theme, **place: JsonValue) -> Figure:
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
