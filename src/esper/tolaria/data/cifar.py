"""CIFAR-10, from the binary or the Python archive or what was extracted from them."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from esper.tolaria.data.errors import DatasetCorrupt
from esper.tolaria.data.idx import require_labels
from esper.tolaria.data.images import Bytes, Pictures
from esper.tolaria.data.locations import PublishedFile, data_directory, missing

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
