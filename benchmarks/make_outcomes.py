"""Outcomes of open-loop schedules for a suite: the search for the single best one, and a table for tabular mode.

First a grid of schedules is played on draws that controllers may train on. Then a portfolio of it, chosen on those
draws, is played on the held-out instances with host seeds that no benchmark scores on. What is kept is small:

    python benchmarks/make_outcomes.py --suite cpu --workers 16 --minutes 30
    python benchmarks/make_outcomes.py --suite cpu --workers 16 --resume    (goes on after a stop)

The result goes to src/esper/benchmark/shipped/<suite>.parquet unless --out says otherwise.
"""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np

from adapt_choices import SINGLES, TOGETHER
from esper.benchmark.arms import WAIT, RuleArm, ScheduleArm
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes, grown
from esper.benchmark.planning import BenchPlan
from esper.benchmark.rows import BenchRow, RowStore
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.suites import BenchSuite, bench_suite
from esper.leyline.utility import rent_due
from esper.simic.env.making import make_world
from esper.simic.offline.dataset import EPISODES_FOLDER
from harness import RESULTS

SHIPPED = Path(__file__).parents[1] / "src" / "esper" / "benchmark" / "shipped"
SELECTION_SEEDS = 500
"""Host seeds of an instance from here on are for choosing; a benchmark scores on the first ones."""
DRAW_SEED = 77
BIRTHS = {"cpu": (4,), "shift": (4, 10, 16), "hosts": (2, 8), "stream": (0,)}
"""When was measured to matter little, but for data that change. On a stream a seed that was always there is compared
with none, stretch by stretch."""
PAIRED = ("mixer", "conv_small", "widen")
PAIRED_BIRTHS = (0, 10)
"""Early, and late."""
MIXING, LOCAL = "mixer|attention|mlp", "conv_light|depthwise|mlp_small"
"""What moves information anywhere, or to neighbours; where a host has no positions, a seed of its own layout."""
ANY_HOST = (MIXING, LOCAL, "attention|mlp", "widen", "norm", "lora")
"""Offered in one form or another by every host of the suite `hosts`."""
ANY_PAIR = ((MIXING, MIXING), (MIXING, "widen"), (LOCAL, "widen"), ("widen", "widen"))
PLACES = ("first", "middle", "last")
"""Of however many slots a host has."""


def schedule_grid(
    blueprints: Sequence[str],
    slots: Sequence[int],
    births: Sequence[int],
    *,
    paired: Sequence[str] = (),
    paired_births: Sequence[int] = PAIRED_BIRTHS,
) -> tuple[str, ...]:
    """Waiting; one seed of each kind, place and time; and two seeds of the `paired` kinds in different places."""
    singles = [grown(*each) for each in product(blueprints, slots, births)]
    pairs = [
        f"{grown(one, near, born)}; {grown(other, far, born)}"
        for near, far in combinations(slots, 2)
        for one, other in product(paired, repeat=2)
        for born in paired_births
    ]
    return (WAITING, *singles, *pairs)


def grid_of_any_host(births: Sequence[int] = BIRTHS["hosts"]) -> tuple[str, ...]:
    """The same for hosts that differ in slots and layouts: places by their rank, blueprints by what they are for."""
    singles = [grown(*each) for each in product(ANY_HOST, PLACES, births)]
    pairs = [
        f"{grown(one, PLACES[0], born)}; {grown(other, PLACES[-1], born)}"
        for (one, other), born in product(ANY_PAIR, (births[0], births[-1] + 2))
    ]
    return (WAITING, *singles, *pairs)


def outcome_of(row: BenchRow, *, held_out: bool, schedule: str) -> Outcome:
    """The outcome in a row of a benchmark. Where the life counts it has the means over it, and every curve."""
    lives = (
        row.life_added is not None or row.rolled_back is not None
    )  # a life that was cut short has a curve, too
    accuracy, added = row.validation_accuracy, row.added_parameters
    if row.life_added is not None and row.utility is not None:
        accuracy, added = (
            row.utility + rent_due(row.rent, row.life_added, row.host_parameters),
            round(row.life_added),
        )
    curve = [accuracy for accuracy in row.validation_accuracies if accuracy is not None]
    return Outcome(
        held_out=held_out,
        case=row.instance,
        schedule=schedule,
        seed=row.seed,
        validation_accuracy=accuracy,
        test_accuracy=row.test_accuracy,
        host_parameters=row.host_parameters,
        added_parameters=added,
        rent=row.rent,
        training_flops=row.training_flops,
        contribution=row.seeds[0].contribution if len(row.seeds) == 1 else None,
        validation_accuracies=tuple(curve) if lives or schedule == WAITING else (),
        train_accuracies=row.train_accuracies if lives or schedule == WAITING else (),
    )


def grid(suite: str, *, small: bool) -> tuple[str, ...]:
    if suite == "hosts":
        whole = grid_of_any_host()
        return whole[:3] if small else whole
    if suite == "stream" and small:
        return (WAITING, grown("mixer", 1, 0))
    if suite == "adapt":
        whole = (WAITING, *SINGLES.values(), *TOGETHER.values())
        return whole[:3] if small else whole
    space = make_world(suite, 1).space
    slots, births = range(space.slot_count), BIRTHS.get(suite, (0, 5, 10))
    if small:
        return schedule_grid(space.blueprints[:2], slots[:1], births[:1])
    paired = [name for name in PAIRED if name in space.blueprints]
    return schedule_grid(space.blueprints, slots, births, paired=() if suite == "stream" else paired)


def drawn_cases(suite: str, draws: int) -> tuple[str, ...]:
    rng, source = np.random.default_rng(DRAW_SEED), make_world(suite, 1).cases
    cases: dict[str, None] = {}
    for _ in range(50 * draws):
        cases.setdefault(source.draw(rng))
        if len(cases) == draws:
            break
    return tuple(cases)  # fewer where a suite has only a few


def plan_of(suite: BenchSuite, schedules: tuple[str, ...], seeds: int, device: str) -> BenchPlan:
    arms = [
        ScheduleArm(schedule, dict.fromkeys(suite.instances, schedule))
        for schedule in schedules
        if schedule != WAITING
    ]
    return BenchPlan(
        suite,
        (RuleArm(WAIT), *arms),
        seeds,
        reference=WAIT,
        treatments=(),
        device=device,
        first_seed=SELECTION_SEEDS,
    )


def play(
    plan: BenchPlan, folder: Path, chosen: argparse.Namespace, minutes: float, *, held_out: bool
) -> list[Outcome]:
    """Of a whole plan; what the clock left out ends the program, and --resume goes on."""
    print(f"{plan.episodes:,} episodes on {len(plan.suite.instances)} cases", flush=True)
    store, last = RowStore(folder), [0.0]

    def show(progress: BenchProgress) -> None:
        if progress.seconds - last[0] > 30 or progress.done == progress.total:
            last[0] = progress.seconds
            left = "?" if progress.seconds_left is None else f"{progress.seconds_left / 60:.1f}"
            print(f"  {progress.done:,} of {progress.total:,}, {left} minutes left", flush=True)

    stopped = run_bench(
        plan,
        store,
        workers=chosen.workers,
        minutes=minutes,
        episodes=folder / EPISODES_FOLDER if chosen.record_episodes else None,
        progress=show,
    )
    if stopped is not None:
        sys.exit(f"stopped by {stopped}; --resume goes on")
    names = {arm.name for arm in plan.arms}
    return [
        outcome_of(row, held_out=held_out, schedule=WAITING if row.arm == WAIT else row.arm)
        for row in store.read()
        if row.arm in names
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="cpu")
    parser.add_argument("--draws", type=int, default=48, help="cases that the single best is searched on")
    parser.add_argument("--draw-hosts", type=int, default=1, help="hosts of each such case")
    parser.add_argument(
        "--portfolio", type=int, default=16, help="schedules played on the held-out instances"
    )
    parser.add_argument("--seeds", type=int, default=4, help="hosts of each held-out instance")
    parser.add_argument("--instances", type=int, default=None, help="only so many held-out instances")
    parser.add_argument("--small", action="store_true", help="two or three schedules, to try the tool")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no episode after this time")
    parser.add_argument("--resume", action="store_true", help="keep the episodes of the last, unfinished run")
    record = "keep every episode, as data sets of the training draws and of the held-out instances"
    parser.add_argument("--record-episodes", action="store_true", help=record)
    parser.add_argument("--out", type=Path, default=None, help="where the result goes")
    chosen = parser.parse_args()
    began, work = time.monotonic(), RESULTS / f"outcomes_{chosen.suite}"
    if not chosen.resume:
        shutil.rmtree(work, ignore_errors=True)
    drawn = BenchSuite(chosen.suite, drawn_cases(chosen.suite, chosen.draws))
    first = plan_of(drawn, grid(chosen.suite, small=chosen.small), chosen.draw_hosts, chosen.device)
    search = Outcomes(play(first, work / "drawn", chosen, chosen.minutes, held_out=False))
    schedules = search.portfolio(chosen.portfolio)
    print(f"the single best: {search.single_best() or 'waiting'}")
    second = plan_of(
        bench_suite(chosen.suite).first(chosen.instances), schedules, chosen.seeds, chosen.device
    )
    left = chosen.minutes - (time.monotonic() - began) / 60
    table = play(second, work / "held_out", chosen, left, held_out=True)
    out = chosen.out or SHIPPED / f"{chosen.suite}.parquet"
    Outcomes([*search.rows, *table]).write(out)
    print(f"{len(search.rows) + len(table):,} outcomes in {out}, {out.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
