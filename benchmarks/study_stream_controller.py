"""Does a trained controller close a loop on streams? It, and copies that lack something, on streams drawn anew.

    learned         as it was trained, greedy
    blind           its decisions on the next stream of the list, repeated
    without_memory  its memory is empty before every decision
    without_return  it may neither prune nor retire
    without_change  after five epochs it is shown the host as it was then, and its seeds as they are

Each should lose what it lacks. Beside them: waiting, and those rivals on streams that `--rivals` names. What counts
is the life: mean accuracy over the epochs (test splits, phase by phase) minus rent for parameter-epochs, under the
instance's cap. Differences are paired by host; errors are over streams.

    python benchmarks/study_stream_controller.py --runs runs/stream-0 runs/stream-1 --device cuda --workers 15 \\
        --draws 24 --hosts 2 --rivals look_again wide shrink_and_perturb

Rows are kept in `--out`: what was played is not played again. `--held-out` plays the frozen list instead of draws.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from esper.benchmark.arms import ABLATIONS, LEARNED, WAIT, AblatedArm, Arm, BlindArm, LearnedArm, RuleArm
from esper.benchmark.controllers import find_controller, open_fitting
from esper.benchmark.planning import BenchPlan
from esper.benchmark.rows import BenchRow, RowStore
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.stream_rivals import STREAM_RIVALS, StreamArm, played_rivals
from esper.benchmark.suites import BenchSuite
from esper.leyline.errors import EsperError
from esper.simic.env.making import use_one_thread
from esper.tolaria.tasks import suite
from harness import RESULTS, Row, mean_and_error, report

DRAWS = 20_264
"""Rng seed of the streams; the gate scores and tunes on others."""


def drawn(count: int) -> tuple[str, ...]:
    """So many streams of the suite's distribution."""
    rng = np.random.default_rng(DRAWS)
    return tuple(str(suite("stream").draw(rng)) for _ in range(count))


def plan_of(
    streams: BenchSuite, runs: Sequence[Path], *, hosts: int, device: str, rivals: Sequence[str] = ()
) -> BenchPlan:
    """Waiting, rivals, the controllers, and the controllers without something."""
    files = tuple(find_controller(path) for path in runs)
    for file in files:
        open_fitting(file, streams.name)
    tuned = played_rivals()
    arms: list[Arm] = [
        RuleArm(WAIT),
        *(StreamArm(tuned[name]) for name in rivals),
        LearnedArm(LEARNED, files),
    ]
    arms += [AblatedArm(name, files, ablation=name) for name in ABLATIONS]
    arms += [BlindArm(LEARNED, len(files))]
    return BenchPlan(streams, tuple(arms), hosts, reference=LEARNED, treatments=(LEARNED,), device=device)


def worth(row: BenchRow) -> float:
    """What the life was worth; nothing for a host that the governor took away."""
    return 0.0 if row.score is None else row.score


def differences(rows: Sequence[BenchRow], arm: str, other: str) -> list[float]:
    """One entry a stream: the mean of `arm` minus that of `other`, over hosts and members."""
    means = {}
    for name in (arm, other):
        lives: dict[str, list[float]] = {}
        for row in rows:
            if row.arm == name:
                lives.setdefault(row.instance, []).append(worth(row))
        means[name] = {instance: statistics.fmean(each) for instance, each in lives.items()}
    return [
        means[arm][instance] - means[other][instance] for instance in means[arm] if instance in means[other]
    ]


def rows_of(rows: Sequence[BenchRow], arms: Sequence[str]) -> list[Row]:
    """One row an arm: points of life over waiting, and what the controller is ahead of it by."""
    table: list[Row] = []
    for arm in arms:
        over, ahead = differences(rows, arm, WAIT), differences(rows, LEARNED, arm)
        own = [row for row in rows if row.arm == arm]
        table.append(
            {
                "arm": arm,
                "lives": len(own),
                "over waiting": _points(over),
                "learned ahead by": "" if arm == LEARNED else _points(ahead),
                "operations": round(statistics.fmean(row.decisions.count(" t=") for row in own), 1),
                "taken away": sum(row.rolled_back is not None for row in own),
            }
        )
    return table


def _points(values: Sequence[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{100 * mean:+.2f} ± {100 * error:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", nargs="+", type=Path, required=True, help="runs, checkpoints or controllers"
    )
    parser.add_argument("--draws", type=int, default=12, help="streams, two or more (%(default)s)")
    parser.add_argument("--held-out", action="store_true", help="the frozen streams instead of draws")
    parser.add_argument("--hosts", type=int, default=2, help="hosts of each stream (%(default)s)")
    parser.add_argument(
        "--rivals", nargs="*", default=[], choices=STREAM_RIVALS, metavar="RIVAL", help="to play too"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after these")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "stream_controller", help="folder (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.draws < 2:
        parser.error(f"--draws is {chosen.draws}; expected 2 or more: a blind copy needs another stream")
    use_one_thread()
    cases = tuple(map(str, suite("stream").held_out)) if chosen.held_out else drawn(chosen.draws)
    try:
        plan = plan_of(
            BenchSuite("stream", cases),
            chosen.runs,
            hosts=chosen.hosts,
            device=chosen.device,
            rivals=chosen.rivals,
        )
    except EsperError as error:
        parser.error(str(error))
    study(plan, chosen.out, workers=chosen.workers, minutes=chosen.minutes)


def study(plan: BenchPlan, out: Path, *, workers: int = 0, minutes: float = math.inf) -> list[Row]:
    """Play what is not there yet, print the table of the streams that every arm has played, and write it."""

    def show(progress: BenchProgress) -> None:
        print(f"{progress.done:,} of {progress.total:,} lives, {progress.seconds:.0f} s", flush=True)

    stopped = run_bench(plan, RowStore(out), workers=workers, minutes=minutes, progress=show)
    names, asked = [arm.name for arm in plan.arms], plan.episodes // len(plan.suite.instances)
    rows = [row for row in RowStore(out).read() if row.arm in names and row.instance in plan.suite.instances]
    counts = {case: sum(row.instance == case for row in rows) for case in plan.suite.instances}
    whole = [row for row in rows if counts[row.instance] == asked]
    if not whole:
        raise SystemExit(
            f"no stream was played by every arm (stopped by {stopped}): run the same command again"
        )
    streams = len({row.instance for row in whole})
    table = rows_of(whole, names)
    title = (
        f"Points of life, {streams} streams, {plan.seeds} hosts each, means ± standard errors over streams"
    )
    report("stream_controller", title, table, out=out / "stream_controller.json")
    return table


if __name__ == "__main__":
    main()
