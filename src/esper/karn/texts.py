"""Numbers and names as text. What is unknown is a dash; NaN and Inf are written as such."""

import math
from datetime import timedelta

UNKNOWN = "—"
LONGEST = 120
"""Characters of a recorded text that are shown, by default."""


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


def share(part: float, whole: float) -> str:
    """A part of a whole in percent."""
    return f"{part / whole:.0%}" if whole else UNKNOWN


def whole(value: int | None) -> str:
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


def clipped(text: str, longest: int = LONGEST) -> str:
    """One line of printable characters, at most `longest`; an ellipsis marks what was cut off."""
    if len(text) <= longest and text.isprintable():
        return text
    line = "".join(char if char.isprintable() else " " for char in text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def operation(name: str) -> str:
    """GERMINATE -> germinate, SET_ALPHA_TARGET -> set alpha target."""
    return clipped(name, 40).replace("_", " ").lower()
