"""A command that is silent for long is not: lines of its own, lines between, and its exit code."""

import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import audibly
from audibly import megabytes, run

CODE = """
import sys, time
print("begins", flush=True)
time.sleep(0.4)
print("ends", file=sys.stderr)
sys.exit(3)
"""


def test_silence_is_filled_and_the_exit_code_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "unpacked").write_bytes(b"0" * 2_600_000)
    assert run(tmp_path, [sys.executable, "-I", "-S", "-c", CODE], quiet_seconds=0.15) == 3
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-1] == "ends"
    assert lines[lines.index("begins") + 1 : -1]  # it may be silent as it starts, too
    first, *others = [line for line in lines if line not in ("begins", "ends")]
    assert re.fullmatch(r" +\d+ s, 3 MB in .*(?<!works)", first)
    again = re.compile(
        rf" +\d+ s, {re.escape(first.partition(', ')[2])}, nothing new: it downloads, or works"
    )
    assert all(map(again.fullmatch, others))


def test_a_folder_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert megabytes(tmp_path / "later") == 0


def test_output_that_is_no_text_is_passed_on_too(tmp_path: Path) -> None:
    """In a process of its own, which may not hang."""
    command = [sys.executable, "-I", "-S", "-c", r"import os; os.write(1, b'caf\xe9\nends\n')"]
    done = subprocess.run(
        [sys.executable, audibly.__file__, str(tmp_path), *command],
        capture_output=True,
        encoding="utf-8",
        env={"PYTHONUTF8": "1"},
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == ["caf\N{REPLACEMENT CHARACTER}", "ends"]


def test_the_end_is_told_even_where_reading_fails() -> None:
    def failing() -> Iterator[str]:
        yield "begins"
        raise OSError("gone")

    lines: queue.Queue[str | None] = queue.Queue()
    with pytest.raises(OSError, match="gone"):
        audibly._pass_on(failing(), lines)
    assert [lines.get_nowait(), lines.get_nowait()] == ["begins", None]


def test_a_pipe_that_is_closed_while_it_is_read_ends_the_reading() -> None:
    """Ctrl-C closes it under the thread."""

    def closed() -> Iterator[str]:
        yield "begins\n"
        raise ValueError("I/O operation on closed file")

    lines: queue.Queue[str | None] = queue.Queue()
    audibly._pass_on(closed(), lines)
    assert [lines.get(), lines.get()] == ["begins\n", None]
