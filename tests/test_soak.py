"""The soak itself: a fault of each of the first kinds, and a comparison that notices the last bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from soak import same

ROOT = Path(__file__).parents[1]


def test_the_comparison_sees_a_bit() -> None:
    state = {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3}}
    assert same(state, {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3}})
    assert not same(state, {"a": [torch.tensor(1.0 + 2**-23), float("nan")], "b": {"c": 3}})
    assert not same(state, {"a": [torch.tensor(1.0), float("nan")], "b": {"c": 3.0}})


@pytest.mark.slow
def test_killed_trainings_end_as_undisturbed_ones() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--count", "2", "--seed", "1"]
    subprocess.run(command, check=True, timeout=1200)
