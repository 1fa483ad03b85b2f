"""The pictures of a report, one function each."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from esper.karn.report.data import (
    accuracy_curve,
    correlation,
    decisions,
    dependence,
    gain_band,
    pareto_front,
)
from esper.karn.report.words import big, short_instance
from esper.leyline import LifecycleOp
from esper.simic.bench import BenchTable
from esper.simic.bench.arms import WAIT
from esper.simic.bench.scores import ScoreTable
from esper.simic.statistics import performance_profile

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c564b")
GREY, INK, GOOD, BAD = "#8a8f98", "#20242a", "#00664c", "#b3261e"
OPERATIONS = {
    LifecycleOp.GERMINATE: ("#b35900", "circle"),
    LifecycleOp.ADVANCE: ("#0072b2", "triangle-right"),
    LifecycleOp.FOSSILIZE: ("#1a1a1a", "square"),
    LifecycleOp.PRUNE: ("#a34f7f", "x"),
    LifecycleOp.SET_ALPHA_TARGET: ("#009e73", "diamond"),
}
LAYOUT = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
    "margin": {"l": 10, "r": 20, "t": 60, "b": 10},
    "hoverlabel": {"align": "left"},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
}
_INTERVAL_HOVER = (
    "<b>%{y}</b><br>%{x:+.2f} [%{customdata[0]:+.2f}, %{customdata[1]:+.2f}] points<extra></extra>"
)


def over_waiting(table: BenchTable) -> go.Figure:
    """Every arm over waiting, with its interval."""
    arms = [arm for arm in table.arms if arm.arm != WAIT][::-1]
    points = [(100 * a.over_wait.value, 100 * a.over_wait.low, 100 * a.over_wait.high) for a in arms]
    treated = {note.treatment for note in table.notes}
    colours = [PALETTE[1] if arm.arm in treated else PALETTE[0] for arm in arms]
    return _intervals([arm.arm for arm in arms], points, colours, "points of test utility over waiting")


def treatment_over(table: BenchTable, treatment: str) -> go.Figure:
    """Treatment minus each control; coloured by what was found."""
    compared = [each for each in table.comparisons if each.treatment == treatment][::-1]
    points = [(100 * c.difference.value, 100 * c.difference.low, 100 * c.difference.high) for c in compared]
    colours = [{"better": GOOD, "worse": BAD, "no difference": GREY}[each.finding] for each in compared]
    title = f"points of test utility, {treatment} minus control"
    return _intervals([each.control for each in compared], points, colours, title)


def _intervals(
    names: Sequence[str], points: Sequence[tuple[float, float, float]], colours: Sequence[str], title: str
) -> go.Figure:
    values, lows, highs = (list(column) for column in zip(*points, strict=True)) if points else ([], [], [])
    figure = go.Figure()
    for name, value, low, high, colour in zip(names, values, lows, highs, colours, strict=True):
        figure.add_scatter(
            x=[low, high], y=[name, name], mode="lines", line={"color": colour, "width": 3}, hoverinfo="skip"
        )
        figure.add_scatter(
            x=[value],
            y=[name],
            mode="markers",
            marker={"color": colour, "size": 10},
            customdata=[(low, high)],
            hovertemplate=_INTERVAL_HOVER,
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1})
    reach = [*lows, *highs, 0.0]
    room = 0.04 * (max(reach) - min(reach)) or 1.0
    figure.update_layout(**LAYOUT, showlegend=False, height=110 + 30 * len(names))
    figure.update_xaxes(title=title, zeroline=False, range=[min(reach) - room, max(reach) + room])
    return figure


def curves(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """Validation accuracy by epoch, and what it is over waiting on the same hosts."""
    figure = make_subplots(
        1, 2, subplot_titles=("validation accuracy", "over waiting on the same hosts, points")
    )
    colours = _colours(arms)
    for arm in arms:
        colour = colours[arm]
        mean = np.nanmean(accuracy_curve(scores, arm), axis=(0, 1, 2))
        epochs = list(range(len(mean)))
        figure.add_scatter(
            x=epochs, y=mean, name=arm, legendgroup=arm, line={"color": colour, "width": 2}, row=1, col=1
        )
        if arm == WAIT:
            continue
        band = gain_band(scores, arm)
        x = [*epochs[: len(band.middle)], *epochs[: len(band.middle)][::-1]]
        figure.add_scatter(
            x=x,
            y=[*(100 * band.high), *(100 * band.low[::-1])],
            fill="toself",
            fillcolor=_faint(colour),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=arm,
            row=1,
            col=2,
        )
        figure.add_scatter(
            x=epochs,
            y=100 * band.middle,
            name=arm,
            legendgroup=arm,
            showlegend=False,
            line={"color": colour, "width": 2},
            row=1,
            col=2,
        )
    figure.add_hline(y=0, line={"color": GREY, "width": 1}, row=1, col=2)
    figure.update_xaxes(title="epoch")
    below = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0}  # above are the titles
    figure.update_layout(**{**LAYOUT, "legend": below}, height=440)
    return figure


def leave_one_out(scores: ScoreTable) -> go.Figure | None:
    """How much a host depends on a seed against what the seed gained; None without such episodes."""
    points = dependence(scores)
    if not points:
        return None
    figure = go.Figure()
    for place, arm in enumerate(dict.fromkeys(point.arm for point in points)):
        own = [point for point in points if point.arm == arm]
        figure.add_scatter(
            x=[100 * point.leave_one_out for point in own],
            y=[100 * point.true_gain for point in own],
            mode="markers",
            name=arm,
            marker={"color": PALETTE[place % len(PALETTE)], "size": 8, "opacity": 0.7},
            text=[f"{point.label}<br>{short_instance(point.instance)}" for point in own],
            hovertemplate="%{text}<br>leave-one-out %{x:+.1f}, true gain %{y:+.1f} points<extra></extra>",
        )
    reach = [100 * value for point in points for value in (point.leave_one_out, point.true_gain)]
    ends = [min(*reach, 0.0), max(*reach, 0.0)]
    figure.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        line={"color": GREY, "dash": "dot"},
        name="if the one were the other",
        hoverinfo="skip",
    )
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    told = correlation(points)
    title = f"{len(points)} seeds" + ("" if told is None else f", correlation {told:+.2f}")
    figure.update_layout(**LAYOUT, height=480)
    figure.update_xaxes(title=f"leave-one-out at the end, points of validation accuracy ({title})")
    figure.update_yaxes(title="true gain over waiting, points")
    return figure


def pareto(table: BenchTable) -> go.Figure | None:
    """Test accuracy against what it cost; None where there is no test split."""
    arms = [arm for arm in table.arms if arm.test_accuracy is not None]
    if not arms:
        return None
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    for column, (title, costs) in enumerate(
        (
            ("parameters of the product", [arm.parameters for arm in arms]),
            ("training FLOPs", [arm.training_flops for arm in arms]),
        ),
        start=1,
    ):
        known = [(arm, cost) for arm, cost in zip(arms, costs, strict=True) if cost is not None]
        points = [(cost, 100 * (arm.test_accuracy or 0.0)) for arm, cost in known]
        front = [points[place] for place in pareto_front(points)]
        figure.add_scatter(
            x=[x for x, _ in front],
            y=[y for _, y in front],
            mode="lines",
            line={"color": GREY, "dash": "dot", "shape": "hv"},
            hoverinfo="skip",
            row=1,
            col=column,
        )
        treated = {note.treatment for note in table.notes}
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="markers+text",
            text=[arm.arm for arm, _ in known],
            textposition="top center",
            textfont={"size": 11},
            marker={
                "size": 11,
                "color": [PALETTE[1] if arm.arm in treated else PALETTE[0] for arm, _ in known],
            },
            customdata=[big(x) for x, _ in points],
            hovertemplate="<b>%{text}</b><br>%{y:.2f} % at %{customdata}<extra></extra>",
            row=1,
            col=column,
        )
        figure.update_xaxes(title=title, row=1, col=column)
    figure.update_yaxes(title="test accuracy, %", row=1, col=1)
    figure.update_layout(**LAYOUT, height=440, showlegend=False)
    return figure


def by_instance(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """Where which arm wins: over waiting, instance by instance."""
    waited = scores.arms[WAIT].mean(axis=(0, 2))
    shown = [arm for arm in arms if arm != WAIT]
    gains = 100 * np.array([scores.arms[arm].mean(axis=(0, 2)) - waited for arm in shown]).T
    limit = float(np.abs(gains).max()) or 1.0
    names = _distinct([short_instance(instance) for instance in scores.instances])
    figure = go.Figure(
        go.Heatmap(
            z=gains,
            x=shown,
            y=names,
            colorscale="RdBu",
            zmin=-limit,
            zmax=limit,
            colorbar={"title": "points"},
            hovertemplate="%{x}<br>%{y}<br>%{z:+.2f} points over waiting<extra></extra>",
            text=[[f"{value:+.1f}" for value in row] for row in gains],
            texttemplate="%{text}",
            textfont={"size": 10},
        )
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_xaxes(side="top", tickangle=-35)
    figure.update_layout(
        **{**LAYOUT, "margin": {"l": 10, "r": 20, "t": 110, "b": 10}}, height=160 + 22 * len(names)
    )
    return figure


def profiles(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """The share of hosts on which an arm is at least so much over waiting."""
    waited = scores.arms[WAIT].mean(axis=0)
    gains = {arm: 100 * (scores.arms[arm] - waited[None]) for arm in arms if arm != WAIT}
    everything = np.concatenate([each.ravel() for each in gains.values()])
    low, high = np.quantile(everything, (0.005, 0.995)).tolist()
    thresholds = np.linspace(low, high, 121)
    figure, colours = go.Figure(), _colours(arms)
    for arm, each in gains.items():
        figure.add_scatter(
            x=thresholds,
            y=performance_profile(each, thresholds),
            name=arm,
            line={"color": colours[arm], "width": 2},
        )
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_layout(**LAYOUT, height=380)
    figure.update_xaxes(title="points over waiting, at least")
    figure.update_yaxes(title="share of hosts", range=[0, 1.02])
    return figure


def timeline(scores: ScoreTable, arm: str) -> go.Figure | None:
    """What an arm did and when, instance by instance; None if it never did anything."""
    marks = decisions([row for row in scores.rows[arm] if row.member == 0])
    if not marks:
        return None
    names = dict(
        zip(scores.instances, _distinct([short_instance(each) for each in scores.instances]), strict=True)
    )
    seeds = len(scores.seeds)
    figure = go.Figure()
    for op, (colour, symbol) in OPERATIONS.items():
        own = [mark for mark in marks if mark.op is op]
        if not own:
            continue
        places = {instance: place for place, instance in enumerate(scores.instances)}
        figure.add_scatter(
            x=[mark.epoch for mark in own],
            # Hosts of one instance lie beside each other.
            y=[
                places[mark.instance] + 0.7 * (scores.seeds.index(mark.seed) + 0.5) / seeds - 0.35
                for mark in own
            ],
            mode="markers",
            name=op.name.lower(),
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.75},
            text=[f"{mark.label}<br>{names[mark.instance]}, host {mark.seed}" for mark in own],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=list(names.values()), autorange="reversed", automargin=True
    )
    figure.update_xaxes(title="epoch", side="bottom")
    figure.update_layout(**LAYOUT, height=170 + 26 * len(names))
    return figure


def contributions(scores: ScoreTable, arm: str) -> go.Figure | None:
    """Of each seed that the products of an arm kept; None where nothing was."""
    kept = [(row, seed) for row in scores.rows[arm] for seed in row.kept if seed.contribution is not None]
    if not kept:
        return None
    labels = sorted({f"{seed.blueprint}@{seed.slot}" for _, seed in kept})
    figure = go.Figure()
    for place, label in enumerate(labels):
        own = [(row, seed) for row, seed in kept if f"{seed.blueprint}@{seed.slot}" == label]
        figure.add_box(
            y=[100 * (seed.contribution or 0.0) for _, seed in own],
            name=f"{label} ({len(own)})",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"color": PALETTE[place % len(PALETTE)], "size": 5},
            text=[f"{short_instance(row.instance)}, host {row.seed}" for row, _ in own],
        )
    figure.update_layout(**LAYOUT, height=380, showlegend=False)
    figure.update_yaxes(title="leave-one-out, points")
    return figure


def _colours(arms: Sequence[str]) -> dict[str, str]:
    others = [arm for arm in arms if arm != WAIT]
    return {WAIT: GREY, **{arm: PALETTE[place % len(PALETTE)] for place, arm in enumerate(others)}}


def _distinct(names: Sequence[str]) -> list[str]:
    """Two instances that read alike are numbered."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
