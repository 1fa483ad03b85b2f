"""Draws the pictures of docs/lifecycle.md: how alpha moves, a model with seeds in it, and a run that grew.

python examples/draw_lives.py [--to docs/images]
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

import shifting_data
from esper.kasmina.stage_machine import Ramp
from esper.leyline import ALPHA_CURVES, TEMPOS, Curve
from side_by_side import train


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=Path("docs/images"), help="folder (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=24, help="of the run (default 24)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # The same picture gives the same file: no date, and ids that do not change.
    matplotlib.rcParams["svg.hashsalt"] = "esper"
    grower = train(shifting_data.PROBLEM, 0, shifting_data.PROBLEM.width, options.epochs, grow=True).grower
    assert grower is not None
    save(grower.plot(), options.to / "run.svg")
    grower.model.draw(options.to / "model.svg")
    save(ramps(), options.to / "ramps.svg")


def ramps() -> Figure:
    """Alpha by epoch: the curves, and the tempos of a first ramp."""
    figure = Figure(figsize=(9.0, 2.8), layout="constrained", facecolor="white")
    shapes, lengths = figure.subplots(1, 2, sharey=True)
    for curve in ALPHA_CURVES:
        shapes.plot(*path(8, curve), marker=".", label=str(curve).replace("_", " "))
    for tempo in TEMPOS:
        lengths.plot(*path(tempo, Curve.LINEAR), marker=".", label=f"tempo {tempo}")
    shapes.set_title("curves, over 8 epochs", loc="left", size=10)
    lengths.set_title("tempos of the first ramp", loc="left", size=10)
    shapes.set_ylabel("alpha")
    for axes in (shapes, lengths):
        axes.set_xlabel("epochs since ADVANCE")
        axes.legend(frameon=False, fontsize=8)
    return figure


def path(epochs: int, curve: Curve) -> tuple[list[int], list[float]]:
    ramp = Ramp(0.0, 1.0, epochs, curve)
    return list(range(epochs + 1)), [0.0, *(ramp.tick() for _ in range(epochs))]


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
