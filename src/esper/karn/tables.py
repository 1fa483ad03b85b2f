"""Typed records as columns. The types come from the events' own annotations.

What SQL has no honest form for is NULL: NaN and Inf, and integers that do not fit.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa

LARGEST = 2**63 - 1
RENAMED = {"case": "instance"}
"""Field -> its column, where the field's name is a word of SQL."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one annotation are kept in a column."""

    arrow: pa.DataType
    convert: Callable[[Any], object]
    """Of a value that is not None and was checked when it was read."""

    def array(self, values: Sequence[object]) -> pa.Array:
        convert = self.convert
        return pa.array([None if v is None else convert(v) for v in values], type=self.arrow)


TEXT = Form(pa.string(), lambda text: text)
NUMBER = Form(pa.float64(), lambda number: number if math.isfinite(number) else None)
INTEGER = Form(pa.int64(), lambda number: number if -LARGEST <= number <= LARGEST else None)
FLAG = Form(pa.bool_(), lambda flag: flag)
_PLAIN: Mapping[object, Form] = {str: TEXT, float: NUMBER, int: INTEGER, bool: FLAG}


def form_of(hint: object) -> Form:
    """The column form of an annotation, with or without None."""
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is Literal:
        return TEXT
    if get_origin(hint) is Mapping:
        return _mapping(form_of(options[1]))
    if options:
        return form_of(options[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = {member: member.name if issubclass(hint, IntEnum) else member.value for member in hint}
        return Form(pa.string(), names.__getitem__)
    return _PLAIN[hint]


def table_of(cls: type, rows: Sequence[object], **given: tuple[Form, Sequence[object]]) -> pa.Table:
    """One row for each dataclass object, after the columns that are given beside them."""
    columns = {name: form.array(values) for name, (form, values) in given.items()}
    hints = get_type_hints(cls)
    for field in fields(cls):
        name = field.name
        columns[RENAMED.get(name, name)] = form_of(hints[name]).array([getattr(row, name) for row in rows])
    return pa.table(columns)


def _mapping(values: Form) -> Form:
    convert = values.convert

    def pairs(mapping: Mapping[str, object]) -> list[tuple[str, object]]:
        return [(key, None if value is None else convert(value)) for key, value in mapping.items()]

    return Form(pa.map_(pa.string(), values.arrow), pairs)
