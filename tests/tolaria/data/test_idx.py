"""IDX files, whole and damaged."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.tolaria.data import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.images import (
    FASHION_MNIST,
    MNIST,
    Pictures,
    channel_statistics,
    picture_data,
    read_idx,
    read_idx_set,
)
from fake_datasets import IDX_STEMS, idx_bytes, small, write_idx

Damage = Callable[[bytes], bytes]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    return tmp_path / "mnist"


def test_plain_and_packed_files_read_the_same(home: Path) -> None:
    write_idx(home, packed=True)
    packed = read_idx_set(small(MNIST))
    for file in home.iterdir():
        file.unlink()
    write_idx(home, packed=False)
    plain = read_idx_set(small(MNIST))
    assert packed.train.shape == (130, 1, 28, 28)
    assert packed.test_labels.shape == (30,)
    assert all(np.array_equal(one, other) for one, other in zip(packed, plain, strict=True))


def test_a_known_file(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(bytes.fromhex("00000802 00000002 00000003 01 02 03 04 05 ff"))
    assert read_idx(path, (2, 3)).tolist() == [[1, 2, 3], [4, 5, 255]]


def test_a_missing_set_says_where_what_and_how(home: Path) -> None:
    with pytest.raises(DatasetMissing) as caught:
        read_idx_set(MNIST)
    said = str(caught.value)
    assert str(home) in said
    assert "ESPER_DATA" in said
    for file in MNIST.files:
        assert f"{file.name} ({file.size:,} bytes, md5 {file.md5})" in said


def test_only_what_is_lacking_is_called_lacking(home: Path) -> None:
    write_idx(home, packed=True)
    (home / f"{IDX_STEMS[1]}.gz").unlink()
    with pytest.raises(DatasetMissing, match=f"there is no {IDX_STEMS[1]}.gz. Esper downloads nothing"):
        read_idx_set(small(MNIST))


def test_without_the_variable_data_are_sought_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ESPER_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatasetMissing, match=str(tmp_path / ".cache/esper/data/fashion_mnist")):
        read_idx_set(FASHION_MNIST)


@pytest.mark.parametrize(
    ("damage", "found", "expected"),
    [
        (lambda content: content[:3], "magic 000008", "00000801"),
        (lambda content: b"\x00\x00\x0d" + content[3:], "magic 00000d01", "00000801"),
        (lambda content: content[:6], "6 bytes", "a header of 8"),
        (lambda content: content[:-1], "137 bytes", "138 for"),
        (lambda content: content + b"x", "139 bytes", "138 for"),
        (lambda content: content[:-1] + b"\x0a", "label 10 at sample 129", "labels 0..9"),
        (lambda _: idx_bytes(np.zeros(129, np.uint8)), r"dimensions \(129,\)", r"\(130,\)"),
        (lambda _: b"", "magic ", "00000801"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_is_named_with_found_and_expected(
    home: Path, damage: Damage, found: str, expected: str, packed: bool
) -> None:
    write_idx(home, packed=packed)
    victim = home / (IDX_STEMS[1] + (".gz" if packed else ""))
    content = victim.read_bytes()
    victim.write_bytes(gzip.compress(damage(gzip.decompress(content))) if packed else damage(content))
    with pytest.raises(DatasetCorrupt, match=f"{victim.name}: found {found}.*expected {expected}"):
        read_idx_set(small(MNIST))


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: b"no" + content[2:]])
def test_a_file_that_does_not_unpack_is_corrupt(home: Path, damage: Damage) -> None:
    write_idx(home, packed=True)
    victim = home / f"{IDX_STEMS[0]}.gz"
    victim.write_bytes(damage(victim.read_bytes()))
    with pytest.raises(DatasetCorrupt, match=r"do not unpack.*expected a complete gzip file"):
        read_idx_set(small(MNIST))


def test_fewer_samples_than_published_are_refused(home: Path) -> None:
    write_idx(home, packed=True)
    with pytest.raises(DatasetCorrupt, match=r"dimensions \(130, 28, 28\), expected \(60000, 28, 28\)"):
        read_idx_set(MNIST)


def test_statistics_are_of_the_training_split_and_exact() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 3, 5, 7), dtype=np.uint8)
    pixels[:, 2] = 9  # never varies
    mean, deviation = channel_statistics(pixels)
    np.testing.assert_allclose(mean.flatten(), pixels.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(deviation.flatten()[:2], pixels.std((0, 2, 3))[:2], rtol=1e-6)
    assert deviation.flatten()[2] == 1


def test_pictures_become_disjoint_standardised_splits() -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (100, 1, 5, 7), dtype=np.uint8)
    labels = np.arange(100, dtype=np.uint8) % 4
    data = picture_data(
        Pictures(pixels[:80], labels[:80], pixels[80:], labels[80:]), validation=20, classes=4
    )
    train, validation = data.phases[0].train, data.phases[0].validation
    assert (len(train), len(validation), len(data.test)) == (60, 20, 20)
    assert train.inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert train.inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert set(validation.targets.bincount().tolist()) == {5}
    joined = torch.cat([train.inputs, validation.inputs]).flatten(1)
    assert len(joined.unique(dim=0)) == 80


def test_fewer_pictures_have_the_same_validation_and_every_class() -> None:
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (100, 1, 3, 3), dtype=np.uint8)
    labels = np.arange(100, dtype=np.uint8) % 4
    pictures = Pictures(pixels[:80], labels[:80], pixels[80:], labels[80:])
    whole, part = (picture_data(pictures, validation=20, classes=4, size=size) for size in (None, 12))
    train = part.phases[0].train
    assert train.targets.bincount().tolist() == [3, 3, 3, 3]
    assert torch.equal(part.phases[0].validation.targets, whole.phases[0].validation.targets)
    assert train.inputs.mean().item() == pytest.approx(0, abs=1e-5)  # standardised by what is trained on
    assert len(picture_data(pictures, validation=20, classes=4, size=60).phases[0].train) == 60
