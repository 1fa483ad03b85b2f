"""A picture of a run that grew: validation against its forecast, and the life of every seed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.grower.history import Decision, described
from esper.kasmina.drawing import STAGE_COLOURS
from esper.leyline import LifecycleOp, Stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(history: Sequence[Decision], title: str) -> "Figure":
    """Above: the score, epoch by epoch, with what was done. Below: a lane a slot, coloured by stage."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot() needs matplotlib: pip install 'esper[draw]'") from None

    slots = list(history[0].slots) if history else []
    figure = Figure(figsize=(9.0, 3.4 + 0.45 * len(slots)), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, 0.3 + 0.45 * len(slots)])
    above.set_title(title, loc="left", size=10, weight="bold")
    _draw_score(above, history)
    _draw_lanes(below, history, slots)
    return figure


def _draw_score(axes: "Axes", history: Sequence[Decision]) -> None:
    known = [(decision.epoch, decision.score) for decision in history if decision.score is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color="#0072b2", label="validation")
    grown = [decision for decision in history if any(slot.blueprint for slot in decision.slots.values())]
    forecast = [(decision.epoch, decision.forecast) for decision in grown if decision.forecast is not None]
    if forecast:
        axes.plot(
            *zip(*forecast, strict=True), color="#888888", linestyle="--", label="forecast without growth"
        )
    for decision in history:
        if decision.action.op is not LifecycleOp.WAIT:
            axes.axvline(decision.epoch, color="#cccccc", linewidth=0.8, zorder=0)
            axes.annotate(
                described(decision.action),
                (decision.epoch, 0.02),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="bottom",
                ha="right",
                size=7,
                color="#444444",
            )
        if decision.rolled_back is not None:
            axes.axvline(
                decision.epoch, color="#b30000", linewidth=1.2, label=f"restored: {decision.rolled_back}"
            )
    accuracy = any(decision.metrics.val_accuracy is not None for decision in history)
    axes.set_ylabel("validation accuracy" if accuracy else "- loss / first loss")
    if known:
        axes.legend(loc="best", frameon=False, fontsize=8)


def _draw_lanes(axes: "Axes", history: Sequence[Decision], slots: Sequence[str]) -> None:
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
    if shown:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
