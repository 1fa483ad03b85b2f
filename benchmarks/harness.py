"""What the benchmarks share: interleaved timing, a printed table, a JSON file beside it."""

import argparse
import ctypes
import ctypes.util
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, str | float | int]


def options(description: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the repetitions, to see that it runs"
    )
    return parser


def arguments(description: str) -> argparse.Namespace:
    """What was given to a benchmark that takes nothing else."""
    return options(description).parse_args()


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks for the next forward instead of unmapping them, until the process ends."""
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def interleaved_seconds(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each candidate, one call of each a round, so that all meet the same weather.

    The order turns around every round: nobody always comes first. `time.process_time` as a clock does not count the
    time of other processes.
    """
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(-warmup, rounds):
        for name in names if index % 2 else reversed(names):
            began = clock()
            candidates[name]()
            elapsed = clock() - began
            if index >= 0:
                seconds[name].append(elapsed)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median of the paired ratios with a 95 % bootstrap interval."""
    ratios = torch.tensor([one / other for one, other in zip(ours, theirs, strict=True)], dtype=torch.float64)
    draws = torch.randint(len(ratios), (2000, len(ratios)), generator=torch.Generator().manual_seed(0))
    medians = ratios[draws].median(dim=1).values
    low, high = torch.quantile(medians, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return ratios.median().item(), low, high


def median_milliseconds(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


def report(name: str, title: str, rows: Sequence[Row], *, out: Path | None = None) -> None:
    """Print the rows as a table and write them to `out`, by default results/<name>.json."""
    columns = list(rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    out = RESULTS / f"{name}.json" if out is None else out
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }
    document = {"benchmark": name, "title": title, "machine": machine, "rows": list(rows)}
    out.write_text(json.dumps(document, indent=2) + "\n")


def _cell(value: str | float | int) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the latter is NaN of a single value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error
