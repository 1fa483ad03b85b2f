"""IDX files, the format of MNIST and Fashion-MNIST, plain or compressed by gzip."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from esper.tolaria.data.errors import DatasetCorrupt
from esper.tolaria.data.images import Bytes, Pictures
from esper.tolaria.data.locations import PublishedFile, data_directory, missing

_UNSIGNED_BYTE = 0x08
_SIDE = 28


@dataclass(frozen=True, slots=True)
class IdxSet:
    """A data set of 28 x 28 pictures in four IDX files."""

    name: str
    files: tuple[PublishedFile, PublishedFile, PublishedFile, PublishedFile]
    """training images, training labels, test images, test labels"""
    train: int = 60_000
    test: int = 10_000
    classes: int = 10


def _published(name: str, *files: tuple[int, str]) -> IdxSet:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    first, second, third, fourth = (
        PublishedFile(f"{stem}-ubyte.gz", size, md5) for stem, (size, md5) in zip(names, files, strict=True)
    )
    return IdxSet(name, (first, second, third, fourth))


MNIST = _published(
    "mnist",
    (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
)
FASHION_MNIST = _published(
    "fashion_mnist",
    (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
)


def read_idx_set(source: IdxSet) -> Pictures:
    directory = data_directory(source.name)
    paths = [_present(directory, file.name) for file in source.files]
    lacking = [file.name for file, path in zip(source.files, paths, strict=True) if path is None]
    if lacking:
        raise missing(source.name, directory, lacking, [source.files], "or the same without .gz, unpacked")
    found = [path for path in paths if path is not None]
    images, labels = (source.train, _SIDE, _SIDE), (source.train,)
    test_images, test_labels = (source.test, _SIDE, _SIDE), (source.test,)
    train_x, train_y, test_x, test_y = (
        read_idx(path, shape)
        for path, shape in zip(found, (images, labels, test_images, test_labels), strict=True)
    )
    for path, some in ((found[1], train_y), (found[3], test_y)):
        require_labels(path, some, source.classes)
    return Pictures(train_x[:, None], train_y, test_x[:, None], test_y)


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The unsigned bytes in an IDX file, which must have exactly this shape."""
    content = _unpacked(path)
    magic = bytes((0, 0, _UNSIGNED_BYTE, len(shape)))
    if content[:4] != magic:
        raise DatasetCorrupt(
            path, found=f"magic {content[:4].hex()}", expected=f"{magic.hex()} (IDX of bytes)"
        )
    header = 4 + 4 * len(shape)
    if len(content) < header:
        raise DatasetCorrupt(path, found=f"{len(content)} bytes", expected=f"a header of {header}")
    stated = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if stated != shape:
        raise DatasetCorrupt(path, found=f"dimensions {stated}", expected=f"{shape}")
    if len(content) != header + int(np.prod(shape)):
        raise DatasetCorrupt(
            path, found=f"{len(content):,} bytes", expected=f"{header + int(np.prod(shape)):,} for {shape}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def require_labels(path: Path | str, labels: Bytes, classes: int) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        raise DatasetCorrupt(
            path, found=f"label {labels[wrong[0]]} at sample {wrong[0]}", expected=f"labels 0..{classes - 1}"
        )


def _present(directory: Path, packed: str) -> Path | None:
    for name in (packed.removesuffix(".gz"), packed):
        if (directory / name).is_file():
            return directory / name
    return None


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DatasetCorrupt(
            path,
            found=f"{len(content):,} bytes that do not unpack ({error})",
            expected="a complete gzip file",
        ) from None
