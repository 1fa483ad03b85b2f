"""Decisions read from where they were written, as far as a query needs them: a run has a million.

A view over the file parses only the columns that a query names; a copy of everything takes minutes. What the view
cannot say exactly, a run that went on from a checkpoint or a path that reads as a pattern, is left to the copy. Of a
line that is not quite an event the view shows what it can, where the copy passes over it; ours are all whole.
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import get_args, get_type_hints

import pyarrow as pa

from esper.karn.tables import RENAMED, form_of
from esper.leyline import Event, RunStarted
from esper.nissa.run_directory import EVENTS_FILE

_PATTERN = frozenset("*?[]{}")
_LONGEST_LINE = 1 << 24
_PIECE = 1 << 22
_STARTED = f'{{"kind":"{RunStarted.kind}"'.encode()
_TYPES = {pa.string(): "VARCHAR", pa.float64(): "DOUBLE", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN"}


def can_be_read_in_place(run: Path) -> bool:
    """Whether every line of a run counts, and its path means one file."""
    path = run / EVENTS_FILE
    if not path.is_file() or _PATTERN & set(str(path.resolve())):
        return False
    starts, rest = 0, b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            starts += (rest + piece).count(_STARTED)
            rest = piece[-len(_STARTED) + 1 :]
    return starts <= 1


def view(name: str, event: type[Event], runs: Sequence[tuple[str, Path]]) -> str:
    """The statement that defines a view of one kind of event over the files of these runs."""
    parts = [_part(event, run, path.resolve() / EVENTS_FILE) for run, path in runs]
    return f"CREATE VIEW {name} AS " + " UNION ALL ".join(parts)


def allowed(runs: Sequence[tuple[str, Path]]) -> str:
    """The setting that leaves a sealed database these files and no others."""
    paths = ", ".join(_quoted(str(path.resolve() / EVENTS_FILE)) for _, path in runs)
    return f"SET allowed_paths = [{paths}]"


def _part(event: type[Event], run: str, path: Path) -> str:
    hints = get_type_hints(event)
    hints.pop("kind")  # a class variable
    columns = {"kind": "VARCHAR", "time": "DOUBLE"}
    columns |= {name: _type(form_of(hint).arrow) for name, hint in hints.items()}
    listed = ", ".join(f"{name}: {_quoted(kind)}" for name, kind in columns.items())
    picked = ", ".join(f'"{name}" AS "{RENAMED.get(name, name)}"' for name in hints)
    wanted = " AND ".join(
        [f"kind = {_quoted(event.kind)}", "time IS NOT NULL", *_required(hints), *_members(hints)]
    )
    return (
        f"SELECT {_quoted(run)} AS run, time, {picked} FROM read_json({_quoted(str(path))}, "
        f"format = 'newline_delimited', columns = {{{listed}}}, ignore_errors = true, "
        f"maximum_object_size = {_LONGEST_LINE}) WHERE {wanted}"
    )


def _required(hints: dict[str, object]) -> list[str]:
    """A line that does not say what every event says is none. Numbers with a point may be null: NaN is written so."""
    return [
        f"{name} IS NOT NULL"
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, int | str | Enum)
    ]


def _members(hints: dict[str, object]) -> list[str]:
    """A line that names what an enumeration does not have is no event."""
    found = []
    for name, hint in hints.items():
        for option in get_args(hint) or (hint,):
            if isinstance(option, type) and issubclass(option, Enum):
                convert = form_of(option).convert
                names = ", ".join(_quoted(str(convert(member))) for member in option)
                found.append(f"({name} IS NULL OR {name} IN ({names}))")
    return found


def _type(arrow: pa.DataType) -> str:
    if pa.types.is_map(arrow):
        return f"MAP(VARCHAR, {_type(arrow.item_type)})"
    return _TYPES[arrow]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
