"""The soak itself: a fault of each of the first kinds, and a comparison that notices the last bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from soak import ERROR, FAULTS, REFUSED, Failure, require_end, same, soak, started

ROOT = Path(__file__).parents[1]


def test_the_comparison_sees_a_bit() -> None:
    state = {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3}}
    assert same(state, {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3}})
    assert not same(state, {"a": [torch.tensor(1.0 + 2**-23), float("nan")], "b": {"c": 3}})
    assert not same(state, {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3.0}})


def test_a_disturbed_training_ends_in_nothing_but_an_error_that_names_a_file(tmp_path: Path) -> None:
    require_end(started(os._exit, 0), tmp_path)
    with pytest.raises(Failure, match="exit code 1"):
        require_end(started(os._exit, 1), tmp_path)
    (tmp_path / ERROR).write_text("the disk is full")
    with pytest.raises(Failure, match="names no file: the disk is full"):
        require_end(started(os._exit, REFUSED), tmp_path)
    (tmp_path / ERROR).write_text(f"{tmp_path / 'soak' / 'events.jsonl'} cannot be written")
    require_end(started(os._exit, REFUSED), tmp_path)


def test_a_small_count_tries_each_kind_of_fault_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FAULTS:
        monkeypatch.setitem(FAULTS, name, lambda *_: 0)
    assert [tally.tried for tally in soak(len(FAULTS) + 1, seed=0).values()] == [2] + [1] * (len(FAULTS) - 1)


@pytest.mark.slow
def test_disturbed_trainings_end_as_undisturbed_ones(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--count", "5", "--seed", "1"]
    subprocess.run([*command, "--out", str(tmp_path / "soak.json")], check=True, timeout=1200)
    assert (tmp_path / "soak.json").is_file()
