"""Tiny data sets in the formats that the real ones are published in."""

import gzip
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esper.tolaria.data.images import IdxSet

Bytes = NDArray[np.uint8]

IDX_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


def idx_bytes(array: Bytes) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def small(source: IdxSet) -> IdxSet:
    return replace(source, train=130, test=30)


def write_idx(directory: Path, *, packed: bool, seed: int = 0) -> None:
    """130 training and 30 test pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for stem, count in zip(IDX_STEMS, (130, 130, 30, 30), strict=True):
        shape = (count, 28, 28) if "images" in stem else (count,)
        content = idx_bytes(rng.integers(0, 256 if "images" in stem else 10, shape, dtype=np.uint8))
        name = f"{stem}.gz" if packed else stem
        (directory / name).write_bytes(gzip.compress(content) if packed else content)


def cifar_batch(number: int, per_batch: int) -> tuple[Bytes, Bytes]:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
    return pixels, rng.integers(0, 10, per_batch, dtype=np.uint8)


def cifar_binary(per_batch: int) -> dict[str, bytes]:
    contents = {}
    for number, name in enumerate(CIFAR_BATCHES):
        pixels, labels = cifar_batch(number, per_batch)
        contents[f"{name}.bin"] = np.concatenate([labels[:, None], pixels], 1).tobytes()
    return contents


def cifar_python(per_batch: int) -> dict[str, bytes]:
    contents = {}
    for number, name in enumerate(CIFAR_BATCHES):
        pixels, labels = cifar_batch(number, per_batch)
        contents[name] = python2_pickle(
            {b"data": pixels, b"labels": labels.tolist(), b"batch_label": name.encode()}
        )
    return contents


def python2_pickle(value: object) -> bytes:
    """A pickle as Python 2 with its NumPy wrote them, which is how CIFAR-10 was published."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"(" + b"".join(map(_opcodes, value)) + b"l"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_opcodes, value)) + b"t"
    if isinstance(value, dict):
        return b"(" + b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items()) + b"d"
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _opcodes((0,)) + _opcodes(b"b") + b"tR"
    )
    dtype = b"cnumpy\ndtype\n" + _opcodes((b"u1", 0, 1)) + b"R"
    dtype += b"(" + _opcodes(3) + _opcodes(b"|") + b"NNN" + _opcodes(-1) + _opcodes(-1) + _opcodes(0) + b"tb"
    state = b"(" + _opcodes(1) + _opcodes(value.shape) + dtype + b"I00\n" + _opcodes(value.tobytes()) + b"tb"
    return empty + state


def write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def write_archive(archive: Path, folder: str, contents: dict[str, bytes]) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as packed:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))


def write_csv(path: Path, rows: int = 120, seed: int = 0) -> None:
    """Three columns of numbers and one of two names that follows from the first."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(3, 2, (rows, 3))
    lines = ["width,height,weight,kind"]
    lines += [f"{a:.4f},{b:.4f},{c:.4f},{'big' if a > 3 else 'small'}" for a, b, c in numbers]
    path.write_text("\n".join(lines) + "\n")


def write_text(path: Path, characters: int = 4000, seed: int = 0) -> None:
    letters = np.random.default_rng(seed).choice(list("abcde \n"), characters)
    path.write_text("".join(letters))
