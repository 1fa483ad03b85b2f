"""Texts as windows of characters and the characters after them."""

from pathlib import Path

import pytest

from esper.tolaria.data import DatasetCorrupt, DatasetMissing
from esper.tolaria.data.files import load_text
from fake_datasets import write_text


def test_a_known_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("cab" * 40, encoding="utf-8")
    data = load_text(tmp_path / "t.txt", context=4)
    train = data.phases[0].train
    assert data.classes == 3
    assert train.inputs[:2].tolist() == [[2, 0, 1, 2], [0, 1, 2, 0]]
    assert train.targets[:2].tolist() == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert (len(train), len(data.phases[0].validation), len(data.test)) == (23, 2, 2)


def test_every_target_is_the_next_character_and_stretches_do_not_touch(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + n) for n in range(1000))  # every character once, beyond ASCII
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    data = load_text(tmp_path / "t.txt", context=7)
    splits = (data.phases[0].train, data.phases[0].validation)
    for split in splits:
        assert (split.targets == split.inputs + 1).all()
    highest, lowest = splits[0].targets.max(), splits[1].inputs.min()
    assert highest < 800 <= lowest
    assert splits[1].targets.max() < 900
    assert data.phases[-1].validation.commonest_share == pytest.approx(1 / splits[1].targets.numel())


def test_the_same_text_gives_the_same_data(tmp_path: Path) -> None:
    write_text(tmp_path / "t.txt")
    assert (
        load_text(tmp_path / "t.txt", context=8).digest() == load_text(tmp_path / "t.txt", context=8).digest()
    )


def test_bad_texts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    with pytest.raises(DatasetMissing, match=r"text.path: there is no file \S*t.txt"):
        load_text(path, context=8)
    path.write_bytes(b"good \xff bad")
    with pytest.raises(DatasetCorrupt, match="byte 0xff at 5, expected UTF-8"):
        load_text(path, context=8)
    path.write_text("ab" * 49)
    with pytest.raises(DatasetCorrupt, match="98 characters, expected at least 100 for a context of 8"):
        load_text(path, context=8)
    path.write_text("ab" * 50)
    load_text(path, context=8)
    path.write_text("aaaa" * 50)
    with pytest.raises(DatasetCorrupt, match="only the character 'a'"):
        load_text(path, context=8)
