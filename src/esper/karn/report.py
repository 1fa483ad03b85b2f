"""The page of a report: the findings first, then the evidence, then where it comes from."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from math import isnan
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from esper.benchmark import BenchResult, BenchRow, BenchTable, SeedLife, gate, verdict
from esper.benchmark.arms import WAIT
from esper.benchmark.table import ScoreTable, score_table, some_are_frozen
from esper.benchmark.verdict import bounds_in_points, counted
from esper.karn import report_figures as figures
from esper.karn.drawing import BAD, GOOD, LIGHT, SERIES, Card, draw_network
from esper.karn.report_figures import (
    LAYOUT,
    about_arm,
    big,
    changes_of,
    short_instance,
    slots_seen,
    typical_episode,
)
from esper.leyline import Stage
from esper.leyline.slots import BLUE, GREY

CSS = (
    f":root {{ --ink: {LIGHT.text}; --soft: {LIGHT.faint}; --line: {LIGHT.grid}; --paper: {LIGHT.card}; "
    f"--wash: {LIGHT.page}; --accent: {BLUE}; --good: {GOOD}; --bad: {BAD}; }}\n"
    + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
)


_CURVES = 6
"""Arms in one picture of curves, at most."""


def write_report(result: BenchResult, path: Path) -> None:
    """Write the report of a benchmark to a .html file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report_html(result), encoding="utf-8")


def report_html(result: BenchResult) -> str:
    """The report as one HTML page that loads nothing else."""
    table, scores = result.tables[0], score_table(result.rows)
    body = "\n".join(
        [
            _head(table),
            _verdict(table),
            _section("The table", _tables(result), _TABLE_TEXT.format(rent=result.rows[0].rent)),
            _section("Every arm over waiting", _figure(figures.over_waiting(table)), _FOREST_TEXT),
            *(
                _section(
                    f"{note.treatment} against each control",
                    _figure(figures.treatment_over(table, note.treatment))
                    + _comparisons(table, note.treatment),
                    _AGAINST_TEXT,
                )
                for note in table.notes
            ),
            *_pictures(table, scores),
            *_behaviour(table, scores),
            _section("Where this comes from", _provenance(result), _PROVENANCE_TEXT),
        ]
    )
    title = f"Esper on {table.suite}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{CSS}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><main>{body}</main></body></html>\n"
    )


_TABLE_TEXT = """Utility is test accuracy minus a rent of {rent:g} for each host's worth of added parameters; its
interquartile mean is over all hosts. Brackets are 95 % intervals, drawing hosts anew within each instance and, where
an arm has several training seeds, the controllers too. Costs are means: parameters of the product, floating point
operations of training, seconds a host."""
_FOREST_TEXT = """Mean paired difference to waiting on the very same hosts: same data, same initial weights, same
minibatches. Treatments are orange."""
_AGAINST_TEXT = """Green is better and red worse after Holm's adjustment for all comparisons of the table; grey is no
difference that these hosts could show."""
_PROVENANCE_TEXT = "Everything on this page is computed from the rows in this folder, one for each episode."
_INSTANCES_TEXT = """Points over waiting. Blue gains, red loses. What helps one task harms another: that is there to
decide."""
_CURVES_TEXT = """Means over all hosts; bands are 95 % intervals of the paired difference. A dip is what an operation
costs."""
_PROFILES_TEXT = """The share of hosts on which an arm is at least so many points over waiting: further up and right
is better."""
_PARETO_TEXT = "Nothing below the dotted line is worth its price: something as cheap is better."
_DEPENDENCE_TEXT = """Each dot is an episode that ended with one seed. Across: how much accuracy falls when that seed
is switched off at the end, the usual measure of what a part contributes. Up: what the episode gained over the same
host on which nothing was grown. Were they the same, dots would lie on the line; below it are hosts that came to
depend on more than they gained."""


def _head(table: BenchTable) -> str:
    count = len(table.instances) * table.seeds
    hosts = "host" if count == 1 else f"{count:,} hosts"
    met = (
        f"{counted(len(table.instances), 'task instance')} that nothing was trained on, "
        f"{counted(table.seeds, 'random start')} each"
    )
    if "digits" in table.instances and len(table.instances) > 1:
        met += " (digits is among them, a task of another kind)"
    return f"""<header><p class="kicker">Esper benchmark</p>
<h1>Does deciding how to grow pay on <em>{escape(table.suite)}</em>?</h1>
<p class="lead">Esper grows a small neural network while it trains: it plants <em>seeds</em> (small modules) in
slots of a host, trains them beside it, blends them in, and keeps or prunes them. A controller decides what to grow
where and when. Here every arm, learned or not, met the same {hosts}: {met}.</p></header>"""


def _verdict(table: BenchTable) -> str:
    if table.headroom is None:
        first, last = "", f'<p class="small">{escape(gate(table))}</p>'
    else:
        kind = "open" if table.headroom.open else "shut"
        first, last = f'<p class="gate {kind}">{escape(gate(table))}</p>', ""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict(table))
    left = (
        f"<p>{len(table.left_out)} instances are left out: not every arm has played them yet.</p>"
        if table.left_out
        else ""
    )
    return f'<section class="verdict">{first}{sentences}{left}{last}</section>'


def _section(title: str, body: str, text: str = "") -> str:
    intro = f'<p class="text">{text}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{intro}{body}</section>"


def _figure(figure: go.Figure) -> str:
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True}
    )
    return f'<div class="figure">{html}</div>'


# Tables


def _tables(result: BenchResult) -> str:
    first, *parts = result.tables
    folded = "".join(
        f"<details><summary>{escape(part.subset)}: {counted(len(part.instances), 'instance')}</summary>"
        f"{'' if part.headroom is None else f'<p>{escape(gate(part))}</p>'}{_arm_table(part)}</details>"
        for part in parts
    )
    return _arm_table(first) + folded


def _arm_table(table: BenchTable) -> str:
    frozen = some_are_frozen(table.arms)
    columns = (
        "arm",
        "utility",
        "over waiting, points",
        "on new instances too",
        "accuracy",
        "parameters",
        *(["trained"] if frozen else []),
        "FLOPs",
        "seconds",
    )
    treated = {note.treatment for note in table.notes}
    rows = []
    for arm in table.arms:
        name = f"{arm.arm} ({arm.members} seeds)" if arm.members > 1 else arm.arm
        cells = [
            f'<td title="{escape(about_arm(arm.arm))}"><b>{escape(name)}</b></td>',
            _cell(
                f"{arm.score.value:.3f}",
                f"[{arm.score.low:.3f}, {arm.score.high:.3f}]" if arm.score.bounded else "",
            ),
            _cell(f"{100 * arm.over_wait.value:+.2f}", bounds_in_points(arm.over_wait)),
            _cell("", bounds_in_points(arm.over_wait_anew)),
            _cell("-" if arm.test_accuracy is None else f"{100 * arm.test_accuracy:.1f} %"),
            _cell(_counted(arm.parameters)),
            *([_cell(_counted(arm.trained_parameters))] if frozen else []),
            _cell("-" if arm.training_flops is None else big(arm.training_flops)),
            _cell(f"{arm.wall_seconds:.1f}"),
            _cell(f"{arm.operations:.1f}"),
        ]
        rows.append(f'<tr class="{"treated" if arm.arm in treated else ""}">{"".join(cells)}</tr>')
    glossary = "".join(
        f"<dt>{escape(arm.arm)}</dt><dd>{escape(about_arm(arm.arm))}</dd>" for arm in table.arms
    )
    return (
        _html_table((*columns, "decisions"), rows)
        + f"<details><summary>What the arms are</summary><dl>{glossary}</dl></details>"
    )


def _counted(parameters: float | None) -> str:
    return "-" if parameters is None else f"{parameters:,.0f}"


def _comparisons(table: BenchTable, treatment: str) -> str:
    rows = [
        [
            f"<td><b>{escape(each.control)}</b></td>",
            _cell(f"{100 * each.difference.value:+.2f}", bounds_in_points(each.difference)),
            _cell("", bounds_in_points(each.on_new_instances)),
            _cell(f"{100 * each.improvement.value:.0f} %"),
            _cell("-" if isnan(each.p_holm) else f"{each.p_holm:.3f}"),
            f'<td class="{each.finding.split()[0]}">{each.finding}</td>',
            _cell("-" if each.detectable is None else f"{100 * each.detectable:.2f}"),
        ]
        for each in table.comparisons
        if each.treatment == treatment
    ]
    columns = ("control", "difference, points", "on new instances too", "better on", "p (Holm)", "finding")
    return _html_table((*columns, "could find"), [f"<tr>{''.join(cells)}</tr>" for cells in rows])


def _html_table(columns: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _cell(value: str, interval: str = "") -> str:
    """A number and its interval; a dash where there is neither."""
    value = value if value or interval else "-"
    brackets = f' <span class="interval">{escape(interval)}</span>' if interval else ""
    return f'<td class="number">{escape(value)}{brackets}</td>'


# Pictures


def _pictures(table: BenchTable, scores: ScoreTable) -> Iterable[str]:
    arms, shown = [arm.arm for arm in table.arms], _worth_a_curve(table)
    drawn = (
        ("Instance by instance", figures.by_instance(scores, arms), _INSTANCES_TEXT),
        ("While they train", figures.curves(scores, shown), _CURVES_TEXT),
        ("How often, and by how much", figures.profiles(scores, shown), _PROFILES_TEXT),
        ("What utility costs", figures.pareto(table), _PARETO_TEXT),
        ("What a host depends on, and what it gained", figures.leave_one_out(scores), _DEPENDENCE_TEXT),
    )
    for title, figure, text in drawn:
        if figure is not None:
            yield _section(title, _figure(figure), text)


def _worth_a_curve(table: BenchTable) -> list[str]:
    """Waiting, the treatments, the oracles, and then the best of the rest."""
    names = [arm.arm for arm in table.arms]
    first = [WAIT, *(note.treatment for note in table.notes), "sbs", "vbs", "static"]
    rest = sorted(table.arms, key=lambda arm: -arm.over_wait.value)
    ordered = dict.fromkeys([*(name for name in first if name in names), *(arm.arm for arm in rest)])
    return list(ordered)[:_CURVES]


def _behaviour(table: BenchTable, scores: ScoreTable) -> Iterable[str]:
    for note in table.notes:
        name = note.treatment
        line = figures.timeline(scores, name)
        if line is None:
            yield _section(f"What {name} does", "<p>It always waits.</p>")
            continue
        yield _section(
            f"What {name} does",
            _figure(line),
            "Every decision but to wait, at the epoch it fell; the hosts of an instance lie beside each other. "
            "Upright lines are where the data of a stream change.",
        )
        yield from _life(scores, name)
        row = typical_episode(scores, name)
        if row is not None:
            slots = slots_seen([each for rows in scores.rows.values() for each in rows])
            about = f"{short_instance(row.instance)}, host {row.seed}: {row.decisions}"
            yield _section(
                f"A network that {name} grew",
                f'<div class="scroll">{network_of(row, slots)}</div><p class="small">{escape(about)}</p>',
                "Of the episodes that kept something, the one with the median gain. Fossilized seeds are part of the "
                "host for good; points are leave-one-out.",
            )
        kept = figures.contributions(scores, name)
        if kept is not None:
            yield _section(
                f"What the seeds that {name} kept contribute",
                _figure(kept),
                "Leave-one-out at the end, seed by seed.",
            )


def _life(scores: ScoreTable, arm: str) -> Iterable[str]:
    """A life on a stream, where lives count and something grew."""
    row = typical_life(scores, arm)
    if row is None:
        return
    key = row.instance, row.seed
    waited = next((each for each in scores.rows[WAIT] if (each.instance, each.seed) == key), None)
    about = f"{short_instance(row.instance)}, host {row.seed}: {row.decisions}"
    yield _section(
        f"A life that {arm} led",
        _figure(life(row, waited)) + f'<p class="small">{escape(about)}</p>',
        "Of the lives in which something grew, the one with the median gain. Dotted lines are where the data change; "
        "a bar is a seed from its birth to its end, full where it was a fossil; below is how much was added.",
    )


def network_of(row: BenchRow, slots: Sequence[str]) -> str:
    """SVG of the product of an episode: the seeds that were kept in these slots."""
    seeds = {seed.slot: seed for seed in row.kept}
    cards = []
    for slot in slots:
        seed = seeds.get(slot)
        if seed is None:
            cards.append(Card(slot, Stage.DORMANT.name, None, None, ()))
            continue
        stage = Stage.FOSSILIZED if seed.fossilized else Stage.HOLDING
        worth = "not measured" if seed.contribution is None else f"{100 * seed.contribution:+.1f} points"
        facts = (worth, f"{seed.parameters:,} parameters")
        cards.append(Card(slot, stage.name, seed.blueprint, seed.alpha_target, facts))
    return draw_network(cards, "a grown network", LIGHT)


def _provenance(result: BenchResult) -> str:
    record = result.record
    starts = "".join(
        f"<details><summary>start {number}</summary><pre>{escape(json.dumps(each, indent=1))}</pre></details>"
        for number, each in enumerate(record.provenance, start=1)
    )
    arms = "".join(f"<dt>{escape(arm)}</dt><dd>{escape(what)}</dd>" for arm, what in record.arms.items())
    cases = "".join(f"<li><code>{escape(instance)}</code></li>" for instance in record.instances)
    return (
        f"<p>{len(result.rows):,} rows. <code>esper bench table</code> prints the table from them, "
        f"<code>esper bench --suite {escape(record.suite)} --seeds {record.seeds}</code> makes them anew.</p>"
        f"<details><summary>Arms</summary><dl>{arms}</dl></details>"
        f"<details><summary>Instances</summary><ol>{cases}</ol></details>{starts}"
    )


# One life on a stream: validation and the changes of its data, what was alive when, and the budget used


_LANE = 26
"""Pixels of a slot's lane."""


def typical_life(table: ScoreTable, arm: str) -> BenchRow | None:
    """Of the lives in which something grew, the one with the median gain over waiting; None if nothing ever did."""
    waited = {(row.instance, row.seed): row.score or 0.0 for row in table.rows[WAIT]}
    grown = [row for row in table.rows[arm] if row.life_added is not None and row.lives]
    ordered = sorted(grown, key=lambda row: (row.score or 0.0) - waited[row.instance, row.seed])
    return ordered[len(ordered) // 2] if ordered else None


def life(row: BenchRow, waited: BenchRow | None) -> go.Figure:
    """Three panels over the epochs: validation accuracy, a bar for each seed in its slot's lane, parameters added.

    waited  the life of the same host when nothing is grown
    """
    lanes = sorted({seed.slot for seed in row.lives}, reverse=True)
    heights = [0.5, 0.12 + 0.06 * len(lanes), 0.2]
    titles = ("validation accuracy", "alive", "parameters added")
    figure = make_subplots(
        3, 1, shared_xaxes=True, vertical_spacing=0.07, row_heights=heights, subplot_titles=titles
    )
    for name, each, colour in ((WAIT, waited, GREY), (row.arm, row, SERIES[1])):
        if each is not None:
            curve = list(each.validation_accuracies)
            line = {"color": colour, "width": 2}
            figure.add_scatter(x=list(range(len(curve))), y=curve, name=name, line=line, row=1, col=1)
    kinds = sorted({seed.blueprint for seed in row.lives})
    for place, kind in enumerate(kinds):
        _bars(figure, row, kind, SERIES[place % len(SERIES)])
    _budget(figure, row)
    for epoch, words in changes_of(row.instance).items():
        if epoch < row.epochs:
            dotted = {"color": GREY, "width": 1, "dash": "dot"}
            figure.add_vline(x=epoch + 0.5, line=dotted)
            figure.add_annotation(
                x=epoch + 0.5, y=1.0, yref="y domain", yanchor="top", text=words, textangle=-90, showarrow=False,
                font={"size": 10, "color": LIGHT.faint},
            )  # fmt: skip
    below = {"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0}
    figure.update_layout(
        {**LAYOUT, "height": 460 + _LANE * len(lanes), "legend": below, "barmode": "overlay"}
    )
    figure.update_xaxes(title="epoch", row=3, col=1)
    figure.update_xaxes(range=[0, row.epochs + 0.5])
    return figure


def _bars(figure: go.Figure, row: BenchRow, kind: str, colour: str) -> None:
    """A bar from the birth to the end of each seed of a kind, darker from where it was a fossil."""
    own = [seed for seed in row.lives if seed.blueprint == kind]
    for shown, fossil in ((True, False), (False, True)):
        spans = [
            (seed, *span) for seed in own if (span := _span(seed, row.epochs, fossil=fossil)) is not None
        ]
        figure.add_bar(
            base=[start for _, start, _ in spans],
            x=[end - start for _, start, end in spans],
            y=[seed.slot for seed, _, _ in spans],
            orientation="h",
            name=kind,
            legendgroup=kind,
            showlegend=shown,
            width=0.6,
            marker={
                "color": colour,
                "opacity": 1.0 if fossil else 0.55,
                "line": {"color": colour, "width": 1},
            },
            text=[_words(seed) for seed, _, _ in spans],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
            row=2,
            col=1,
        )


def _span(seed: SeedLife, epochs: int, *, fossil: bool) -> tuple[int, int] | None:
    """(start, end) of a seed before it was a fossil, or since then; None where there was no such time."""
    end = epochs if seed.ended is None else seed.ended
    turned = end if seed.fossilized is None else seed.fossilized
    span = (turned, end) if fossil else (seed.born, turned)
    return span if span[1] > span[0] else None


def _words(seed: SeedLife) -> str:
    parts = [
        f"{seed.blueprint} at {seed.slot}, {seed.parameters:,} parameters",
        f"born after epoch {seed.born}",
    ]
    if seed.fossilized is not None:
        parts.append(f"a fossil after epoch {seed.fossilized}")
    parts.append("there at the end" if seed.ended is None else f"gone after epoch {seed.ended}")
    return "<br>".join(parts)


def _budget(figure: go.Figure, row: BenchRow) -> None:
    added = list(row.epoch_parameters)
    steps = {"color": SERIES[0], "width": 2, "shape": "vh"}
    hidden = {"showlegend": False, "row": 3, "col": 1}
    figure.add_scatter(x=list(range(len(added))), y=added, name="added", line=steps, fill="tozeroy", **hidden)
    if row.parameter_budget is not None:
        figure.add_hline(
            y=row.parameter_budget,
            line={"color": GREY, "width": 1, "dash": "dash"},
            annotation_text=f"budget {row.parameter_budget:,}",
            row=3,
            col=1,
        )
        figure.update_yaxes(range=[0, 1.15 * max(row.parameter_budget, *added, 1)], row=3, col=1)
