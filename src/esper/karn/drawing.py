"""How pages, figures and terminals look and read: colours, numbers and names as text, a grown network as SVG.

No meaning is carried by colour alone: there is always a word, a dash or a mark beside it. What is unknown is a dash;
NaN and Inf are written as such.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import Literal

from esper.leyline import HEAD_NAMES
from esper.leyline.slots import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, STAGE_COLOURS, VERMILION, YELLOW

# Colours, on light and on dark ground

ThemeName = Literal["light", "dark"]

GOOD, BAD = "#00664C", "#B3261E"
"""Dark enough for text on white."""
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Runs or arms, in the order in which they are drawn on light ground."""
OPERATIONS: Mapping[str, str] = {
    "WAIT": GREY,
    "GERMINATE": GREEN,
    "SET_ALPHA_TARGET": YELLOW,
    "PRUNE": VERMILION,
    "FOSSILIZE": BLUE,
    "ADVANCE": SKY,
    "RETIRE": PURPLE,
}
MARKERS: Mapping[str, str] = {
    "GERMINATE": "triangle-up",
    "SET_ALPHA_TARGET": "square",
    "PRUNE": "x",
    "FOSSILIZE": "star",
    "ADVANCE": "triangle-right",
    "RETIRE": "triangle-down",
}
"""Operation -> its symbol in plotly's figures."""
STAGES: Mapping[str, str] = {stage.name: colour for stage, colour in STAGE_COLOURS.items()}
HEADS: Mapping[str, str] = dict(
    zip(HEAD_NAMES, (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY), strict=True)
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a page."""

    name: ThemeName
    page: str
    """Background of everything."""
    card: str
    """Background of a figure."""
    text: str
    faint: str
    """Secondary text; still readable (contrast 4.5 to 1)."""
    grid: str
    idle: str
    """Slots in which nothing grows."""
    runs: tuple[str, ...]
    """The run that is looked at, then those beside it."""

    def stage(self, name: str | None) -> str:
        """Colour of a slot; an unknown stage has the colour of the grid."""
        return self.idle if name == "DORMANT" else STAGES.get(name or "", self.grid)


LIGHT = Theme("light", "#F4F5F7", "#FFFFFF", "#1B1F24", "#5B6470", "#E3E6EA", "#D3D7DC", SERIES)
DARK = Theme(
    "dark",
    "#14171B",
    "#1D2126",
    "#E8EAED",
    "#A3ABB6",
    "#333941",
    "#4A525C",
    (SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION),
)
THEMES: Mapping[ThemeName, Theme] = {"light": LIGHT, "dark": DARK}


def see_through(colour: str, opacity: float) -> str:
    """A colour as CSS with an opacity, 0..1."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


# Numbers and names as text

UNKNOWN = "—"
LONGEST = 120
"""Characters of a recorded text that are shown, by default."""
Fact = tuple[str, str]
"""A name and a value, as texts."""


def finite(value: object) -> float | None:
    """A number that can be drawn; None for anything else, NaN and Inf too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def signed(value: float | None, digits: int = 3) -> str:
    """A number with its sign."""
    text = number(value, digits)
    return text if value is None or math.isnan(value) or value < 0 else f"+{text}"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """The two ends of an interval."""
    return UNKNOWN if low is None or high is None else f"{signed(low, digits)} to {signed(high, digits)}"


def in_points(gain: float | None) -> str:
    """A gain as benchmarks and evaluations tell it: in hundredths."""
    return UNKNOWN if gain is None or math.isnan(gain) else f"{signed(100.0 * gain, 2)} points"


def interval_in_points(low: float | None, high: float | None) -> str:
    """The two ends of an interval of gains, in hundredths."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return UNKNOWN
    return f"{interval(100.0 * low, 100.0 * high, 2)} points"


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return f"{part / whole:.0%}" if whole else UNKNOWN


def thousands(value: int | None) -> str:
    """An integer with thousands separated."""
    return UNKNOWN if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """A number of bytes, in the unit that suits it."""
    if value is None:
        return UNKNOWN
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds below a minute; hours, minutes and seconds above."""
    if seconds is None or not math.isfinite(seconds) or abs(seconds) > 1e9:
        return UNKNOWN
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def time_left(seconds: float) -> str:
    """What is left of some work, in words and no finer than it is known."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h left"


def clipped(text: str, longest: int = LONGEST) -> str:
    """One line of printable characters, at most `longest`; an ellipsis marks what was cut off."""
    if len(text) <= longest and text.isprintable():
        return text
    line = "".join(char if char.isprintable() else " " for char in text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def by_epoch(changes: str | None) -> dict[int, str]:
    """`shuffle80@16/noise5@16/alarm@40` -> epoch -> what changes there; what does not read like that is left out."""
    found: dict[int, str] = {}
    for part in (changes or "").split("/"):
        words, _, epoch = part.partition("@")
        if words and epoch.isdecimal() and len(epoch) < 7:
            first = found.get(int(epoch))
            found[int(epoch)] = words if first is None else f"{first}, {words}"
    return found


def operation(name: str) -> str:
    """GERMINATE -> germinate, SET_ALPHA_TARGET -> set alpha target."""
    return clipped(name, 40).replace("_", " ").lower()


# A grown network: the host as a line from input to output, every slot a card above it

_CARD, _GAP, _EDGE, _TOP = 172, 46, 74, 26
_KEY = 140
"""Width of the legend."""


@dataclass(frozen=True, slots=True)
class Card:
    """A slot as it is drawn; what is unknown is None."""

    slot: str
    stage: str | None
    blueprint: str | None
    alpha: float | None
    """0..1; None for an empty slot."""
    facts: tuple[str, ...]
    """What else is known, a line each."""
    decided: str = ""
    """The operation decided on for this slot; its card then has a thick frame."""


def draw_network(cards: Sequence[Card], about: str, theme: Theme) -> str:
    """The host and its slots; `about` says the same to screen readers. Every text is escaped."""
    tall = 74 + 20 * max((len(card.facts) for card in cards), default=1)
    rail = _TOP + tall + 30
    width = 2 * _EDGE + max(len(cards), 1) * (_CARD + _GAP)
    size = f'viewBox="0 0 {width + _KEY} {rail + 32}" width="{width + _KEY}" height="{rail + 32}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(about, quote=True)}" '
        f'style="font-family: system-ui, sans-serif; max-width: none">',
        f'<line x1="46" y1="{rail}" x2="{width - 52}" y2="{rail}" stroke="{theme.faint}" stroke-width="3"/>',
        _text(8, rail + 4, "input", theme.faint),
        _text(width - 46, rail + 4, "output", theme.faint),
        *(
            _card(_EDGE + place * (_CARD + _GAP) + _GAP // 2, card, tall, theme)
            for place, card in enumerate(cards)
        ),
    ]
    if not cards:
        parts.append(_text(_EDGE, _TOP + 40, "no slots were recorded for this episode", theme.faint))
    for place, stage in enumerate(STAGES):
        y = _TOP + 24 * place
        parts.append(_rectangle(width + 20, y, 12, 12, theme.stage(stage)))
        parts.append(_text(width + 40, y + 10, stage.lower(), theme.faint))
    return "".join([*parts, "</svg>"])


def _card(left: int, card: Card, tall: int, theme: Theme) -> str:
    colour, middle, rail = theme.stage(card.stage), left + _CARD // 2, _TOP + tall + 30
    alpha = 0.0 if card.alpha is None or card.alpha != card.alpha else min(max(card.alpha, 0.0), 1.0)
    frame = (
        f'stroke="{theme.text if card.decided else theme.grid}" stroke-width="{3 if card.decided else 1.5}"'
    )
    blueprint = card.blueprint or ("empty" if card.alpha is None else UNKNOWN)
    return "".join(
        [
            f'<line x1="{middle}" y1="{_TOP + tall}" x2="{middle}" y2="{rail}" stroke="{theme.faint}" '
            f'stroke-width="2" stroke-dasharray="{"none" if card.alpha else "3 4"}"/>',
            f'<circle cx="{middle}" cy="{rail}" r="6" fill="{colour}" stroke="{theme.text}" stroke-width="1"/>',
            _rectangle(left, _TOP, _CARD, tall, theme.card, frame),
            _rectangle(left + 8, _TOP + 10, 10, 10, colour),
            _text(left + 24, _TOP + 19, (card.stage or UNKNOWN).lower(), theme.text, 'font-weight="600"'),
            _text(left + 8, _TOP + 39, blueprint, theme.text),
            _text(left + 8, _TOP + 58, f"alpha {number(card.alpha, 2)}", theme.faint),
            _rectangle(left + 78, _TOP + 51, 86, 7, theme.grid),
            _rectangle(left + 78, _TOP + 51, 86 * alpha, 7, colour),
            *(_text(left + 8, _TOP + 78 + 20 * n, fact, theme.faint) for n, fact in enumerate(card.facts)),
            _text(middle, rail + 24, card.slot, theme.text, 'text-anchor="middle"'),
            _text(middle, _TOP - 8, card.decided, theme.text, 'text-anchor="middle" font-weight="600"'),
        ]
    )


def _rectangle(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    corner = min(8.0, min(width, height) / 5)
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="{corner:.1f}" fill="{fill}" {more}/>'


def _text(x: float, y: float, text: str, colour: str, more: str = "") -> str:
    shown = escape(clipped(text, 24), quote=True)
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="12" {more}>{shown}</text>'
