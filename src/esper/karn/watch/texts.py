"""Numbers and names as people read them. What is unknown is a dash; what was measured and is no number says so."""

import math
from datetime import timedelta

UNKNOWN = "—"
LONGEST = 120
"""Characters of a text out of a record that are shown."""


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def signed(value: float | None, digits: int = 3) -> str:
    text = number(value, digits)
    return text if value is None or math.isnan(value) or value < 0 else f"+{text}"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    return UNKNOWN if low is None or high is None else f"{signed(low, digits)} to {signed(high, digits)}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else UNKNOWN


def whole(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Bytes in a unit that leaves a readable number."""
    if value is None:
        return UNKNOWN
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds) or abs(seconds) > 1e9:
        return UNKNOWN
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def clipped(text: str, longest: int = LONGEST) -> str:
    """One line of printable characters; what is cut off is marked."""
    if len(text) <= longest and text.isprintable():
        return text
    line = "".join(char if char.isprintable() else " " for char in text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def operation(name: str) -> str:
    """GERMINATE -> germinate, SET_ALPHA_TARGET -> set alpha target."""
    return clipped(name, 40).replace("_", " ").lower()
