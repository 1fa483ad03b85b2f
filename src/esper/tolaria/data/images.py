"""From published pictures in bytes to a task's splits."""

import gzip
import io
import math
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
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

# Where data sets lie on disk, and what to say when they do not.


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file as its authors publish it."""

    name: str
    size: int
    """bytes"""
    md5: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} bytes, md5 {self.md5})"


def data_directory(dataset: str) -> Path:
    """$ESPER_DATA/<dataset>, or ~/.cache/esper/data/<dataset>."""
    root = os.environ.get("ESPER_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "esper" / "data") / dataset


def missing(
    dataset: str, directory: Path, lacking: Iterable[str], ways: Iterable[Iterable[PublishedFile]], also: str
) -> DatasetMissing:
    """The error for a data set of which files are lacking; `ways` are the sets of files that would do."""
    choices = "\n  or\n".join("\n".join(f"  {file}" for file in way) for way in ways)
    return DatasetMissing(
        f"the data set {dataset} is not in {directory}: there is no {' and no '.join(lacking)}. Esper downloads "
        f"nothing. Put there\n{choices}\n({also}), or set the environment variable ESPER_DATA to a directory that "
        f"holds them in a folder named {dataset}."
    )


Bytes = NDArray[np.uint8]


class Pictures(NamedTuple):
    """A published data set with its own split."""

    train: Bytes
    """(sample, channel, height, width)"""
    train_labels: Bytes
    test: Bytes
    test_labels: Bytes


def picture_data(pictures: Pictures, *, validation: int, classes: int, size: int | None = None) -> TaskData:
    """Validation is a stratified part of the published training set; channels are standardised by what remains.

    size  so many of what remains, stratified too; None is all
    """
    labels = pictures.train_labels.astype(np.int64)
    kept, held_out = stratified_splits(labels, (len(labels) - validation, validation), seed=0)
    if size is not None and size < len(kept):
        fewer, _ = stratified_splits(labels[kept], (size, len(kept) - size), seed=0)
        kept = kept[fewer]
    train = pictures.train[kept]
    mean, deviation = channel_statistics(train)

    def split(pixels: Bytes, targets: NDArray[np.int64]) -> Split:
        standard = torch.from_numpy(pixels.astype(np.float32)).sub_(mean).div_(deviation)
        return Split(standard, torch.from_numpy(targets))

    phase = Phase(0, split(train, labels[kept]), split(pictures.train[held_out], labels[held_out]))
    test = split(pictures.test, pictures.test_labels.astype(np.int64))
    return TaskData((phase,), SealedTest(test), classes)


def channel_statistics(pixels: Bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """(1, channel, 1, 1) mean and deviation, from sums of whole numbers: the same to the bit on any machine."""
    means, deviations = [], []
    for channel in np.moveaxis(pixels, 1, 0):
        count = channel.size
        total = int(channel.sum(dtype=np.int64))
        squares = int(np.square(channel, dtype=np.uint16).sum(dtype=np.int64))
        means.append(total / count)
        deviations.append(
            math.sqrt(count * squares - total**2) / count or 1.0
        )  # 1: a channel that never varies
    return torch.tensor(means).view(1, -1, 1, 1), torch.tensor(deviations).view(1, -1, 1, 1)


# IDX files, the format of MNIST and Fashion-MNIST, plain or compressed by gzip.


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


# CIFAR-10, from the binary or the Python archive or what was extracted from them.


_NAME = "cifar10"
_CLASSES = 10
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BATCHES = (*_TRAIN_BATCHES, "test_batch")

BINARY_ARCHIVE = PublishedFile("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530")
PYTHON_ARCHIVE = PublishedFile("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a")

Batch = tuple[Bytes, Bytes]
"""(sample, 3072) pixels and (sample,) labels"""


@dataclass(frozen=True, slots=True)
class _Form:
    """One of the two ways the data set is published."""

    archive: PublishedFile
    folder: str
    suffix: str
    decode: Callable[[str, bytes, int], Batch]

    def batch_names(self) -> list[str]:
        return [f"{name}{self.suffix}" for name in _BATCHES]


def read_cifar10(per_batch: int = 10_000) -> Pictures:
    """Binary before Python, extracted before packed: the first that is there is read."""
    directory = data_directory(_NAME)
    for form in _FORMS:
        folder, archive = directory / form.folder, directory / form.archive.name
        if folder.is_dir():
            return _pictures(form, _from_folder(form, folder), folder, per_batch)
        if archive.is_file():
            return _pictures(form, _from_archive(form, archive), archive, per_batch)
    raise missing(
        _NAME,
        directory,
        [BINARY_ARCHIVE.name, PYTHON_ARCHIVE.name],
        [[BINARY_ARCHIVE], [PYTHON_ARCHIVE]],
        f"or a folder {_FORMS[0].folder} or {_FORMS[1].folder} extracted from one of them",
    )


def _pictures(form: _Form, contents: list[bytes], home: Path, per_batch: int) -> Pictures:
    batches = []
    for name, content in zip(form.batch_names(), contents, strict=True):
        pixels, labels = form.decode(f"{home}/{name}", content, per_batch)
        require_labels(f"{home}/{name}", labels, _CLASSES)
        batches.append((pixels.reshape(-1, *_SHAPE), labels))
    *train, test = batches
    return Pictures(
        np.concatenate([pixels for pixels, _ in train]), np.concatenate([some for _, some in train]), *test
    )


def _from_folder(form: _Form, folder: Path) -> list[bytes]:
    for name in form.batch_names():
        if not (folder / name).is_file():
            raise DatasetCorrupt(folder, found=f"no file {name}", expected=", ".join(form.batch_names()))
    return [(folder / name).read_bytes() for name in form.batch_names()]


def _from_archive(form: _Form, archive: Path) -> list[bytes]:
    """Read in memory, member by member, by exact name: nothing is extracted to disk."""
    wanted = {f"{form.folder}/{name}": "" for name in form.batch_names()}
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                if member.name in wanted and member.isfile():
                    opened = members.extractfile(member)
                    assert opened is not None  # it is a file
                    contents[member.name] = opened.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        size = f"{archive.stat().st_size:,} bytes that do not unpack ({error})"
        raise DatasetCorrupt(archive, found=size, expected=str(form.archive)) from None
    for name in wanted:
        if name not in contents:
            raise DatasetCorrupt(archive, found=f"no member {name}", expected=str(form.archive))
    return [contents[name] for name in wanted]


def _decode_binary(file: str, content: bytes, per_batch: int) -> Batch:
    """Records of one label and 3,072 pixels."""
    if len(content) != per_batch * (1 + _PIXELS):
        raise DatasetCorrupt(
            file,
            found=f"{len(content):,} bytes",
            expected=f"{per_batch * (1 + _PIXELS):,} ({per_batch:,} records of {1 + _PIXELS})",
        )
    records = np.frombuffer(content, np.uint8).reshape(per_batch, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


_RECONSTRUCT = np.empty(0).__reduce__()[
    0
]  # the function numpy's pickles name; its home moves between versions
_ADMITTED = MappingProxyType(
    {
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }
)


class _ArraysOnly(pickle.Unpickler):
    """Arrays, numbers, texts, lists and dicts; any other name in the file is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return _ADMITTED[module, name]


def _decode_python(file: str, content: bytes, per_batch: int) -> Batch:
    """A dict pickled by Python 2 with b"data" (sample, 3072) and b"labels"."""
    shape = (per_batch, _PIXELS)
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DatasetCorrupt(file, found=f"{error}", expected="a pickled dict with an array only") from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        found = f"keys {sorted(map(repr, batch))}" if isinstance(batch, dict) else type(batch).__name__
        raise DatasetCorrupt(file, found=found, expected="a dict with b'data' and b'labels'")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DatasetCorrupt(file, found=f"data of {found}", expected=f"uint8 {shape}")
    if (
        not isinstance(labels, list)
        or len(labels) != per_batch
        or any(type(one) is not int for one in labels)
    ):
        raise DatasetCorrupt(file, found="other labels", expected=f"a list of {per_batch:,} whole numbers")
    if not all(0 <= one < 256 for one in labels):
        raise DatasetCorrupt(file, found=f"labels {min(labels)}..{max(labels)}", expected="labels 0..9")
    return pixels, np.array(labels, np.uint8)


_FORMS = (
    _Form(BINARY_ARCHIVE, "cifar-10-batches-bin", ".bin", _decode_binary),
    _Form(PYTHON_ARCHIVE, "cifar-10-batches-py", "", _decode_python),
)
