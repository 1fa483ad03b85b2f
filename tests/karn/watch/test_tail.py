"""Only whole lines, each once, wherever the file was cut when it was looked at."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.karn.watch import state as tails
from esper.karn.watch.state import LineTail


def read(tail: LineTail, path: Path) -> list[tuple[int, bytes]]:
    """(offset, line) of what is new."""
    found = []
    with path.open("rb", buffering=0) as file:
        tail.began_anew(file)
        for offset, lines in tail.read(file):
            for line in lines:
                found.append((offset, line))
                offset += len(line) + 1
    return found


def test_what_is_added_is_read_once(tmp_path: Path) -> None:
    path, tail = tmp_path / "events.jsonl", LineTail()
    path.write_bytes(b"one\ntwo\nthr")
    assert read(tail, path) == [(0, b"one"), (4, b"two")]
    assert read(tail, path) == []
    with path.open("ab") as file:
        file.write(b"ee\n\nfour\n")
    assert read(tail, path) == [(8, b"three"), (14, b""), (15, b"four")]
    assert read(tail, path) == []


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")), max_size=30),
    cuts=st.lists(st.integers(0, 1200), max_size=6),
    piece=st.integers(1, 64),
)
def test_any_way_of_writing_and_reading_gives_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cuts: list[int], piece: int
) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    path, tail = tmp_path_factory.mktemp("tail") / "file", LineTail()
    found: list[tuple[int, bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "PIECE", piece)
        for cut in [*sorted(cuts), len(whole)]:
            path.write_bytes(whole[:cut]) if not path.exists() else _append(path, whole, cut)
            found += read(tail, path)
    assert [line for _, line in found] == lines
    assert all(whole[offset : offset + len(line) + 1] == line + b"\n" for offset, line in found)


def _append(path: Path, whole: bytes, cut: int) -> None:
    with path.open("ab") as file:
        file.write(whole[path.stat().st_size : cut])


def test_another_file_or_a_shorter_one_begins_anew(tmp_path: Path) -> None:
    path, tail = tmp_path / "file", LineTail()
    path.write_bytes(b"one\ntwo\n")
    read(tail, path)
    path.write_bytes(b"uno\n")  # cut and rewritten
    assert read(tail, path) == [(0, b"uno")]
    other = tmp_path / "other"
    other.write_bytes(b"eins\nzwei\n")
    other.replace(path)  # longer, but another file
    assert read(tail, path) == [(0, b"eins"), (5, b"zwei")]


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "LONGEST_LINE", 100)
    monkeypatch.setattr(tails, "PIECE", 16)
    path, tail = tmp_path / "file", LineTail()
    path.write_bytes(b"before\n" + b"x" * 1000 + b"\nafter\n")
    assert [line for _, line in read(tail, path)] == [b"before", b"after"]
    assert tail.too_long == 1
    with path.open("ab") as file:
        file.write(b"more\n")
    assert read(tail, path) == [(path.stat().st_size - 5, b"more")]
