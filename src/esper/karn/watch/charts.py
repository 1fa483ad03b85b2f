"""The curves of a run: is it learning, is it healthy, what is it doing, what did it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from esper.karn.palette import DASHES, HEADS, OPERATIONS, Theme
from esper.karn.watch.figures import (
    Figure,
    Trace,
    band,
    figure,
    finite,
    level,
    line,
    measured,
    note,
    over_episodes,
    safe,
)
from esper.karn.watch.state import RunState
from esper.karn.watch.texts import operation
from esper.leyline import HEAD_NAMES, LifecycleOp


@dataclass(frozen=True, slots=True)
class Shown:
    """A run in a figure."""

    name: str
    state: RunState
    place: int
    """0 is the run that is looked at, others are beside it."""

    def colour(self, theme: Theme) -> str:
        return theme.runs[self.place % len(theme.runs)]

    @property
    def dash(self) -> str:
        return DASHES[self.place % len(DASHES)]

    @property
    def width(self) -> float:
        return 2.2 if self.place == 0 else 1.6


# Is it learning?


def gain(runs: Sequence[Shown], theme: Theme) -> Figure:
    """Utility over that of the wait-only control, paired; and how the policy does on hosts it does not train on."""
    traces: list[Trace] = []
    for run in runs:
        curve = over_episodes(run.state, "gain")
        traces += [
            band(curve, run.colour(theme)),
            line(curve, safe(run.name), run.colour(theme), dash=run.dash, width=run.width),
        ]
    traces += [_held_out(run, theme) for run in runs if run.state.evaluations]
    waiting = note("waiting", theme, x=0.0, xref="paper", y=0.0, xanchor="left", yanchor="bottom")
    return figure(
        traces, theme, "Gain in utility over waiting", shapes=[level(0.0, theme.faint)], notes=[waiting]
    )


def utility(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _against_control(runs, theme, "Utility", "utility", "control_utility")


def accuracy(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _against_control(runs, theme, "Validation accuracy", "accuracy", "control_accuracy")


def _against_control(
    runs: Sequence[Shown],
    theme: Theme,
    title: str,
    own: str,
    control: str,
) -> Figure:
    traces: list[Trace] = []
    for run in runs:
        curve, waited = over_episodes(run.state, own), over_episodes(run.state, control)
        colour = run.colour(theme)
        first = run.place == 0
        traces += [
            band(curve, colour),
            line(curve, "grown" if first else safe(run.name), colour, dash=run.dash, width=run.width),
            line(waited, "wait-only", theme.faint if first else colour, dash="dot", width=1.4, shown=first),
        ]
    return figure(traces, theme, title)


def _held_out(run: Shown, theme: Theme) -> Trace:
    judged = [each for each in run.state.evaluations if each.policy == "learned"]
    known = [(each, finite(each.mean_gain)) for each in judged]
    points = [(each, mean) for each, mean in known if mean is not None]

    def reach(end: float | None, mean: float, sign: float) -> float:
        bound = finite(end)
        return 0.0 if bound is None else max(sign * (bound - mean), 0.0)

    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.round for each, _ in points],
        "y": [mean for _, mean in points],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [reach(each.gain_high, mean, 1.0) for each, mean in points],
            "arrayminus": [reach(each.gain_low, mean, -1.0) for each, mean in points],
            "thickness": 1.2,
            "width": 3,
        },
        "name": "held out",
        "marker": {
            "color": run.colour(theme),
            "symbol": "diamond",
            "size": 7,
            "line": {"width": 1, "color": theme.card},
        },
        "showlegend": run.place == 0,
        "hovertemplate": "%{y:.4~g}",
    }


# Is it healthy?


def explained_variance(runs: Sequence[Shown], theme: Theme) -> Figure:
    known = [
        value
        for run in runs
        for value in measured(run.state, "explained_variance").values
        if value is not None
    ]
    low = min(-0.3, max(min(known, default=0.0), -3.0))  # one very bad round must not flatten all others
    return _measure(runs, theme, "Explained variance", "explained_variance", y={"range": [low * 1.05, 1.05]})


def divergence(runs: Sequence[Shown], theme: Theme, target_kl: float | None) -> Figure:
    """KL of the update, with the level at which an update ends early."""
    shapes, notes = [], []
    if target_kl is not None:
        shapes.append(level(1.5 * target_kl, theme.faint))
        notes.append(
            note(
                "stops here", theme, x=1.0, xref="paper", y=1.5 * target_kl, xanchor="right", yanchor="bottom"
            )
        )
    return _measure(
        runs,
        theme,
        "KL from the policy that acted",
        "approx_kl",
        y={"rangemode": "tozero"},
        shapes=shapes,
        notes=notes,
    )


def gradient_norm(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _measure(
        runs,
        theme,
        "Gradient norm",
        "grad_norm",
        y={"type": "log", "tickformat": "~g", "dtick": "D2"},
    )


def entropy(run: Shown, theme: Theme) -> Figure:
    """Of every head, where it mattered and had a choice; a head that never did is not drawn."""
    traces = []
    for number, head in enumerate(HEAD_NAMES):
        curve = measured(run.state, head)
        if any(value is not None for value in curve.values):
            traces.append(
                line(curve, head.replace("_", " "), HEADS[head], dash=DASHES[number % 4], width=1.8)
            )
    return figure(traces, theme, "Entropy per head", y={"rangemode": "tozero"})


def _measure(
    runs: Sequence[Shown],
    theme: Theme,
    title: str,
    measure: str,
    *,
    y: Figure | None = None,
    shapes: Sequence[Figure] = (),
    notes: Sequence[Figure] = (),
) -> Figure:
    traces = [
        line(measured(run.state, measure), safe(run.name), run.colour(theme), dash=run.dash, width=run.width)
        for run in runs
    ]
    return figure(traces, theme, title, y=y, shapes=shapes, notes=notes, legend=len(runs) > 1)


# What is it doing?


def operation_mix(run: Shown, theme: Theme) -> Figure:
    """The share of every operation, over time."""
    points = run.state.points()
    rounds: list[JsonValue] = [point.round for point in points]
    totals = [sum(point.operations.values()) for point in points]
    traces: list[Trace] = []
    for op in LifecycleOp:
        shares: list[JsonValue] = [
            point.operations.get(op.name, 0) / total if total else None
            for point, total in zip(points, totals, strict=True)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "operations",
                "x": rounds,
                "y": shares,
                "name": operation(op.name),
                "line": {"width": 0.6, "color": theme.card},
                "fillcolor": OPERATIONS[op.name],
                "hovertemplate": "%{y:.1%}",
            }
        )
    return figure(traces, theme, "Operations", y={"range": [0, 1], "tickformat": ".0%"}, legend=True)


# What did it cost?


def speed(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _measure(runs, theme, "Env-epochs per second", "env_epochs_per_second", y={"rangemode": "tozero"})


def seconds(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _measure(runs, theme, "Seconds per round", "seconds", y={"rangemode": "tozero"})


def memory(runs: Sequence[Shown], theme: Theme) -> Figure:
    return _measure(
        runs,
        theme,
        "Peak memory, MiB",
        "peak_memory",
        y={"rangemode": "tozero"},
    )
