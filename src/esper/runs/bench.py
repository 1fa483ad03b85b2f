"""`esper.bench`: arms compared on held-out hosts, with rows and a record in a folder, as `esper bench` makes them."""

import math
from collections.abc import Callable
from pathlib import Path

from esper.benchmark import (
    BenchPlan,
    BenchProgress,
    BenchRequest,
    BenchResult,
    RowStore,
    plan_bench,
    read_bench,
)
from esper.benchmark.record import merge_record, record_of
from esper.benchmark.runner import run_bench
from esper.nissa import collect_provenance


def bench(
    out: Path | str,
    request: BenchRequest = BenchRequest(),  # noqa: B008  frozen
    *,
    processes: int = 1,
    minutes: float = math.inf,
    progress: Callable[[BenchProgress], None] = lambda _: None,
) -> BenchResult | None:
    """Play what is asked for into the folder `out`, and read it back; None if it was stopped before the end.

    What is there already is not played again, so that a bench which was stopped goes on. Over several processes the
    script that calls this needs an `if __name__ == "__main__":`.
    """
    stopped = play(plan_bench(request), Path(out), processes=processes, minutes=minutes, progress=progress)
    return read_bench(Path(out)) if stopped is None else None


def play(
    plan: BenchPlan,
    out: Path,
    *,
    processes: int,
    minutes: float,
    progress: Callable[[BenchProgress], None],
) -> str | None:
    """Write down what the benchmark is, and play it; returns what stopped it, if anything did."""
    seeds = {"first": plan.first_seed, "hosts": plan.seeds}
    provenance = collect_provenance(seeds=seeds, device=plan.device, precision="fp32")
    store = RowStore(out)
    merge_record(out, record_of(plan, provenance.model_dump(mode="json")))
    return run_bench(plan, store, processes=processes, minutes=minutes, tell=progress)
