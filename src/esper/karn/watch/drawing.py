"""A host with its slots at one moment, as SVG: stages, alphas, what grows and what it brings."""

from collections.abc import Sequence
from html import escape

from esper.karn.watch.episodes import Frame, SlotView
from esper.karn.watch.palette import STAGES, Theme
from esper.karn.watch.texts import UNKNOWN, clipped, number, operation, signed

_CARD, _GAP, _EDGE = 172, 46, 74
_KEY = 140
"""Width of the legend."""
_HEIGHT, _RAIL, _TOP, _TALL = 182, 150, 26, 94


def network(frame: Frame | None, theme: Theme) -> str:
    """The host as a line from input to output, every slot a card above it; the one acted on has a thick frame."""
    slots: Sequence[SlotView] = () if frame is None else frame.slots
    width = 2 * _EDGE + max(len(slots), 1) * (_CARD + _GAP)
    whole = width + _KEY
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {_HEIGHT}" width="{whole}" height="{_HEIGHT}" '
        f'role="img" aria-label="{escape(_in_words(frame), quote=True)}" '
        f'style="font-family: system-ui, sans-serif; max-width: none">',
        f'<line x1="46" y1="{_RAIL}" x2="{width - 52}" y2="{_RAIL}" stroke="{theme.faint}" stroke-width="3"/>',
        _text(8, _RAIL + 4, "input", theme.faint),
        _text(width - 46, _RAIL + 4, "output", theme.faint),
    ]
    for place, slot in enumerate(slots):
        acted = frame is not None and frame.decision.slot == slot.name
        parts.append(_slot(_EDGE + place * (_CARD + _GAP) + _GAP // 2, slot, acted, frame, theme))
    if not slots:
        parts.append(_text(_EDGE, _TOP + 40, "no slots were recorded for this episode", theme.faint))
    return "".join([*parts, _legend(width + 20, theme), "</svg>"])


def _legend(left: int, theme: Theme) -> str:
    """What the colours of the stages mean; each has its name beside it."""
    return "".join(
        f'<rect x="{left}" y="{_TOP + 24 * place}" width="12" height="12" rx="2" fill="{theme.stage(stage)}"/>'
        + _text(left + 20, _TOP + 24 * place + 10, stage.lower(), theme.faint)
        for place, stage in enumerate(STAGES)
    )


def _slot(left: int, slot: SlotView, acted: bool, frame: Frame | None, theme: Theme) -> str:
    colour = theme.stage(slot.stage)
    middle = left + _CARD // 2
    filled = slot.alpha is not None
    parts = [
        f'<line x1="{middle}" y1="{_TOP + _TALL}" x2="{middle}" y2="{_RAIL}" stroke="{theme.faint}" '
        f'stroke-width="2" stroke-dasharray="{"none" if slot.alpha else "3 4"}"/>',
        f'<circle cx="{middle}" cy="{_RAIL}" r="6" fill="{colour}" stroke="{theme.text}" stroke-width="1"/>',
        f'<rect x="{left}" y="{_TOP}" width="{_CARD}" height="{_TALL}" rx="8" fill="{theme.card}" '
        f'stroke="{theme.text if acted else theme.grid}" stroke-width="{3 if acted else 1.5}"/>',
        f'<rect x="{left + 8}" y="{_TOP + 10}" width="10" height="10" rx="2" fill="{colour}"/>',
        _text(left + 24, _TOP + 19, (slot.stage or UNKNOWN).lower(), theme.text, size=13, bold=True),
        _text(left + 8, _TOP + 39, slot.blueprint or ("empty" if not filled else UNKNOWN), theme.text),
        _text(left + 8, _TOP + 58, f"alpha {number(slot.alpha, 2)}", theme.faint),
        f'<rect x="{left + 78}" y="{_TOP + 51}" width="86" height="7" rx="3" fill="{theme.grid}"/>',
        _text(left + 8, _TOP + 78, f"contribution {signed(slot.contribution)}", theme.faint),
        _text(middle, _RAIL + 24, slot.name, theme.text, anchor="middle"),
    ]
    if slot.alpha is not None:
        share = min(max(slot.alpha, 0.0), 1.0) if slot.alpha == slot.alpha else 0.0
        parts.append(
            f'<rect x="{left + 78}" y="{_TOP + 51}" width="{86 * share:.1f}" height="7" rx="3" '
            f'fill="{colour}"/>'
        )
    if acted and frame is not None:
        parts.append(
            _text(middle, _TOP - 8, operation(frame.decision.op.name), theme.text, anchor="middle", bold=True)
        )
    return "".join(parts)


def _text(
    x: float, y: float, said: str, colour: str, *, size: int = 12, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>'
        f"{escape(clipped(said, 24), quote=True)}</text>"
    )


def _in_words(frame: Frame | None) -> str:
    """For readers who listen."""
    if frame is None or not frame.slots:
        return "no slots recorded"
    told = (f"{clipped(slot.name, 24)}: {(slot.stage or 'unknown').lower()}" for slot in frame.slots)
    return f"epoch {frame.epoch}. {'; '.join(told)}. then {operation(frame.decision.op.name)}"
