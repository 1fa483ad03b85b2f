"""A command that is silent for long is not: lines of its own, lines between, and its exit code."""

import re
import sys
from pathlib import Path

import pytest

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
    first, *between, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("begins", "ends")
    assert between
    assert all(re.fullmatch(r"   0 s, 3 MB in .*", line) for line in between)


def test_a_folder_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert megabytes(tmp_path / "later") == 0
