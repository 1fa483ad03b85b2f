"""Typed records as columns. The types come from the events' own annotations."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pyarrow as pa

from esper.nissa.wire import whole_text

INT64 = 2**63
RENAMED = {"case": "instance"}
"""Field -> its column, where the field's name is a word of SQL."""
_ARROW = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    field: str
    type: pa.DataType


def columns_of(cls: type) -> tuple[Column, ...]:
    """The columns of a dataclass of plain data."""
    hints = get_type_hints(cls)
    return tuple(
        Column(RENAMED.get(field.name, field.name), field.name, _arrow(hints[field.name]))
        for field in fields(cls)
    )


def table_of(cls: type, rows: Iterable[tuple[Mapping[str, object], object]]) -> pa.Table:
    """One row for each object of `cls`, after the columns that it is given with (run, time)."""
    columns = columns_of(cls)
    names = ["run", "time"]
    types: list[pa.DataType] = [pa.string(), pa.float64()]
    content: list[list[object]] = [[], [], *([] for _ in columns)]
    for given, row in rows:
        for position, name in enumerate(names):
            content[position].append(cell(given.get(name)))
        for position, column in enumerate(columns, start=len(names)):
            content[position].append(cell(getattr(row, column.field)))
    return pack([*names, *(column.name for column in columns)], [*types, *(c.type for c in columns)], content)


def pack(names: Sequence[str], types: Sequence[pa.DataType], content: Sequence[list[object]]) -> pa.Table:
    arrays = [pa.array(values, type=kind) for values, kind in zip(content, types, strict=True)]
    return pa.Table.from_arrays(arrays, names=list(names))


def cell(value: object) -> object:
    """A value that any column of its type can hold: what SQL has no honest form for is NULL."""
    if isinstance(value, Enum):
        return value.name if isinstance(value, IntEnum) else str(value.value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -INT64 <= value < INT64 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, Mapping):
        return [(cell(str(key)), cell(entry)) for key, entry in value.items()]
    return None


def _arrow(hint: object) -> pa.DataType:
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is Literal:
        return pa.string()
    if get_origin(hint) is Mapping:
        return pa.map_(pa.string(), _arrow(options[1]))
    if options:
        return _arrow(options[0])
    assert isinstance(hint, type)
    return pa.string() if issubclass(hint, Enum) else _ARROW[hint.__name__]
