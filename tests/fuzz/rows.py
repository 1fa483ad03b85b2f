"""The folder of a benchmark: rows in parquet, and the record beside them."""

import io
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from bench_rows import GROWN, ROW
from esper.benchmark import read_bench
from esper.benchmark.rows import SCHEMA, read_rows
from fuzz.door import Door
from fuzz.mutations import bomb_bytes, spoil_bytes, spoil_tree

_RECORD = {
    "suite": "cpu",
    "instances": ["mnist1d"],
    "seeds": 1,
    "arms": {"wait": "a", "grown": "b"},
    "reference": "wait",
    "treatments": ["grown"],
    "provenance": [{}],
}


@cache
def _sound() -> bytes:
    return _written(pa.Table.from_pylist([asdict(ROW), asdict(GROWN)], schema=SCHEMA))


def _written(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def _spoiled(rng: Random, folder: Path) -> bytes:
    if rng.random() < 0.05:
        return bomb_bytes(folder)
    if rng.random() < 0.6:
        return spoil_bytes(_sound(), rng)
    rows = spoil_tree([asdict(ROW), asdict(GROWN)], rng)
    try:
        return _written(pa.Table.from_pylist(rows))
    except Exception:  # what has no column type cannot be in a file
        return b""


def _rows(rng: Random, folder: Path) -> object:
    path = folder / "rows.parquet"
    path.write_bytes(_spoiled(rng, folder))
    return read_rows(path)


def _bench(rng: Random, folder: Path) -> object:
    record = json.dumps(spoil_tree(_RECORD, rng)).encode()
    content = _sound()
    if rng.random() < 0.3:
        record = spoil_bytes(json.dumps(_RECORD).encode(), rng)
    if rng.random() < 0.3:
        rows = spoil_tree([asdict(ROW), asdict(GROWN)], rng)
        try:
            content = _written(pa.Table.from_pylist(rows, schema=SCHEMA))
        except Exception:
            content = b""
    (folder / "bench.json").write_bytes(record)
    (folder / "rows.parquet").write_bytes(content)
    return read_bench(folder)


DOORS = (Door("rows of a benchmark", _rows, 1_500), Door("folder of a benchmark", _bench, 500))
