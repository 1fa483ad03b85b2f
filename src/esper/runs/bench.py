"""`esper.bench`: arms compared on held-out hosts, with rows and a record in a folder, as `esper bench` makes them."""

import math
from collections.abc import Callable
from pathlib import Path

from esper.benchmark import (
    BenchProgress,
    BenchRequest,
    BenchResult,
    PlanError,
    RowStore,
    plan_bench,
    read_bench,
    run_bench,
)
from esper.benchmark.record import merge_record, only_bench, record_of
from esper.nissa import collect_provenance
from esper.simic.env.making import use_one_thread
from esper.simic.offline.dataset import EPISODES_FOLDER
from esper.tolaria.worlds.cluster.connecting import require_cluster


def bench(
    directory: Path | str,
    request: BenchRequest = BenchRequest(),  # noqa: B008  frozen
    *,
    workers: int = 0,
    cluster: str | None = None,
    minutes: float = math.inf,
    record_episodes: bool = False,
    progress: Callable[[BenchProgress], None] = lambda _: None,
) -> BenchResult:
    """Play what is asked for into a folder; returns the result, whose `interrupted` says if it was stopped early.

    directory  rows that are there already are not played again, so that a bench which was stopped goes on; one
               process at a time
    request    what to compare, and on which hosts
    workers    processes to play in; 0 plays in this one. With some, the calling script needs an
               `if __name__ == "__main__":`
    cluster    a Ray cluster to play on: "local" starts one, "auto" joins that of this machine; or HOST:PORT. There,
               0 workers are as many as it has CPUs
    minutes    nothing is begun after so long
    progress   called with how far it is, after each part

    record_episodes  keep every episode that is played now in the folder `episodes`, as a data set (docs/offline.md)
    """
    if workers < 0:
        raise PlanError(f"workers is {workers}; expected a whole number >= 0")
    if cluster is not None:
        require_cluster(cluster, request.device)
    use_one_thread()
    directory, plan = Path(directory), plan_bench(request)
    seeds = {"first": plan.first_seed, "hosts": plan.seeds}
    provenance = collect_provenance(seeds=seeds, device=plan.device, precision="fp32")
    with only_bench(directory):
        merge_record(directory, record_of(plan, provenance.model_dump(mode="json")))
        stopped = run_bench(
            plan,
            RowStore(directory),
            workers=workers,
            cluster=cluster,
            minutes=minutes,
            episodes=directory / EPISODES_FOLDER if record_episodes else None,
            progress=progress,
        )
        return read_bench(directory, interrupted=stopped, partial=True)
