"""One life on a stream: validation and the changes of its data, what was alive when, and the budget used."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from esper.benchmark import BenchRow, SeedLife
from esper.benchmark.arms import WAIT
from esper.benchmark.table import ScoreTable
from esper.karn.drawing import LIGHT, SERIES
from esper.karn.report.figures import LAYOUT, changes_of
from esper.leyline.colours import GREY

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
