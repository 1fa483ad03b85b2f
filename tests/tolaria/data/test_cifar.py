"""CIFAR-10 from each of its published forms, and what is refused."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from esper.tolaria.data import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.images import read_cifar10
from fake_datasets import cifar_batch, cifar_binary, cifar_python, python2_pickle, write_archive, write_folder

PER_BATCH = 13
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"

Writer = Callable[[Path], None]
WRITERS: dict[str, Writer] = {
    "binary folder": lambda home: write_folder(home / BINARY, cifar_binary(PER_BATCH)),
    "binary archive": lambda home: write_archive(
        home / "cifar-10-binary.tar.gz", BINARY, cifar_binary(PER_BATCH)
    ),
    "python folder": lambda home: write_folder(home / PYTHON, cifar_python(PER_BATCH)),
    "python archive": lambda home: write_archive(
        home / "cifar-10-python.tar.gz", PYTHON, cifar_python(PER_BATCH)
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    return tmp_path / "cifar10"


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_same_pictures(home: Path, form: str) -> None:
    WRITERS[form](home)
    pictures = read_cifar10(PER_BATCH)
    expected = [cifar_batch(number, PER_BATCH) for number in range(6)]
    assert pictures.train.shape == (5 * PER_BATCH, 3, 32, 32)
    np.testing.assert_array_equal(
        pictures.train, np.concatenate([pixels for pixels, _ in expected[:5]]).reshape(-1, 3, 32, 32)
    )
    np.testing.assert_array_equal(pictures.train_labels, np.concatenate([some for _, some in expected[:5]]))
    np.testing.assert_array_equal(pictures.test.reshape(PER_BATCH, -1), expected[5][0])
    np.testing.assert_array_equal(pictures.test_labels, expected[5][1])


def test_a_missing_set_lists_both_archives(home: Path) -> None:
    with pytest.raises(DatasetMissing) as caught:
        read_cifar10()
    for part in (
        str(home),
        "ESPER_DATA",
        "cifar-10-binary.tar.gz (170,052,171 bytes, md5 c32a1d4ab5d03f1284b67883e8d87530)",
        "cifar-10-python.tar.gz (170,498,071 bytes, md5 c58f30108f718f92721af3b95e74349a)",
        BINARY,
        PYTHON,
    ):
        assert part in str(caught.value)


def test_a_record_too_few_or_a_label_too_high_is_named(home: Path) -> None:
    contents = cifar_binary(PER_BATCH)
    write_folder(home / BINARY, contents | {"data_batch_3.bin": contents["data_batch_3.bin"][:-1]})
    with pytest.raises(DatasetCorrupt, match=r"data_batch_3.bin: found 39,948 bytes, expected 39,949"):
        read_cifar10(PER_BATCH)
    write_folder(home / BINARY, contents | {"test_batch.bin": b"\x0b" + contents["test_batch.bin"][1:]})
    with pytest.raises(
        DatasetCorrupt, match=r"test_batch.bin: found label 11 at sample 0, expected labels 0..9"
    ):
        read_cifar10(PER_BATCH)


def test_a_folder_or_archive_that_lacks_a_batch_is_corrupt(home: Path) -> None:
    contents = cifar_binary(PER_BATCH)
    del contents["data_batch_2.bin"]
    write_archive(home / "cifar-10-binary.tar.gz", BINARY, contents)
    with pytest.raises(DatasetCorrupt, match=r"found no member cifar-10-batches-bin/data_batch_2.bin"):
        read_cifar10(PER_BATCH)
    write_folder(home / BINARY, contents)
    with pytest.raises(DatasetCorrupt, match=r"found no file data_batch_2.bin, expected data_batch_1.bin"):
        read_cifar10(PER_BATCH)


@pytest.mark.parametrize("kept", [0, 40, 0.5, 0.99])
def test_a_truncated_archive_is_corrupt(home: Path, kept: float) -> None:
    WRITERS["binary archive"](home)
    archive = home / "cifar-10-binary.tar.gz"
    content = archive.read_bytes()
    archive.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(DatasetCorrupt, match=r"cifar-10-binary.tar.gz: found"):
        read_cifar10(PER_BATCH)


class Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch attacked",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_names_anything_else_is_refused_unexecuted(
    home: Path, protocol: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    attack = pickle.dumps({b"data": Attack(), b"labels": []}, protocol=protocol)
    write_folder(home / PYTHON, cifar_python(PER_BATCH) | {"data_batch_1": attack})
    with pytest.raises(DatasetCorrupt, match=r"data_batch_1: found the name \S+\.(system|encode)"):
        read_cifar10(PER_BATCH)
    assert not (tmp_path / "attacked").exists()


PIXELS, LABELS = cifar_batch(0, PER_BATCH)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "found"),
        (b"\x80\x02garbage", "found"),
        (python2_pickle([1]), "found list, expected a dict"),
        (python2_pickle({b"data": PIXELS}), "found keys .*data.*expected a dict with b'data' and b'labels'"),
        (python2_pickle({b"data": 3, b"labels": []}), r"data of int, expected uint8 \(13, 3072\)"),
        (python2_pickle({b"data": PIXELS[1:], b"labels": []}), r"data of uint8 \(12, 3072\)"),
        (python2_pickle({b"data": PIXELS, b"labels": [1]}), "a list of 13 whole numbers"),
        (python2_pickle({b"data": PIXELS, b"labels": [b"x"] * 13}), "a list of 13 whole numbers"),
        (python2_pickle({b"data": PIXELS, b"labels": [-1] * 13}), r"labels -1\.\.-1"),
        (python2_pickle({b"data": PIXELS, b"labels": [10] * 13}), "label 10 at sample 0"),
    ],
)
def test_pickles_of_other_things_are_corrupt(home: Path, content: bytes, said: str) -> None:
    write_folder(home / PYTHON, cifar_python(PER_BATCH) | {"data_batch_4": content})
    with pytest.raises(DatasetCorrupt, match=f"data_batch_4: .*{said}"):
        read_cifar10(PER_BATCH)
