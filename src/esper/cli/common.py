"""What verbs print: aligned tables, or JSON."""

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pydantic import JsonValue


# How a verb ends when something is not right.


BAD_INPUT = 2
INTERRUPTED = 130


class BadInput(Exception):
    """What was asked for cannot be done; the message is for the person who asked, in one line."""


def did_you_mean(given: str, known: Iterable[str], otherwise: str) -> str:
    """A hint: what is spelled most like it, or something else to try."""
    from difflib import get_close_matches

    close = get_close_matches(given, list(known), n=1)
    return f"did you mean {close[0]}?" if close else otherwise


# Parsing the options of a verb.


RUNS = Path("runs")
"""Where runs are kept unless something else is said."""


class VerbParser(argparse.ArgumentParser):
    """Options of one verb, with an example in its help; mistakes are told in one line."""

    def __init__(self, verb: str, summary: str, example: str, *, add_help: bool = True) -> None:
        super().__init__(
            prog=f"esper {verb}",
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see `{self.prog} --help`")

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, for programs")

    def add_quiet(self) -> None:
        self.add_argument("--quiet", action="store_true", help="say nothing unless something is wrong")

    def add_run(self) -> None:
        self.add_argument("run", metavar="RUN", help="the name of a run, or the path of its folder")
        self.add_directory()

    def add_directory(self) -> None:
        self.add_argument(
            "--directory", type=Path, default=RUNS, metavar="FOLDER", help="where runs are kept (%(default)s)"
        )


def find_run(given: str, directory: Path) -> Path:
    """The folder of a run that was named, or pointed at."""
    for path in (directory / given, Path(given)):
        if given and (path / "config.json").is_file():
            return path
    known = [path.name for path in sorted(directory.glob("*")) if (path / "config.json").is_file()]
    hint = did_you_mean(given, known, "`esper runs` lists what is there")
    raise BadInput(f"there is no run {given!r} in {directory}; {hint}")


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
