"""The characters of a text, as tokens and the tokens that come next."""

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.splits import (
    DatasetCorrupt,
    DatasetMissing,
    Phase,
    SealedTest,
    Split,
    TaskData,
    stratified_splits,
)

# Tables of numbers with one column to predict: CSV, .npy and .npz files.


_DELIMITERS = (",", ";", "\t")
_MOST_CLASSES = 1000
_SHARES = (0.70, 0.15)  # training, validation; the rest is the test split


class Table(NamedTuple):
    features: NDArray[np.float64]
    """(row, column)"""
    targets: list[str]


def load_table(path: Path, *, target: str, header: bool) -> TaskData:
    """Stratified splits of 70, 15 and 15 %; features standardised by the training split."""
    table = read_table(path, target=target, header=header)
    names = _class_names(path, table.targets)
    labels = np.array([names.index(text) for text in table.targets], np.int64)
    train, validation = (int(share * len(labels)) for share in _SHARES)
    if not validation:
        raise DatasetCorrupt(path, found=f"{len(labels)} rows", expected="rows enough for three splits")
    parts = stratified_splits(labels, (train, validation, len(labels) - train - validation), seed=0)
    known = table.features[parts[0]]
    deviation = known.std(0)
    # A column that never varies in training has deviation 0, or nearly so after rounding.
    constant = np.ptp(known, axis=0) == 0
    features = ((table.features - known.mean(0)) / np.where(constant, 1.0, deviation)).astype(np.float32)
    splits = [Split.from_arrays(features[part], labels[part]) for part in parts]
    return TaskData((Phase(0, splits[0], splits[1]),), SealedTest(splits[2]), len(names))


def read_table(path: Path, *, target: str, header: bool) -> Table:
    if not path.is_file():
        raise DatasetMissing(f"tabular.path: there is no file {path} (looked from {Path.cwd()})")
    if path.suffix in (".npy", ".npz"):
        return _read_arrays(path, target)
    return _read_csv(path, target, header)


def _read_csv(path: Path, target: str, header: bool) -> Table:
    rows = _rows(path)
    names = [name.strip() for name in rows[0][1]] if header else [str(n) for n in range(len(rows[0][1]))]
    if header:
        for name in filter(_is_number, names):
            raise DatasetCorrupt(
                path, found=f"the number {name} in row 1", expected="column names (or write header=no)"
            )
    body = rows[1:] if header else rows
    if not body:
        raise DatasetCorrupt(path, found="a header and no rows", expected="rows of data")
    column = _column(path, names, target)
    features = np.empty((len(body), len(names) - 1))
    targets: list[str] = []
    for place, (line, cells) in enumerate(body):
        if len(cells) != len(names):
            raise DatasetCorrupt(path, found=f"{len(cells)} cells in row {line}", expected=f"{len(names)}")
        targets.append(cells[column].strip())
        if not targets[-1]:
            raise _bad_cell(path, line, names[column], "nothing", "a class")
        given = [
            (name, cell)
            for index, (name, cell) in enumerate(zip(names, cells, strict=True))
            if index != column
        ]
        for feature, (name, cell) in enumerate(given):
            if not _is_number(cell):
                raise _bad_cell(path, line, name, repr(cell), "a finite number")
            features[place, feature] = float(cell)
    return Table(features, targets)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            first = lines.readline()
            lines.seek(0)
            delimiter = max(_DELIMITERS, key=first.count)
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetCorrupt(path, found=str(error), expected="a CSV file in UTF-8") from None
    if not rows:
        raise DatasetCorrupt(path, found="no rows", expected="a CSV file")
    if len(rows[0][1]) < 2:
        raise DatasetCorrupt(
            path, found="one column", expected="two or more, separated by comma, semicolon or tab"
        )
    return rows


def _read_arrays(path: Path, target: str) -> Table:
    try:
        with path.open("rb") as stream:  # np.load leaves the file open when it fails
            loaded = np.load(stream, allow_pickle=False)
            whole = isinstance(loaded, np.ndarray)
            arrays = {"": loaded} if whole else {name: loaded[name] for name in loaded}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DatasetCorrupt(path, found=str(error), expected="NumPy arrays without objects") from None
    if path.suffix == ".npy":
        table = arrays[""]
        _require_matrix(path, table)
        column = _column(path, [str(n) for n in range(table.shape[1])], target)
        features, targets = np.delete(table, column, axis=1), table[:, column]
    else:
        if len(arrays) != 2:
            raise DatasetCorrupt(path, found=f"arrays {', '.join(arrays)}", expected="features and targets")
        names = list(arrays)
        column = _column(path, names, target)
        targets, features = arrays[names[column]], arrays[names[1 - column]]
        _require_matrix(path, features)
        if targets.shape != features.shape[:1]:
            raise DatasetCorrupt(
                path,
                found=f"targets {names[column]} of shape {targets.shape}",
                expected=f"{features.shape[:1]}",
            )
    return Table(features.astype(np.float64), [_class_text(value) for value in targets.tolist()])


def _require_matrix(path: Path, array: NDArray[np.generic]) -> None:
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.number) or not array.size:
        raise DatasetCorrupt(
            path, found=f"{array.dtype} of shape {array.shape}", expected="numbers of shape (row, column)"
        )
    if np.iscomplexobj(array):
        raise DatasetCorrupt(path, found=f"{array.dtype}", expected="real numbers")
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        row, column = wrong[0]
        raise _bad_cell(path, int(row), str(column), str(array[row, column]), "a finite number")


def _bad_cell(path: Path, row: int, column: str, found: str, expected: str) -> DatasetCorrupt:
    return DatasetCorrupt(path, found=f"{found} in row {row}, column {column}", expected=expected)


def _column(path: Path, names: Sequence[str], target: str) -> int:
    """By name; else by number, counted from 0, or back from the end if negative."""
    if names.count(target) == 1:
        return list(names).index(target)
    if names.count(target) > 1:
        raise DatasetCorrupt(path, found=f"{names.count(target)} columns named {target}", expected="one")
    try:
        number = int(target)
    except ValueError:
        number = len(names)
    if not -len(names) <= number < len(names):
        raise DatasetCorrupt(
            path, found=f"columns {', '.join(names)}", expected=f"one named {target!r} (tabular.target)"
        )
    return number % len(names)


def _class_names(path: Path, targets: Sequence[str]) -> list[str]:
    """The classes, in the order of their numbers if they are whole numbers, else of their texts."""
    names = set(targets)
    if all(map(_is_number, names)):
        broken = sorted(name for name in names if not float(name).is_integer())
        if broken:
            raise DatasetCorrupt(
                path,
                found=f"targets like {broken[0]}",
                expected="classes (measured quantities are not predicted)",
            )
        ordered = sorted(names, key=float)
    else:
        ordered = sorted(names)
    if not 2 <= len(ordered) <= min(_MOST_CLASSES, len(targets) // 2):
        raise DatasetCorrupt(
            path,
            found=f"{len(ordered)} different targets in {len(targets)} rows",
            expected=f"2 to {_MOST_CLASSES} classes, and at most half as many as rows",
        )
    return ordered


def _class_text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


_TEXT_SHARES = (0.8, 0.9)  # where the training stretch ends, and where validation does


def load_text(path: Path, *, context: int) -> TaskData:
    """Three stretches of the text: 80 % to train on, then 10 % to validate on, then 10 % to test on.

    A class is a character of the file, in the order of code points. Samples are windows that do not overlap.
    """
    if not path.is_file():
        raise DatasetMissing(f"text.path: there is no file {path} (looked from {Path.cwd()})")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetCorrupt(
            path, found=f"byte {error.object[error.start]:#04x} at {error.start}", expected="UTF-8"
        ) from None
    least = 10 * (context + 1) + 10  # so that each tenth holds one window and the character after it
    if len(text) < least:
        raise DatasetCorrupt(
            path, found=f"{len(text)} characters", expected=f"at least {least} for a context of {context}"
        )
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, tokens = np.unique(points, return_inverse=True)
    if len(alphabet) < 2:
        raise DatasetCorrupt(path, found=f"only the character {text[0]!r}", expected="two or more")
    ends = [int(share * len(tokens)) for share in _TEXT_SHARES]
    train, validation, test = (_windows(part, context) for part in np.split(tokens.astype(np.int64), ends))
    return TaskData((Phase(0, train, validation),), SealedTest(test), len(alphabet))


def _windows(tokens: NDArray[np.int64], context: int) -> Split:
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].reshape(count, context)
    targets = tokens[1 : count * context + 1].reshape(count, context)
    return Split.from_arrays(inputs, targets)
