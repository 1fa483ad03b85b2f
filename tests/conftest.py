"""What every test process needs before torch computes anything."""

import gc
import os
from collections import Counter

# Some virtual machines advertise AMX and then refuse its tiles, after which every oneDNN kernel fails.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

from esper.tolaria.worlds.worker import PRELOADED

gc.disable()  # until everything is imported and collected: a third of the time that takes
torch.set_num_threads(1)
PRELOADED += [
    "esper.grower",
    "torch.distributed.fsdp",
    "sklearn.datasets",
]  # what processes of tests import as well


def pytest_collection_finish() -> None:
    """From here on there is garbage to collect; modules and tests themselves are never."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_unconfigure() -> None:
    """Modules go in order when the process ends; frozen ones would be reported as leaks by their libraries."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, a line a reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(each.longrepr[2]).removeprefix("Skipped: ") for each in skipped)
    if reasons:
        terminalreporter.section("skipped", sep="-")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
