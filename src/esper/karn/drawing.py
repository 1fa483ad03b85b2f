"""A grown network as SVG: the host as a line from input to output, every slot a card above it."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from esper.karn.palette import STAGES, Theme
from esper.karn.texts import UNKNOWN, clipped, number

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
