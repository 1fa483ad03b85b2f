"""What verbs print: aligned tables, or JSON."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns side by side, numbers to the right; what is unknown is a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(_is_number(row[place]) for row in cells) for place in range(len(columns))]
    widths = [max([len(name), *(len(row[place]) for row in cells)]) for place, name in enumerate(columns)]

    def line(row: Sequence[str]) -> str:
        aligned = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([line(list(columns)), *(line(row) for row in cells)])


def as_json(value: object) -> str:
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: object) -> "JsonValue":
    """Records as objects by field, paths as texts, and numbers that are none as null: JSON has no NaN."""
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    # A text out of a record must not reach the terminal as a command to it.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _is_number(text: str) -> bool:
    if text == "-":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
