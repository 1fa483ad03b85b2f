"""One row per episode: what it came to, what it cost, what was done. Everything a table says is made from rows."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from esper.leyline.errors import EsperError
from esper.leyline.files import write_atomically
from esper.leyline.utility import utility

_SEED = pa.struct(
    [
        ("slot", pa.string()),
        ("blueprint", pa.string()),
        ("style", pa.string()),
        ("alpha_target", pa.float64()),
        ("parameters", pa.int64()),
        ("fossilized", pa.bool_()),
        ("kept", pa.bool_()),
        ("contribution", pa.float64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("suite", pa.string()),
        ("instance", pa.string()),
        ("arm", pa.string()),
        ("member", pa.int64()),
        ("seed", pa.int64()),
        ("host_seed", pa.int64()),
        ("test_accuracy", pa.float64()),
        ("validation_accuracy", pa.float64()),
        ("utility", pa.float64()),
        ("rent", pa.float64()),
        ("host_parameters", pa.int64()),
        ("added_parameters", pa.int64()),
        ("training_flops", pa.float64()),
        ("wall_seconds", pa.float64()),
        ("epochs", pa.int64()),
        ("decisions", pa.string()),
        ("rolled_back", pa.string()),
        ("seeds", pa.list_(_SEED)),
        ("validation_accuracies", pa.list_(pa.float64())),
        ("validation_losses", pa.list_(pa.float64())),
        ("train_accuracies", pa.list_(pa.float64())),
    ]
)
_PARTS, _WHOLE = "rows", "rows.parquet"


class RowsError(EsperError, ValueError):
    """Rows that are not there, or are not rows."""


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
    """Whether it is part of the product; settling takes out what does not pay."""
    contribution: float | None
    """Leave-one-out validation accuracy before settling: what the host depends on, not what was gained."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One episode."""

    suite: str
    instance: str
    arm: str
    member: int
    """Which controller of an arm that has several; rules have one."""
    seed: int
    """0, 1, ...; with the instance it names the host that every arm meets."""
    host_seed: int
    test_accuracy: float | None
    """Of the product; None if the governor condemned the host, or there is no test split."""
    validation_accuracy: float | None
    utility: float | None
    """Validation accuracy minus rent, as in training; None of a condemned host."""
    rent: float
    host_parameters: int
    """Of the host as the task makes it."""
    added_parameters: int | None
    """What the product has more than that."""
    training_flops: float | None
    """Forward and backward of every training step: matrix products and convolutions."""
    wall_seconds: float
    """Of the computation, validation and decisions included; hosts played side by side share it equally."""
    epochs: int
    decisions: str
    """What was done and when, as a schedule."""
    rolled_back: str | None
    """Why the governor ended it."""
    seeds: tuple[SeedRow, ...]
    validation_accuracies: tuple[float | None, ...]
    """Before the first epoch, after it, after the second, ..."""
    validation_losses: tuple[float, ...]
    train_accuracies: tuple[float | None, ...]

    @property
    def key(self) -> "Key":
        return self.arm, self.member, self.instance, self.seed

    @property
    def score(self) -> float | None:
        """What arms are compared by: test accuracy minus rent. A condemned host is worth 0.

        Only the toy has no test split; its utility is exact, and is the score.
        """
        if self.rolled_back is not None:
            return 0.0
        if self.test_accuracy is None or self.added_parameters is None:
            return self.utility
        return utility(self.test_accuracy, self.rent, self.added_parameters, self.host_parameters)

    @property
    def parameters(self) -> int | None:
        return None if self.added_parameters is None else self.host_parameters + self.added_parameters

    @property
    def kept(self) -> tuple[SeedRow, ...]:
        return tuple(seed for seed in self.seeds if seed.kept)


Key = tuple[str, int, str, int]
"""(arm, member, instance, seed)"""


def to_table(rows: Iterable[BenchRow]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)


def from_table(table: pa.Table) -> list[BenchRow]:
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise RowsError(f"the table has no column {missing[0]!r}; expected {', '.join(SCHEMA.names)}")
    return [_row(record) for record in table.select(SCHEMA.names).to_pylist()]


def write_rows(path: Path, rows: Iterable[BenchRow]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda partial: pq.write_table(to_table(rows), partial, compression="zstd"))


def read_rows(path: Path) -> list[BenchRow]:
    try:
        return from_table(pq.read_table(path))
    except (OSError, pa.ArrowInvalid, RowsError) as error:
        raise RowsError(f"{path}: no rows of episodes can be read from it ({error})") from None


class RowStore:
    """The rows of one benchmark: a file for each chunk while it runs, one file when it is done.

    A file appears whole, so that a killed benchmark has every row of the chunks it finished.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, rows: Sequence[BenchRow]) -> None:
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


def require_rows(folder: Path) -> list[BenchRow]:
    rows = RowStore(folder).read() if folder.is_dir() else []
    if not rows:
        raise RowsError(f"{folder} has no rows of a benchmark: `esper bench --out {folder}` makes some")
    return rows


def _row(record: Mapping[str, object]) -> BenchRow:
    values = dict(record)
    for each in fields(BenchRow):
        value = values[each.name]
        if isinstance(value, list):
            values[each.name] = tuple(value)
    seeds = values["seeds"]
    assert isinstance(seeds, tuple)
    values["seeds"] = tuple(SeedRow(**seed) for seed in seeds)
    return BenchRow(**values)  # type: ignore[arg-type]  # the schema has the types of the fields
