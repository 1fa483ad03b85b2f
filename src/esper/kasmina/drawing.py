"""Pictures of a grown model: its host's modules in order, the slots, and the seeds in them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from esper.kasmina.model import GrowingModel
from esper.kasmina.tree import bare_parameters
from esper.leyline import SlotSnapshot, Stage
from esper.leyline.slots import BLUE, STAGE_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Station:
    """One line of the drawing: a module of the host, with its slot if it has one."""

    name: str
    kind: str
    parameters: int | None
    """None where they were not counted."""
    slot: SlotSnapshot | None


def outline(model: GrowingModel) -> list[Station]:
    """The host's modules in order of definition, opened only as far as it takes to show every slot."""
    slots = {name: slot.snapshot() for name, slot in model.slots.items()}
    return [
        Station(name, type(module).__name__, sum(p.numel() for p in bare_parameters(module)), slots.get(name))
        for name, module in _frontier(model.host, "", tuple(slots))
    ]


def _frontier(module: nn.Module, prefix: str, slots: tuple[str, ...]) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in module.named_children():
        name = f"{prefix}{child_name}"
        inner = any(slot.startswith(f"{name}.") for slot in slots)
        if inner:
            yield from _frontier(child, f"{name}.", slots)
        if name in slots or not inner:
            yield name, child


def draw_text(model: GrowingModel) -> str:
    """The outline as text, one module a line.

    blocks.0  Sequential     40  |- HOLDING conv_heavy, alpha 1 of 1, 300 parameters, contribution +0.021
    """
    stations = outline(model)
    name_width = max(len(station.name) for station in stations)
    kind_width = max(len(station.kind) for station in stations)
    lines = [
        f"{s.name:{name_width}}  {s.kind:{kind_width}}  {_count(s.parameters):>11}"
        + ("" if s.slot is None else f"  |- {describe_slot(s.slot)}")
        for s in stations
    ]
    total = f"host {model.host_parameters:,} parameters, grown {model.added_parameters:,}"
    return "\n".join([*lines, total])


def _count(parameters: int | None) -> str:
    return "" if parameters is None else f"{parameters:,}"


def describe_slot(slot: SlotSnapshot) -> str:
    """One slot in words: stage, blueprint, alpha, parameters, contribution."""
    if slot.blueprint is None:
        return slot.stage.name
    words = [f"{slot.stage.name}{' (fading)' if slot.fading else ''} {slot.blueprint}"]
    target = "" if slot.alpha_target is None else f" of {slot.alpha_target:g}"
    words.append(f"alpha {slot.alpha:.3g}{target}")
    words.append(f"{slot.parameters:,} parameters")
    if slot.contribution is not None:
        words.append(f"contribution {slot.contribution:+.3f}")
    return ", ".join(words)


def draw(model: GrowingModel, path: str | os.PathLike[str]) -> None:
    """Write the outline as a picture; the file's ending says which kind (.svg, .png, .pdf)."""
    from matplotlib.figure import Figure

    stations = outline(model)
    figure = Figure(figsize=(9.0, 0.62 * len(stations) + 0.8), layout="constrained", facecolor="white")
    title = f"host {model.host_parameters:,} parameters, grown {model.added_parameters:,}"
    draw_stations(figure, stations, title)
    write_figure(figure, path)


def write_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a picture, of the kind that the file's ending says."""
    file = Path(path)
    if not file.parent.is_dir():
        raise ValueError(f"path is {str(path)!r}; there is no folder {str(file.parent)!r}")
    if file.suffix.removeprefix(".") not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"path is {str(path)!r}; expected a name that ends in .png, .svg or .pdf")
    figure.savefig(file, dpi=150)


def draw_stations(figure: "Figure", stations: list[Station], title: str) -> None:
    """Fill a figure with an outline, from top to bottom."""
    axes = figure.add_subplot()
    axes.set_xlim(0, 9)
    axes.set_ylim(-len(stations) - 0.3, 0.6)
    axes.axis("off")
    axes.text(0.1, 0.3, title, weight="bold")
    for row, station in enumerate(stations):
        y = -row - 0.5
        if row:
            axes.annotate(
                "", (1.6, y + 0.3), (1.6, y + 0.7), arrowprops={"arrowstyle": "->", "color": "#888888"}
            )
        facts = [station.kind] if station.parameters is None else [station.kind, _count(station.parameters)]
        label = f"{station.name}\n{', '.join(facts)}"
        _box(axes, 0.1, y, 3.0, "#eeeeee", "black", label)
        if station.slot is not None:
            _draw_slot(axes, y, station.slot)


def _draw_slot(axes: "Axes", y: float, slot: SlotSnapshot) -> None:
    axes.plot([3.1, 3.5], [y, y], color="#444444", linewidth=1.5, linestyle="-" if slot.blueprint else ":")
    if slot.blueprint is None:
        axes.text(3.6, y, slot.stage.name.lower(), va="center", color=STAGE_COLOURS[slot.stage], size=8)
        return
    fading = " (fading)" if slot.fading else ""
    ink = "white" if slot.stage is Stage.FOSSILIZED else "black"
    _box(axes, 3.5, y, 2.4, STAGE_COLOURS[slot.stage], ink, f"{slot.blueprint}\n{slot.stage.name}{fading}")
    for width, colour in ((1.0, "#dddddd"), (slot.alpha, BLUE)):
        axes.barh(y + 0.14, 1.2 * width, left=6.1, height=0.16, color=colour)
    axes.text(7.4, y + 0.14, f"alpha {slot.alpha:.2g}", va="center", size=8)
    known = "contribution unknown" if slot.contribution is None else f"contribution {slot.contribution:+.3f}"
    axes.text(6.1, y - 0.16, f"{slot.parameters:,} parameters, {known}", va="center", size=8)


def _box(axes: "Axes", x: float, y: float, width: float, face: str, ink: str, label: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y - 0.3), width, 0.6, boxstyle=style, facecolor=face, edgecolor="none"))
    axes.text(x + width / 2, y, label, ha="center", va="center", color=ink, size=8)
