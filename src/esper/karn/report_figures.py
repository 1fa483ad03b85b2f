"""The figures of a report, one function each, and the numbers behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from esper.benchmark import BenchRow, BenchTable
from esper.benchmark.arms import WAIT
from esper.benchmark.rivals import LISTED_PREFIX
from esper.benchmark.table import ScoreTable
from esper.benchmark.verdict import bounds_in_points
from esper.karn.drawing import BAD, GOOD, LIGHT, MARKERS, OPERATIONS, SERIES, by_epoch, see_through
from esper.leyline.slots import GREY
from esper.statistics import Estimate, Floats, Resamples, paired_difference, performance_profile
from esper.tamiyo.rules import Clause, Schedule
from esper.tolaria.tasks import Instance, data_changes

LAYOUT = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": LIGHT.text},
    "margin": {"l": 10, "r": 20, "t": 60, "b": 10},
    "hoverlabel": {"align": "left"},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
}
_INTERVAL_HOVER = "<b>%{y}</b><br>%{x:+.2f} %{customdata} points<extra></extra>"
_THIN = {"color": GREY, "width": 1}
_DOTTED = {"color": GREY, "dash": "dot"}

# The numbers, made from rows.


@dataclass(frozen=True, slots=True)
class Dependence:
    """One seed: how much the host depends on it at the end, and what the episode gained, both in accuracy 0..1."""

    arm: str
    instance: str
    label: str
    leave_one_out: float
    true_gain: float


def accuracy_curve(table: ScoreTable, arm: str) -> Floats:
    """Validation accuracy (member, instance, seed, epoch); an episode that ended early keeps its last value."""
    rows = table.rows[arm]
    epochs = max(len(row.validation_accuracies) for row in rows)
    curves = [
        table.values(arm, lambda row, epoch=epoch: _at(row, epoch))  # type: ignore[misc]
        for epoch in range(epochs)
    ]
    return np.stack(curves, axis=-1)


def gain_band(table: ScoreTable, arm: str, *, draws: int = 400) -> list[Estimate]:
    """Validation accuracy over waiting on the same hosts, epoch by epoch."""
    ours, waited = accuracy_curve(table, arm), accuracy_curve(table, WAIT)
    hosts = len(table.seeds)
    resamples = Resamples(len(table.instances), hosts, draws=draws, new_instances=hosts == 1)
    return [
        resamples.estimate_of_means(paired_difference, ours[..., epoch], waited[..., epoch])
        for epoch in range(min(ours.shape[-1], waited.shape[-1]))
    ]


def dependence(table: ScoreTable) -> list[Dependence]:
    """Every episode that ended with exactly one seed: validation before settling, paired with waiting."""
    waited = {(row.instance, row.seed): _last(row) for row in table.rows[WAIT]}
    found = []
    for arm, rows in table.rows.items():
        for row in rows:
            control, ours = waited[row.instance, row.seed], _last(row)
            if len(row.seeds) != 1 or row.seeds[0].contribution is None or control is None or ours is None:
                continue
            label = f"{row.seeds[0].blueprint}@{row.seeds[0].slot}"
            found.append(Dependence(arm, row.instance, label, row.seeds[0].contribution, ours - control))
    return found


def correlation(points: Sequence[Dependence]) -> float | None:
    """Correlation of leave-one-out and true gain; None with fewer than 3 points, or if either does not vary."""
    if len(points) < 3:
        return None
    x, y = np.array([(each.leave_one_out, each.true_gain) for each in points]).T
    return None if not x.std() or not y.std() else float(np.corrcoef(x, y)[0, 1])


def decisions(rows: Sequence[BenchRow]) -> list[tuple[BenchRow, Clause]]:
    """Every decision but to wait, with its episode."""
    return [(row, clause) for row in rows for clause in Schedule.parse(row.decisions).clauses]


def typical_episode(table: ScoreTable, arm: str) -> BenchRow | None:
    """Of the episodes that kept something, the one with the median gain; None if none did."""
    waited = {(row.instance, row.seed): row.score or 0.0 for row in table.rows[WAIT]}
    grown = [row for row in table.rows[arm] if row.kept and row.score is not None]
    ordered = sorted(grown, key=lambda row: (row.score or 0.0) - waited[row.instance, row.seed])
    return ordered[len(ordered) // 2] if ordered else None


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, worth) that nothing as cheap beats, by cost."""
    order = sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1]))
    front: list[int] = []
    for place in order:
        if not front or points[place][1] > points[front[-1]][1]:
            front.append(place)
    return front


def changes_of(case: str) -> dict[int, str]:
    """Epoch -> what changes in the data of an instance; empty where nothing does."""
    return by_epoch(data_changes(case))


def slots_seen(rows: Sequence[BenchRow]) -> list[str]:
    """Slots that any row used."""
    named = {seed.slot for row in rows for seed in row.seeds}
    named |= {str(clause.action.slot) for _, clause in decisions(rows)}
    return sorted(named)


def _at(row: BenchRow, epoch: int) -> float | None:
    curve = row.validation_accuracies
    return curve[min(epoch, len(curve) - 1)]


def _last(row: BenchRow) -> float | None:
    return None if row.rolled_back is not None else row.validation_accuracies[-1]


# Arms, instances and numbers in words


ARMS = {
    "wait": "never grows: what every gain is measured against",
    "random": "any legal operation, uniformly",
    "periodic": "tries the next cheapest seed every few epochs",
    "plateau": "tries the next cheapest seed when validation stops improving",
    "fit_ratio": "grows a host that underfits, prunes one that overfits",
    "probe_and_keep": "tries candidates one after another, keeps what contributes, prunes the rest",
    "detect_then_probe": "the same, once validation has fallen as it does when the data change",
    "by_layout": "tries what suits each slot's layout, keeps what contributes more than validation wavers",
    "frozen_spread": "a small residual in every slot but the last, for hosts that do not learn themselves",
    "live_on": "grows when validation has fallen and stays down, retires decayed fossils where it needs their room",
    "fine_tuning": "trains all of a base that others leave frozen, and grows nothing",
    "lora4": "LoRA of rank 4 at every layer of a frozen base",
    "lora16": "LoRA of rank 16 at every layer of a frozen base",
    "sbs": "the single best open-loop schedule, found by search on training draws",
    "sbs_hindsight": "the schedule that is the single best on these instances, chosen on other hosts of theirs",
    "vbs": "the best schedule of each instance, of those that were tried, chosen on other hosts than it is scored on",
    "look_up": "the schedule that was best on training draws with the same layout of slots",
    "look_once": "a linear rule on what is seen at one early epoch, fitted on training draws: one schedule, or none",
    "try_2": "two whole runs from a list of schedules; the better one on validation is kept",
    "try_3": "three whole runs from a list of schedules; the best one on validation is kept",
    "try_5": "five whole runs from a list of schedules; the best one on validation is kept",
    "successive_halving": "the whole list for a quarter of the epochs, the better part for half, two to the end",
    "wide": "the host as wide as the cap from the start, and never grown",
    "l2_init": "never grows; weights are pulled towards their initial values",
    "shrink_and_perturb": "never grows; every few epochs weights shrink and new initial ones are added",
    "continual_backprop": "never grows; a few units of the least use begin anew all the time",
    "redo": "never grows; dormant units begin anew",
    "reset": "never grows; layers begin anew when validation drops",
    "adapters": "a small seed for each noticed drop, kept; the oldest is retired where there is no room",
    "look_always": "a linear rule on what is seen after every epoch, taught by a teacher that knew the changes",
    "look_again": "a linear rule on what is seen after each jump of validation: one seed, or none, or given back",
    "static": "the bare host, wider from the start, with as many parameters as the matched arm ended with",
    "from_birth": "the seeds that the matched arm kept, grown from the first epoch on",
    "from_scratch": "the final architecture of the matched arm, trained from the first step as one network",
    "random_matched": "as many seeds of about the same size as the matched arm kept; where, when and what at random",
    "blind": "what the matched arm did on another instance, done here without looking",
}
LEARNED = "a trained controller, greedy"


def about_arm(arm: str) -> str:
    """What an arm does."""
    if arm.startswith(LISTED_PREFIX):
        return "a schedule of the list that try_2, try_3, try_5 and successive_halving run"
    return ARMS.get(arm, LEARNED)


def short_instance(case: str) -> str:
    """`mnist1d:classes=8,data=1,noise=0.009,...` -> `3,263 samples, 75 % shuffled, 1 % noise, 8 classes`."""
    if case.startswith("toy"):
        return case
    instance = Instance.parse(case)
    values = dict(instance.parameters)
    parts = [] if instance.task in ("mnist1d", "shift") else [instance.task]
    if "kind" in values or instance.task == "shift":
        parts.append(f"{values.get('kind', 'classes')} at {values.get('change', 10)}")
    if changes := changes_of(case):
        parts.append(f"changes at {', '.join(map(str, changes))}")
    if "size" in values:
        parts.append(f"{values['size']:,} samples")
    if "shuffled" in values:
        parts.append(f"{100 * float(values['shuffled']):.0f} % shuffled")
    if "noise" in values:
        parts.append(f"{100 * float(values['noise']):.0f} % noise")
    if "classes" in values:
        parts.append(f"{values['classes']} classes")
    return ", ".join(parts) or instance.task


def big(value: float) -> str:
    """A large number with its unit: 1,426 or 2.10 G."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:.2f} {unit}"
    return f"{value:,.0f}"


# The figures


def over_waiting(table: BenchTable) -> go.Figure:
    """Every arm over waiting, with its interval; treatments have another colour."""
    arms = [arm for arm in table.arms if arm.arm != WAIT][::-1]
    colours = _treated_colours(table, [arm.arm for arm in arms])
    title = "points of test utility over waiting"
    return _intervals([arm.arm for arm in arms], [arm.over_wait for arm in arms], colours, title)


def treatment_over(table: BenchTable, treatment: str) -> go.Figure:
    """Treatment minus each control, coloured by the finding."""
    compared = [each for each in table.comparisons if each.treatment == treatment][::-1]
    colours = [{"better": GOOD, "worse": BAD}.get(each.finding, GREY) for each in compared]
    title = f"points of test utility, {treatment} minus control"
    return _intervals(
        [each.control for each in compared], [each.difference for each in compared], colours, title
    )


def _intervals(
    names: Sequence[str], estimates: Sequence[Estimate], colours: Sequence[str], title: str
) -> go.Figure:
    figure = go.Figure()
    for name, estimate, colour in zip(names, estimates, colours, strict=True):
        value, low, high = 100 * estimate.value, 100 * estimate.low, 100 * estimate.high
        ends = {"symmetric": False, "array": [high - value], "arrayminus": [value - low]}
        bars = {"error_x": {**ends, "color": colour, "thickness": 3, "width": 0}} if estimate.bounded else {}
        figure.add_scatter(
            x=[value],
            y=[name],
            mode="markers",
            marker={"color": colour, "size": 10},
            customdata=[bounds_in_points(estimate)],
            hovertemplate=_INTERVAL_HOVER,
            **bars,
        )
    figure.add_vline(x=0, line={"color": LIGHT.text, "width": 1})
    figure.update_xaxes(zeroline=False, rangemode="tozero")
    return _finished(figure, 110 + 30 * len(names), x=title, showlegend=False)


def curves(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """Validation accuracy by epoch, and what it is over waiting on the same hosts."""
    titles = ("validation accuracy", "over waiting on the same hosts, points")
    figure, colours = make_subplots(1, 2, subplot_titles=titles), _colours(arms)
    for arm in arms:
        line = {"color": colours[arm], "width": 2}
        mean = np.nanmean(accuracy_curve(scores, arm), axis=(0, 1, 2))
        epochs = list(range(len(mean)))
        figure.add_scatter(x=epochs, y=mean, name=arm, legendgroup=arm, line=line, row=1, col=1)
        if arm == WAIT:
            continue
        band = gain_band(scores, arm)
        right = {"legendgroup": arm, "showlegend": False, "row": 1, "col": 2}
        if all(each.bounded for each in band):
            figure.add_scatter(
                x=[*epochs[: len(band)], *epochs[: len(band)][::-1]],
                y=[*(100 * each.high for each in band), *(100 * each.low for each in band[::-1])],
                fill="toself",
                fillcolor=see_through(colours[arm], 0.15),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                **right,
            )
        figure.add_scatter(x=epochs, y=[100 * each.value for each in band], name=arm, line=line, **right)
    figure.add_hline(y=0, line=_THIN, row=1, col=2)
    below = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0}  # above are the titles
    return _finished(figure, 440, x="epoch", legend=below)


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
            marker={"color": SERIES[place % len(SERIES)], "size": 8, "opacity": 0.7},
            text=[f"{point.label}<br>{short_instance(point.instance)}" for point in own],
            hovertemplate="%{text}<br>leave-one-out %{x:+.1f}, true gain %{y:+.1f} points<extra></extra>",
        )
    reach = [0.0, *(100 * value for point in points for value in (point.leave_one_out, point.true_gain))]
    ends = [min(reach), max(reach)]
    name = "if the one were the other"
    figure.add_scatter(x=ends, y=ends, mode="lines", line=_DOTTED, name=name, hoverinfo="skip")
    figure.add_hline(y=0, line=_THIN)
    known = correlation(points)
    title = f"{len(points)} seeds" + ("" if known is None else f", correlation {known:+.2f}")
    across = f"leave-one-out at the end, points of validation accuracy ({title})"
    return _finished(figure, 480, x=across, y="true gain over waiting, points")


def pareto(table: BenchTable) -> go.Figure | None:
    """Utility against what it cost; None without a test split."""
    arms = [arm for arm in table.arms if arm.test_accuracy is not None]
    if not arms:
        return None
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    costs = {
        "parameters of the product": [arm.parameters for arm in arms],
        "training FLOPs": [arm.training_flops for arm in arms],
    }
    for column, (title, paid) in enumerate(costs.items(), start=1):
        known = [(arm, cost) for arm, cost in zip(arms, paid, strict=True) if cost is not None]
        points = [(cost, 100 * arm.over_wait.value) for arm, cost in known]
        front = [points[place] for place in pareto_front(points)]
        here = {"row": 1, "col": column}
        figure.add_scatter(
            x=[x for x, _ in front],
            y=[y for _, y in front],
            mode="lines",
            line={**_DOTTED, "shape": "hv"},
            hoverinfo="skip",
            **here,
        )
        figure.add_scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            mode="markers+text",
            text=[arm.arm for arm, _ in known],
            textposition="top center",
            textfont={"size": 11},
            marker={"size": 11, "color": _treated_colours(table, [arm.arm for arm, _ in known])},
            customdata=[big(x) for x, _ in points],
            hovertemplate="<b>%{text}</b><br>%{y:+.2f} points at %{customdata}<extra></extra>",
            **here,
        )
        figure.update_xaxes(title=title, **here)
    figure.update_yaxes(title="points of test utility over waiting", row=1, col=1)
    return _finished(figure, 440, showlegend=False)


def by_instance(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """Every arm over waiting, instance by instance."""
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
    return _finished(figure, 160 + 22 * len(names), margin={"l": 10, "r": 20, "t": 110, "b": 10})


def profiles(scores: ScoreTable, arms: Sequence[str]) -> go.Figure:
    """The share of hosts on which an arm is at least so much over waiting."""
    waited = scores.arms[WAIT].mean(axis=0)
    gains = {arm: 100 * (scores.arms[arm] - waited[None]) for arm in arms if arm != WAIT}
    everything = np.concatenate([each.ravel() for each in gains.values()])
    low, high = np.quantile(everything, (0.005, 0.995)).tolist()
    thresholds = np.linspace(low, high, 121)
    figure, colours = go.Figure(), _colours(arms)
    for arm, each in gains.items():
        shares = performance_profile(each, thresholds)
        figure.add_scatter(x=thresholds, y=shares, name=arm, line={"color": colours[arm], "width": 2})
    figure.add_vline(x=0, line=_THIN)
    figure.update_yaxes(range=[0, 1.02])
    return _finished(figure, 380, x="points over waiting, at least", y="share of hosts")


def timeline(scores: ScoreTable, arm: str) -> go.Figure | None:
    """The decisions of an arm by epoch and the changes of streams, by instance; None if it only waited."""
    marks = decisions([row for row in scores.rows[arm] if row.member == 0])
    if not marks:
        return None
    names = _distinct([short_instance(instance) for instance in scores.instances])
    seeds = len(scores.seeds)
    place = {instance: index for index, instance in enumerate(scores.instances)}
    figure = go.Figure()
    met = max(row.epochs for row in scores.rows[arm])
    changes = [
        (epoch, place[instance], words)
        for instance in scores.instances
        for epoch, words in changes_of(instance).items()
        if epoch < met
    ]
    if changes:
        figure.add_scatter(
            x=[epoch for epoch, _, _ in changes],
            y=[lane for _, lane, _ in changes],
            mode="markers",
            name="the data change",
            marker={"symbol": "line-ns-open", "size": 22, "color": GREY, "line": {"width": 2}},
            text=[f"{words}<br>{names[lane]}" for _, lane, words in changes],
            hovertemplate="%{text}<extra></extra>",
        )
    for op in sorted({clause.action.op for _, clause in marks}):
        own = [(row, clause) for row, clause in marks if clause.action.op is op]
        figure.add_scatter(
            x=[clause.epoch for _, clause in own],
            # Hosts of one instance lie beside each other.
            y=[
                place[row.instance] + 0.7 * (scores.seeds.index(row.seed) + 0.5) / seeds - 0.35
                for row, _ in own
            ],
            mode="markers",
            name=op.name.lower(),
            marker={"color": OPERATIONS[op.name], "symbol": MARKERS[op.name], "size": 7, "opacity": 0.75},
            text=[f"{clause}<br>{names[place[row.instance]]}, host {row.seed}" for row, clause in own],
            hovertemplate="%{text}<extra></extra>",
        )
    ticks = {"tickvals": list(range(len(names))), "ticktext": names}
    figure.update_yaxes(**ticks, autorange="reversed", automargin=True)
    return _finished(figure, 170 + 26 * len(names), x="epoch")


def contributions(scores: ScoreTable, arm: str) -> go.Figure | None:
    """Contributions of the seeds that the products of an arm kept; None if there are none."""
    kept: dict[str, list[tuple[BenchRow, float]]] = {}
    for row in scores.rows[arm]:
        for seed in row.kept:
            if seed.contribution is not None:
                kept.setdefault(f"{seed.blueprint}@{seed.slot}", []).append((row, 100 * seed.contribution))
    if not kept:
        return None
    figure = go.Figure()
    for place, (label, own) in enumerate(sorted(kept.items())):
        figure.add_box(
            y=[contribution for _, contribution in own],
            name=f"{label} ({len(own)})",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"color": SERIES[place % len(SERIES)], "size": 5},
            text=[f"{short_instance(row.instance)}, host {row.seed}" for row, _ in own],
        )
    return _finished(figure, 380, y="leave-one-out, points", showlegend=False)


def _finished(figure: go.Figure, height: int, *, x: str = "", y: str = "", **layout: object) -> go.Figure:
    """The figure in the look that all share, with titles of its axes; `layout` replaces parts of that look."""
    figure.update_layout({**LAYOUT, "height": height, **layout})
    if x:
        figure.update_xaxes(title=x)
    if y:
        figure.update_yaxes(title=y)
    return figure


def _treated_colours(table: BenchTable, arms: Sequence[str]) -> list[str]:
    treated = {note.treatment for note in table.notes}
    return [SERIES[1] if arm in treated else SERIES[0] for arm in arms]


def _colours(arms: Sequence[str]) -> dict[str, str]:
    others = [arm for arm in arms if arm != WAIT]
    return {WAIT: GREY, **{arm: SERIES[place % len(SERIES)] for place, arm in enumerate(others)}}


def _distinct(names: Sequence[str]) -> list[str]:
    """Two instances that read alike are numbered."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct
