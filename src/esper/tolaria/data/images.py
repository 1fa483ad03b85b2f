"""Published sets of pictures, read from the files as their authors publish them: MNIST, Fashion-MNIST, CIFAR-10.

Nothing is downloaded. A set that is not there raises `DatasetMissing`, which lists the files and where they belong.
"""

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
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from esper.tolaria.data import DatasetCorrupt, DatasetMissing, Phase, SealedTest, Split, TaskData
from esper.tolaria.data.splits import stratified_splits

Bytes = NDArray[np.uint8]


# Files and splits


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file as its authors publish it."""

    name: str
    size: int
    """Size in bytes."""
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
    """The error for a data set of which files are lacking; each of `ways` is a set of files that is enough."""
    choices = "\n  or\n".join("\n".join(f"  {file}" for file in way) for way in ways)
    return DatasetMissing(
        f"the data set {dataset} is not in {directory}: there is no {' and no '.join(lacking)}. Esper downloads "
        f"nothing. Put there\n{choices}\n({also}), or set the environment variable ESPER_DATA to a directory that "
        f"holds them in a folder named {dataset}."
    )


class Pictures(NamedTuple):
    """A published data set with its own split."""

    train: Bytes
    """(sample, channel, height, width)"""
    train_labels: Bytes
    test: Bytes
    test_labels: Bytes


def picture_data(pictures: Pictures, *, validation: int, classes: int, size: int | None = None) -> TaskData:
    """Validation is a stratified part of the published training set; channels are standardised by what remains.

    size  training samples, a stratified part of what remains; None is all
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
        total = int(channel.sum(dtype=np.int64))
        squares = int(np.square(channel, dtype=np.uint16).sum(dtype=np.int64))
        means.append(total / channel.size)
        deviation = math.sqrt(channel.size * squares - total**2) / channel.size
        deviations.append(deviation or 1.0)  # 1: a channel that never varies
    return torch.tensor(means).view(1, -1, 1, 1), torch.tensor(deviations).view(1, -1, 1, 1)


# MNIST and Fashion-MNIST: IDX files, plain or compressed by gzip


_SIDE = 28


@dataclass(frozen=True, slots=True)
class IdxSet:
    """A data set of 28 x 28 pictures in four IDX files."""

    name: str
    files: tuple[PublishedFile, ...]
    """training images, training labels, test images, test labels"""
    train: int = 60_000
    """Training pictures."""
    test: int = 10_000
    """Test pictures."""
    classes: int = 10


def _published(name: str, *files: tuple[int, str]) -> IdxSet:
    """An `IdxSet` of files with these (size, md5)."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    named = zip(stems, files, strict=True)
    return IdxSet(name, tuple(PublishedFile(f"{stem}-ubyte.gz", *file) for stem, file in named))


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
    """The pictures of an IDX set in the data directory."""
    directory = data_directory(source.name)
    choices = [(directory / file.name.removesuffix(".gz"), directory / file.name) for file in source.files]
    found = [next((path for path in choice if path.is_file()), None) for choice in choices]
    paths = [path for path in found if path is not None]
    if len(paths) < len(choices):
        lacking = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
        raise missing(source.name, directory, lacking, [source.files], "or the same without .gz, unpacked")
    shapes = [shape for count in (source.train, source.test) for shape in ((count, _SIDE, _SIDE), (count,))]
    train_x, train_y, test_x, test_y = map(read_idx, paths, shapes)
    require_labels(paths[1], train_y, source.classes)
    require_labels(paths[3], test_y, source.classes)
    return Pictures(train_x[:, None], train_y, test_x[:, None], test_y)


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The unsigned bytes in an IDX file, which must have exactly this shape."""
    content = _unpacked(path)
    magic = bytes((0, 0, 0x08, len(shape)))  # 8: unsigned bytes
    if content[:4] != magic:
        raise DatasetCorrupt(path, f"magic {content[:4].hex()}", f"{magic.hex()} (IDX of bytes)")
    header = 4 + 4 * len(shape)
    if len(content) < header:
        raise DatasetCorrupt(path, f"{len(content)} bytes", f"a header of {header}")
    stated = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    if stated != shape:
        raise DatasetCorrupt(path, f"dimensions {stated}", f"{shape}")
    length = header + math.prod(shape)
    if len(content) != length:
        raise DatasetCorrupt(path, f"{len(content):,} bytes", f"{length:,} for {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def require_labels(path: Path | str, labels: Bytes, classes: int) -> None:
    """Raise DatasetCorrupt unless all labels are below `classes`."""
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        found = f"label {labels[wrong[0]]} at sample {wrong[0]}"
        raise DatasetCorrupt(path, found, f"labels 0..{classes - 1}")


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        found = f"{len(content):,} bytes that do not unpack ({error})"
        raise DatasetCorrupt(path, found, "a complete gzip file") from None


# CIFAR-10: the binary or the Python archive, or what was extracted from them


_CLASSES = 10
_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")

Batch = tuple[Bytes, Bytes]
"""(sample, 3072) pixels and (sample,) labels"""


@dataclass(frozen=True, slots=True)
class _Form:
    """One of the two ways the data set is published."""

    archive: PublishedFile
    folder: str
    suffix: str
    """Of the names of the batches."""
    decode: Callable[[str, bytes, int], Batch]
    """(file, content, samples of a batch) -> batch"""

    @property
    def batch_names(self) -> list[str]:
        return [f"{name}{self.suffix}" for name in _BATCHES]


def read_cifar10(per_batch: int = 10_000) -> Pictures:
    """The first form that is there: binary before Python, extracted before packed."""
    directory = data_directory("cifar10")
    for form in _FORMS:
        folder, archive = directory / form.folder, directory / form.archive.name
        if folder.is_dir():
            return _pictures(form, _from_folder(form, folder), folder, per_batch)
        if archive.is_file():
            return _pictures(form, _from_archive(form, archive), archive, per_batch)
    archives = [form.archive for form in _FORMS]
    folders = " or ".join(form.folder for form in _FORMS)
    raise missing(
        "cifar10",
        directory,
        [archive.name for archive in archives],
        [[archive] for archive in archives],
        f"or a folder {folders} extracted from one of them",
    )


def _pictures(form: _Form, contents: list[bytes], home: Path, per_batch: int) -> Pictures:
    batches = []
    for name, content in zip(form.batch_names, contents, strict=True):
        pixels, labels = form.decode(f"{home}/{name}", content, per_batch)
        require_labels(f"{home}/{name}", labels, _CLASSES)
        batches.append((pixels.reshape(-1, *_SHAPE), labels))
    *train, test = batches
    pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pictures(pixels, labels, *test)


def _from_folder(form: _Form, folder: Path) -> list[bytes]:
    for name in form.batch_names:
        if not (folder / name).is_file():
            raise DatasetCorrupt(folder, f"no file {name}", ", ".join(form.batch_names))
    return [(folder / name).read_bytes() for name in form.batch_names]


def _from_archive(form: _Form, archive: Path) -> list[bytes]:
    """Read in memory, member by member, by exact name: nothing is extracted to disk."""
    wanted = [f"{form.folder}/{name}" for name in form.batch_names]
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as members:
            for member in members:
                if member.name in wanted and member.isfile():
                    opened = members.extractfile(member)
                    assert opened is not None  # it is a file
                    contents[member.name] = opened.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        found = f"{archive.stat().st_size:,} bytes that do not unpack ({error})"
        raise DatasetCorrupt(archive, found, str(form.archive)) from None
    for name in wanted:
        if name not in contents:
            raise DatasetCorrupt(archive, f"no member {name}", str(form.archive))
    return [contents[name] for name in wanted]


def _decode_binary(file: str, content: bytes, per_batch: int) -> Batch:
    """Records of one label and 3,072 pixels."""
    size = 1 + _PIXELS
    if len(content) != per_batch * size:
        expected = f"{per_batch * size:,} ({per_batch:,} records of {size})"
        raise DatasetCorrupt(file, f"{len(content):,} bytes", expected)
    records = np.frombuffer(content, np.uint8).reshape(per_batch, size)
    return records[:, 1:], records[:, 0]


# The function that numpy's pickles name; its module moves between versions.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


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
        raise DatasetCorrupt(file, str(error), "a pickled dict with an array only") from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        found = f"keys {sorted(map(repr, batch))}" if isinstance(batch, dict) else type(batch).__name__
        raise DatasetCorrupt(file, found, "a dict with b'data' and b'labels'")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DatasetCorrupt(file, f"data of {found}", f"uint8 {shape}")
    numbers = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not numbers or len(labels) != per_batch:
        raise DatasetCorrupt(file, "other labels", f"a list of {per_batch:,} whole numbers")
    if not all(0 <= label < 256 for label in labels):
        raise DatasetCorrupt(file, f"labels {min(labels)}..{max(labels)}", "labels 0..9")
    return pixels, np.array(labels, np.uint8)


_FORMS = (
    _Form(
        PublishedFile("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar-10-batches-bin",
        ".bin",
        _decode_binary,
    ),
    _Form(
        PublishedFile("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
        "cifar-10-batches-py",
        "",
        _decode_python,
    ),
)
