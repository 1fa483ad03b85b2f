"""Is there anything to decide among networks that differ? The headroom of schedules over draws of the suite `hosts`.

A grid of schedules is played on draws that controllers may train on, two hosts each. The single best schedule (SBS)
and the best of each draw (VBS) are chosen by validation on one host and scored by test on the other, both ways. The
gap between them is what deciding by instance could win; it must be larger than two standard errors over draws.

    python benchmarks/study_hosts.py --workers 16 --minutes 6                    16 cores, no GPU
    python benchmarks/study_hosts.py --workers 12 --minutes 6 --device cuda
    python benchmarks/study_hosts.py --workers 2 --draws 6 --quick               to see that it runs
"""

import argparse
import math
import shutil
from collections import Counter
from collections.abc import Sequence

import numpy as np

from esper.benchmark.outcomes import WAITING, Outcomes
from esper.benchmark.rows import RowStore
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.suites import BenchSuite
from esper.statistics import Floats
from esper.tolaria.tasks import Instance
from harness import RESULTS, Row, report
from make_outcomes import drawn_cases, grid_of_any_host, outcome_of, plan_of

HOSTS = 2


def headroom(utility: Floats, score: Floats) -> tuple[Floats, Floats, list[int]]:
    """Scores (draw,) of SBS and of VBS, chosen by `utility` on one host and scored by `score` on the other.

    utility, score  (draw, schedule, host), with two hosts; the last result is the schedule chosen for each draw and
    host
    """
    sbs, vbs, chosen = np.zeros(len(utility)), np.zeros(len(utility)), list[int]()
    draws = np.arange(len(utility))
    for choosing, scoring in ((0, 1), (1, 0)):
        single = int(utility[:, :, choosing].mean(axis=0).argmax())
        best = utility[:, :, choosing].argmax(axis=1)
        sbs += score[:, single, scoring] / 2
        vbs += score[draws, best, scoring] / 2
        chosen += best.tolist()
    return sbs, vbs, chosen


def mean_and_error(values: Floats) -> tuple[float, float]:
    """Mean over draws, and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def rows_of(outcomes: Outcomes) -> list[Row]:
    """SBS and VBS over waiting and the gap, in points, over all draws and by kind of host."""
    kinds = np.array([dict(Instance.parse(case).parameters).get("host", "mlp") for case in outcomes.cases])
    wait = outcomes.score[:, outcomes.schedules.index(WAITING)].mean(axis=1)
    sbs, vbs, _ = headroom(outcomes.utility, outcomes.score)
    rows: list[Row] = []
    for label in ("all", *sorted(set(kinds.tolist()))):
        some = np.full(len(kinds), True) if label == "all" else kinds == label
        if some.sum() < 2:
            continue
        parts = {"SBS - wait": sbs - wait, "VBS - wait": vbs - wait, "VBS - SBS": vbs - sbs}
        row: dict[str, str | float | int] = {"hosts": label, "draws": int(some.sum())}
        for name, values in parts.items():
            mean, error = mean_and_error(100 * values[some])
            row[name] = f"{mean:+.2f} ± {error:.2f}"
        row["gap in errors"] = round(mean / error, 1) if error else 0.0
        rows.append(row)
    return rows


def chosen_rows(outcomes: Outcomes, most: int = 8) -> list[Row]:
    """How often each schedule is the best of a draw."""
    _, _, chosen = headroom(outcomes.utility, outcomes.score)
    counts = Counter(outcomes.schedules[place] or "waiting" for place in chosen)
    return [{"schedule": name, "best of a draw": count} for name, count in counts.most_common(most)]


def play(chosen: argparse.Namespace, schedules: Sequence[str]) -> Outcomes:
    """What was played by the time that there was."""
    folder = RESULTS / "hosts"
    if not chosen.resume:
        shutil.rmtree(folder, ignore_errors=True)
    suite = BenchSuite("hosts", drawn_cases("hosts", chosen.draws))
    plan = plan_of(suite, tuple(schedules), HOSTS, chosen.device)
    print(f"{plan.episodes:,} episodes on {chosen.draws} draws", flush=True)
    store, last = RowStore(folder), [0.0]

    def show(progress: BenchProgress) -> None:
        if progress.seconds - last[0] > 30:
            last[0] = progress.seconds
            print(f"  {progress.done:,} of {progress.total:,} after {progress.seconds:.0f} s", flush=True)

    stopped = run_bench(plan, store, workers=chosen.workers, minutes=chosen.minutes, progress=show)
    if stopped is not None:
        print(f"stopped by {stopped}: schedules that were not played on every draw are left out")
    return Outcomes(
        outcome_of(row, held_out=False, schedule=WAITING if row.arm == "wait" else row.arm)
        for row in store.read()
        if row.instance in suite.instances  # a folder that is resumed may have others
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no episode after this time")
    parser.add_argument("--quick", action="store_true", help="a fifth of the schedules")
    parser.add_argument("--resume", action="store_true", help="keep the episodes of the last run")
    chosen = parser.parse_args()
    grid = grid_of_any_host()
    outcomes = play(chosen, (WAITING, *grid[1::5]) if chosen.quick else grid)
    print(f"{len(outcomes.schedules)} schedules on {len(outcomes.cases)} draws, {HOSTS} hosts each")
    report("study_hosts", "Headroom on draws of hosts, points of test score minus rent", rows_of(outcomes))
    report("study_hosts_best", "Which schedule is best, by draw and host", chosen_rows(outcomes))


if __name__ == "__main__":
    main()
