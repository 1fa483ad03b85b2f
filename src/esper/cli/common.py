"""What the verbs share: one parser, mistakes in one line, and results as an aligned table or JSON."""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import NoReturn

BAD_INPUT = 2
INTERRUPTED = 130
LARGEST_SEED = 2**32 - 1
RUNS = Path("runs")
"""Folder of the runs, by default."""


def stopped_by(interrupt: KeyboardInterrupt) -> str:
    """What interrupted a verb: the signal that it was told, or else Ctrl-C."""
    return str(interrupt) or "Ctrl-C"


class BadInput(Exception):
    """An option or argument that cannot be used: the message names it, its value and what was expected."""

    # Not an `EsperError`: importing leyline takes longer than `esper --help` may.


def did_you_mean(given: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that is spelled most like the given one, as a hint; without one, another hint."""
    close = get_close_matches(given, list(known), n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else otherwise


@contextlib.contextmanager
def as_typed(options: Mapping[str, str]) -> Iterator[None]:
    """Have a mistake name the option that was typed, and not the field that it fills.

    options  field -> option
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        from esper.leyline.errors import EsperError

        if not isinstance(error, EsperError):
            raise  # a defect
        told = str(error)
        for field, option in options.items():
            told = re.sub(rf"(?<![\w-]){re.escape(field)}(?= is | has |\[)", option, told)
        raise BadInput(told) from None


class VerbParser(argparse.ArgumentParser):
    """The options of one verb. Its help ends with an example, its errors are `BadInput`.

    shared  options that several verbs have, among run, directory, quiet and json; run brings directory with it
    """

    def __init__(self, verb: str, summary: str, example: str, *shared: str) -> None:
        super().__init__(
            prog=f"esper {verb}",
            description=summary,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if "run" in shared:
            self.add_argument("run", metavar="RUN", help="the name of a run, or the path of its folder")
        if "run" in shared or "directory" in shared:
            where = "where runs are kept (%(default)s)"
            self.add_argument("--directory", type=Path, default=RUNS, metavar="FOLDER", help=where)
        if "quiet" in shared:
            self.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
        if "json" in shared:
            self.add_argument(
                "--json", action="store_true", help="print JSON, for programs, and nothing else"
            )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What was chosen; an option that does not exist is refused with the nearest one that does."""
        chosen, unknown = self.parse_known_args(arguments)
        for argument in unknown:
            flag, see = argument.partition("=")[0], f"see `{self.prog} --help`"
            if flag.startswith("-"):
                raise BadInput(f"there is no option {flag}; {self.hint(flag, see)}")
            raise BadInput(f"argument {argument!r} is one too many; {self.use_of(argument, see)}")
        return chosen

    def use_of(self, argument: str, otherwise: str) -> str:
        """What to do about an argument that no option takes."""
        del argument
        return otherwise

    def hint(self, flag: str, otherwise: str) -> str:
        """What to do about an option that does not exist."""
        known = [option for option in self._option_string_actions if option not in ("-h", "--help")]
        return did_you_mean(flag, known, otherwise)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise BadInput(f"{message}; see `{self.prog} --help`")

    def add_count(self, flag: str, help: str, *, least: int = 1, default: int | None = None) -> None:
        """An option that takes a whole number of at least `least`."""

        def whole(text: str) -> int:
            if not text.removeprefix("-").isdecimal() or int(text) < least:
                raise BadInput(f"{flag} is {text}; expected a whole number >= {least}")
            return int(text)

        self.add_argument(flag, type=whole, default=default, metavar="N", help=help)

    def add_seed(self, help: str) -> None:
        """`--seed`, which random generators can begin with."""

        def rng_seed(text: str) -> int:
            if not text.isdecimal() or int(text) > LARGEST_SEED:
                raise BadInput(f"--seed is {text}; expected a whole number from 0 to {LARGEST_SEED}")
            return int(text)

        self.add_argument("--seed", type=rng_seed, default=0, metavar="N", help=help)


def find_run(given: str, directory: Path) -> Path:
    """The folder of a run, given by its name in `directory` or by its path."""
    for path in (directory / given, Path(given)):
        if given and (path / "config.json").is_file():
            return path
    known = [path.parent.name for path in sorted(directory.glob("*/config.json"))]
    hint = did_you_mean(given, known, "`esper runs` lists what is there")
    raise BadInput(f"there is no run {given!r} in {directory}; {hint}")


def note(message: str) -> None:
    """One line on stderr, where stdout carries the answer."""
    print(f"esper: {' '.join(message.split())}", file=sys.stderr, flush=True)


def as_json(value: object) -> str:
    """Strict JSON of dataclasses, pydantic models, paths and plain data; NaN and infinities are null."""
    from pydantic_core import to_json

    return to_json(value, indent=2, inf_nan_mode="null", bytes_mode="base64", fallback=str).decode()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> str:
    """Aligned columns, numbers to the right; None is a dash.

    width  what a line may be long: the last column goes on in further lines
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if width is not None:
        before = [max(map(len, column)) for column in zip(columns, *cells, strict=True)][:-1]
        left = width - sum(before) - 2 * len(before)
        cells = [
            [*(row[:-1] if place == 0 else [""] * len(before)), part]
            for row in cells
            for place, part in enumerate(wrap(row[-1], left))
        ]
    aligned = []
    for place, name in enumerate(columns):
        column = [row[place] for row in cells]
        width = max(map(len, [name, *column]))
        side = str.rjust if all(map(_is_number, column)) else str.ljust
        aligned.append([side(text, width) for text in (name, *column)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    # A text from a record must not reach the terminal as an escape sequence.
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def _is_number(text: str) -> bool:
    try:
        return text in ("-", "") or float(text) is not None
    except ValueError:
        return False
