"""How fast seeds should learn in a frozen network: multiples of its head's learning rate, on targets of `adapt`.

For each choice of seeds (`adapt_choices.py`) and the even spread, each multiple: test accuracy minus rent over the
head alone on the same targets and hosts, beside LoRA of rank 4 and fine-tuning. The targets are no other study's.

    python benchmarks/study_seed_rate.py --workers 2

is half an hour of two cores; `--targets 2 --rates 1 --choices small@0` is to see it run.
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from adapt_choices import SINGLES, TOGETHER
from esper.simic.env.making import use_one_thread
from esper.tolaria.tasks import forget, register, task
from harness import RESULTS, Row, mean_and_error, report
from spreading import Job, Spread
from study_adapt import NEVER, SPREAD, Life, drawn, group_of, play

DRAWS = 31_262
HOST = 9000
HOSTS_TOGETHER = 6
RIVALS = ("lora 4, lr 0.005", "lora 4, lr 0.01", "fine-tuning, moving statistics, lr 0.002")
CHOICES = (
    SPREAD,
    "small@0",
    "small@1",
    "large@0",
    "large@1",
    "small@0 + small@1",
)


@dataclass(frozen=True, slots=True)
class RatedJob(Job):
    """A job in which seeds learn at this multiple of the head's rate."""

    rate: float | None = None


def play_rated(job: Job) -> list[Life]:
    """One life for each host."""
    if not isinstance(job, RatedJob) or job.rate is None:
        return play(job)
    row = task("adapt")
    forget(row.name)
    register(replace(row, seed_lr_multiplier=job.rate))
    try:
        return [replace(life, arm=f"{life.arm} x{job.rate:g}") for life in play(job)]
    finally:
        forget(row.name)
        register(row)


def rows_of(lives: Sequence[Life], cases: Sequence[str]) -> list[Row]:
    """An arm a row: over the head alone, on all targets and by what the shift changes; and hosts that were lost."""
    known = {(life.arm, life.case): life for life in lives}
    groups = {case: group_of(case) for case in cases}
    rows: list[Row] = []
    for arm in sorted({life.arm for life in lives}):
        played = [known[arm, case] for case in cases]
        gains = {life.case: life.test - known[NEVER, life.case].test for life in played}
        mean, error = mean_and_error(list(gains.values()))
        of_group: dict[str, list[float]] = defaultdict(list)
        for case, gain in gains.items():
            of_group[groups[case]].append(gain)
        row: dict[str, str | float | int] = {
            "arm": arm,
            "points over the head alone": f"{100 * mean:+.2f} ± {100 * error:.2f}",
            "trained": f"{statistics.fmean(life.trained for life in played if not life.condemned):,.0f}",
            "hosts lost": sum(life.condemned for life in played),
        }
        rows.append(row | {name: f"{100 * statistics.fmean(some):+.1f}" for name, some in of_group.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=30, help="that are drawn (%(default)s)")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.5, 1.0, 3.0], help="multiples (%(default)s)"
    )
    parser.add_argument("--choices", nargs="+", default=list(CHOICES), choices=[SPREAD, *SINGLES, *TOGETHER])
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON (%(default)s)")
    options = parser.parse_args()
    use_one_thread()
    cases, epochs = drawn(DRAWS, options.targets), task("adapt").epochs
    hosts = [(case, HOST) for case in cases]
    together = [tuple(hosts[at : at + HOSTS_TOGETHER]) for at in range(0, len(hosts), HOSTS_TOGETHER)]
    jobs = [Job(arm, some, options.device, epochs) for some in together for arm in (NEVER, *RIVALS)]
    jobs += [
        RatedJob(choice, some, options.device, epochs, rate)
        for some, choice, rate in product(together, options.choices, options.rates)
    ]
    with Spread(play_rated, options.workers, math.inf) as spread:
        rows = rows_of(spread.results(jobs, f"{len(cases)} targets"), cases)
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"Seeds at multiples of the head's learning rate, on {len(cases)} targets with a host each"
    report("seed_rate", title, rows, out=options.out / "seed_rate.json")


if __name__ == "__main__":
    main()
