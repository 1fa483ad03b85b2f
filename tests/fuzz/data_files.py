"""Data in files of one's own: tables, arrays, texts."""

import io
from pathlib import Path
from random import Random

import numpy as np

from esper.tolaria.data import DatasetCorrupt
from esper.tolaria.data.files import load_table, load_text
from fuzz.door import Door
from fuzz.mutations import Bomb, bomb_bytes, spoil_bytes, spoil_text

_ROWS = [(row % 3, row * 0.5, -row) for row in range(40)]
_CSV = "kind,a,b\n" + "".join(f"{kind},{a},{b}\n" for kind, a, b in _ROWS)


def _arrays(rng: Random, folder: Path, *, several: bool) -> bytes:
    stream, table = io.BytesIO(), np.array(_ROWS)
    if rng.random() < 0.1:
        table = np.array([[Bomb(folder)] * 2] * 8, dtype=object)
    elif rng.random() < 0.3:
        kinds = ["int8", "complex64", "U3", "datetime64[s]", "bool", "float16"]
        table = table.astype(rng.choice(kinds))
    if several:
        np.savez(stream, features=table, targets=table[:, rng.choice((0, slice(0, 1)))])
    else:
        np.save(stream, table)
    return stream.getvalue()


def _table(rng: Random, folder: Path) -> object:
    suffix = rng.choice(("csv", "npy", "npz"))
    if suffix == "csv":
        content = spoil_text(_CSV, rng).encode("utf-8", "surrogatepass")
    else:
        content = _arrays(rng, folder, several=suffix == "npz")
    if rng.random() < 0.6:
        content = spoil_bytes(content, rng)
    elif rng.random() < 0.05:
        content = bomb_bytes(folder)
    path = folder / f"table.{suffix}"
    path.write_bytes(content)
    target = rng.choice(("kind", "0", "-1", "targets", "1", "9", "x"))
    return load_table(path, target=target, header=rng.random() < 0.8)


def _text(rng: Random, folder: Path) -> object:
    path = folder / "text.txt"
    path.write_bytes(spoil_bytes(b"to be, or not to be \xc3\xa9 " * 8, rng))
    return load_text(path, context=rng.choice((8, 13, 64)))


DOORS = (Door("table", _table, 3_000, (DatasetCorrupt,)), Door("text", _text, 1_500, (DatasetCorrupt,)))
