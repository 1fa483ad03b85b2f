"""A grown network as a drawing: the host's blocks in a row, the seeds that its product kept above them."""

from collections.abc import Sequence
from html import escape

from esper.simic.bench import BenchRow, SeedRow

_BOX, _GAP, _TALL = 150, 46, 54
_COLOURS = {True: "#1a1a1a", False: "#00664c"}


def draw_network(row: BenchRow, slots: Sequence[str]) -> str:
    """SVG, for a page."""
    names = ["input", *slots, "head"]
    seeds = {seed.slot: seed for seed in row.kept}
    width, height = len(names) * (_BOX + _GAP) - _GAP + 20, 230
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="a grown network" '
        'font-family="system-ui, sans-serif" font-size="13">'
    ]
    for place, name in enumerate(names):
        left = 10 + place * (_BOX + _GAP)
        if place:
            parts.append(_arrow(left - _GAP, 178, left, 178))
        parts.append(_rectangle(left, 151, "#eef1f5", "#8a8f98"))
        parts.append(_text(left + _BOX / 2, 183, name, "#20242a"))
        if name in seeds:
            parts += _seed(left, seeds[name])
    return "".join([*parts, "</svg>"])


def _seed(left: float, seed: SeedRow) -> list[str]:
    told = "not measured" if seed.contribution is None else f"{100 * seed.contribution:+.1f} points"
    middle = left + _BOX / 2
    return [
        _arrow(middle - 40, 151, middle - 40, 95),
        _arrow(middle + 40, 95, middle + 40, 151),
        _rectangle(left, 35, _COLOURS[seed.fossilized], "none"),
        _text(middle, 58, seed.blueprint, "#ffffff", bold=True),
        _text(middle, 77, f"{seed.parameters:,} parameters", "#ffffff"),
        _text(middle, 24, f"alpha {seed.alpha_target:g}, {told}", "#20242a"),
    ]


def _rectangle(left: float, top: float, fill: str, line: str) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="{_BOX}" height="{_TALL}" rx="8" fill="{fill}" stroke="{line}"/>'
    )


def _text(x: float, y: float, text: str, colour: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="middle" fill="{colour}"{weight}>{escape(text)}</text>'


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head at its end."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    wings = f"{x2 - 7 * dx - 4 * dy},{y2 - 7 * dy - 4 * dx} {x2},{y2} {x2 - 7 * dx + 4 * dy},{y2 - 7 * dy + 4 * dx}"
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#8a8f98" stroke-width="1.5"/>'
        f'<polyline points="{wings}" fill="none" stroke="#8a8f98" stroke-width="1.5"/>'
    )
