"""One row per episode: its scores, its cost and its decisions. Every table is made from rows alone."""

import types
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from esper.leyline.errors import EsperError
from esper.leyline.files import write_atomically
from esper.leyline.utility import utility

_PARTS, _WHOLE = "rows", "rows.parquet"


class RowsError(EsperError, ValueError):
    """Rows are missing, or a file does not hold rows."""


@dataclass(frozen=True, slots=True)
class SeedRow:
    """A seed that was blended into the host when the episode ended."""

    slot: str
    blueprint: str
    style: str
    alpha_target: float
    parameters: int
    fossilized: bool
    kept: bool
    """Whether it is part of the final model; settling removes seeds that do not pay."""
    contribution: float | None
    """Leave-one-out validation accuracy before settling: what the host depends on, not what was gained."""


@dataclass(frozen=True, slots=True)
class SeedLife:
    """A seed from its birth to its end. Epochs are those trained by then."""

    slot: str
    blueprint: str
    parameters: int
    born: int
    """When it was germinated."""
    ended: int | None
    """The last epoch that was trained with it; None if it was there when the episode ended, before settling."""
    fossilized: int | None
    """When it was a fossil first; None if it never was."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One episode."""

    suite: str
    instance: str
    arm: str
    member: int
    """Number of the controller in an arm that has several; rules have one, 0."""
    seed: int
    """0, 1, ...; with the instance it names the host that every arm meets."""
    host_seed: int
    test_accuracy: float | None
    """The final model's; None if the governor condemned the host, or there is no test split.

    Where the life counts: of the model at the end of each phase on that phase's test split, weighted by epochs.
    """
    validation_accuracy: float | None
    utility: float | None
    """Validation accuracy minus rent, as in training: of the product or of the life. None for a condemned host."""
    rent: float
    host_parameters: int
    """Parameters of the host as the task makes it."""
    added_parameters: int | None
    """Parameters that the final model has beyond that."""
    training_flops: float | None
    """Forward and backward of every training step, counting matrix products and convolutions."""
    wall_seconds: float
    """Seconds of the episode, validation and decisions included; hosts played side by side share them equally."""
    epochs: int
    """Epochs trained."""
    decisions: str
    """Every operation and its epoch, as a schedule."""
    rolled_back: str | None
    """Why the governor ended the episode; None if it did not."""
    seeds: tuple[SeedRow, ...]
    validation_accuracies: tuple[float | None, ...]
    """Before the first epoch, after it, after the second, ..."""
    validation_losses: tuple[float, ...]
    train_accuracies: tuple[float | None, ...]
    epoch_flops: tuple[float, ...] = ()
    """`training_flops` epoch by epoch; empty where nothing is trained, and in older files."""
    life_added: float | None = None
    """Where the life counts: parameters beyond the host's, mean over the epochs. Elsewhere None."""
    lives: tuple[SeedLife, ...] = ()
    """Every seed that there was, by birth; empty in older files."""
    epoch_parameters: tuple[int, ...] = ()
    """Parameters beyond the host's, before the first epoch, after it, ...; empty in older files."""
    parameter_budget: int | None = None
    """Parameters that the instance let be added; None without a cap, and in older files."""
    trained_parameters: int | None = None
    """Parameters of the final model that require gradients; None without one, and in older files."""

    @property
    def key(self) -> "Key":
        """What identifies the row in a benchmark."""
        return self.arm, self.member, self.instance, self.seed

    @property
    def score(self) -> float | None:
        """What arms are compared by: test accuracy minus rent. A condemned host is worth 0.

        Only the toy has no test split; its utility is exact, and is the score.
        """
        if self.rolled_back is not None:
            return 0.0
        added = self.added_parameters if self.life_added is None else self.life_added
        if self.test_accuracy is None or added is None:
            return self.utility
        return utility(self.test_accuracy, self.rent, added, self.host_parameters)

    @property
    def parameters(self) -> int | None:
        """Parameters of the final model; None for a condemned host."""
        return None if self.added_parameters is None else self.host_parameters + self.added_parameters

    @property
    def kept(self) -> tuple[SeedRow, ...]:
        """The seeds that are part of the final model."""
        return tuple(seed for seed in self.seeds if seed.kept)


Key = tuple[str, int, str, int]
"""(arm, member, instance, seed)"""


def _arrow_type(annotation: object) -> pa.DataType:
    """The column type of a field: a plain type, `plain | None`, `tuple[type, ...]`, or a dataclass."""
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if annotation in plain:
        return plain[annotation]
    if is_dataclass(annotation):
        hints = get_type_hints(annotation)
        return pa.struct([(each.name, _arrow_type(hints[each.name])) for each in fields(annotation)])
    first = _arrow_type(get_args(annotation)[0])
    return first if isinstance(annotation, types.UnionType) else pa.list_(first)


def arrow_schema(row: type) -> pa.Schema:
    """The columns of a dataclass of plain types."""
    return pa.schema(list(_arrow_type(row)))


SCHEMA = arrow_schema(BenchRow)
_REQUIRED = tuple(each.name for each in fields(BenchRow) if each.default is MISSING)
_ROWS = TypeAdapter(list[BenchRow])


def write_rows(path: Path, rows: Iterable[BenchRow]) -> None:
    """Write a parquet file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)
    write_atomically(path, lambda partial: pq.write_table(table, partial, compression="zstd"))


def read_rows(path: Path) -> list[BenchRow]:
    """The rows of one file."""
    try:
        table = pq.read_table(path)
        missing = [name for name in _REQUIRED if name not in table.column_names]
        if missing:
            raise RowsError(f"the table has no column {missing[0]!r}; expected {', '.join(SCHEMA.names)}")
        there = [name for name in SCHEMA.names if name in table.column_names]
        return _ROWS.validate_python(table.select(there).to_pylist())
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RowsError(f"{path}: row {wrong['loc'][0]}, {wrong['loc'][1]}: {wrong['msg']}") from None
    except (OSError, pa.ArrowException, RowsError) as error:
        raise RowsError(f"{path}: no rows of episodes can be read from it ({error})") from None


class RowStore:
    """The rows of one benchmark on disk: a file for each chunk while it runs, one file when it is done.

    A file appears whole, so that a killed benchmark has every row of the chunks it finished.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, rows: Sequence[BenchRow]) -> None:
        """Keep the rows of one chunk."""
        name = zlib.crc32(repr([row.key for row in rows]).encode())
        write_rows(self.folder / _PARTS / f"{name:08x}.parquet", rows)

    def read(self) -> list[BenchRow]:
        """Every row once, in the order of arm, member, instance and seed."""
        files = [path for path in (self.folder / _WHOLE,) if path.exists()]
        rows = {row.key: row for path in [*files, *self._parts()] for row in read_rows(path)}
        return [rows[key] for key in sorted(rows)]

    def compact(self) -> None:
        """Make one file of all."""
        rows, parts = self.read(), self._parts()
        write_rows(self.folder / _WHOLE, rows)
        for part in parts:
            part.unlink()

    def _parts(self) -> list[Path]:
        return sorted((self.folder / _PARTS).glob("*.parquet"))
