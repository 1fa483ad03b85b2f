"""Does a trained controller close a loop on streams? It, and copies that lack something, on streams drawn anew.

    learned         as it was trained, greedy
    blind           its decisions on the next stream of the list, repeated
    without_memory  its memory is empty before every decision
    without_return  it may neither prune nor retire
    without_change  after five epochs it is shown the host as it was then, and its seeds as they are

Each should lose what it lacks. Beside them: waiting, and those rivals on streams that `--rivals` names. What counts
is the life: mean accuracy over the epochs (test splits, phase by phase) minus rent for parameter-epochs, under the
instance's cap. Differences are paired by host; errors and 95 % intervals are over streams.

    python benchmarks/study_stream_controller.py --runs runs/stream-0 runs/stream-1 --device cuda --workers 15 \\
        --draws 24 --hosts 2 --rivals look_again wide shrink_and_perturb

On `--suite adapt_stream`, `--lives` (what `target_lives.py` wrote) adds the teacher, who knows the targets, and the
seed that was best for each base, planted once for the whole life; `--rule` (what `fit_target_rule.py` wrote) adds the
linear rule.

Rows are kept in `--out`: what was played is not played again. `--held-out` plays the frozen list instead of draws.
"""

import argparse
import json
import math
import statistics
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from esper.benchmark.arms import (
    ABLATIONS,
    BLIND,
    LEARNED,
    RULES,
    WAIT,
    AblatedArm,
    Arm,
    BlindArm,
    Hosts,
    LearnedArm,
    RuleArm,
    ScheduleArm,
    Staging,
)
from esper.benchmark.controllers import find_controller, open_fitting
from esper.benchmark.planning import BenchPlan
from esper.benchmark.rivals import ADAPT_ARMS, AdaptArm
from esper.benchmark.rows import BenchRow, RowStore
from esper.benchmark.runner import BenchProgress, run_bench
from esper.benchmark.stream_rivals import STREAM_RIVALS, StreamArm, StreamRival, played_rivals
from esper.benchmark.suites import BenchSuite
from esper.leyline.errors import EsperError
from esper.simic.env.making import use_one_thread
from esper.simic.evaluation import RulePlayer
from esper.statistics import mean_interval
from esper.tamiyo.rules import RulePolicy
from esper.tolaria.tasks import suite
from esper.tolaria.worlds.baselines import NUMERICS
from harness import RESULTS, Row, mean_and_error, report
from target_rules import (
    KEEPS,
    PLANTS,
    LinearPolicy,
    LinearRule,
    TargetTable,
    TargetTeacher,
    fit_target_teacher,
    for_life,
    read_rule,
    target_teacher,
)

DRAWS = 20_264
"""Rng seed of the streams; the gate scores and tunes on others."""


SUITES = ("stream", "adapt_stream")
RIVALS = (*RULES, *STREAM_RIVALS, *ADAPT_ARMS)


def drawn(count: int, name: str = "stream") -> tuple[str, ...]:
    """So many streams of the suite's distribution."""
    rng = np.random.default_rng(DRAWS)
    return tuple(str(suite(name).draw(rng)) for _ in range(count))


def arms_of_targets(cases: Sequence[str], lives: Path | None, rule: Path | None) -> list[Arm]:
    """Those of `adapt_stream` alone, as far as their files are given."""
    arms: list[Arm] = []
    if lives is not None:
        table = TargetTable.read(lives)
        arms.append(ScheduleArm("for_life_by_base", for_life(table, cases)))
        arms.append(TeacherArm(fit_target_teacher(table)))
    if rule is not None:
        fitted = read_rule(rule)
        arms.append(
            StreamArm(StreamRival("linear", str(fitted), partial(RulePlayer, partial(_linear, fitted))))
        )
    return arms


def _linear(rule: LinearRule, _: int) -> RulePolicy:
    return LinearPolicy(rule)


@dataclass(frozen=True, slots=True)
class TeacherArm(Arm):
    """The teacher: it knows the target of each epoch, which no other arm is told."""

    teacher: TargetTeacher
    name: str = "teacher"

    @property
    def identity(self) -> str:
        decides_by = (self.teacher.names, self.teacher.constants.tolist(), self.teacher.weights.tolist())
        return f"teacher {zlib.crc32(repr((decides_by, PLANTS, KEEPS)).encode()):08x}"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        return Staging(target_teacher([hosts.instance] * len(hosts.seeds), self.teacher))


def plan_of(
    streams: BenchSuite,
    runs: Sequence[Path],
    *,
    hosts: int,
    device: str,
    rivals: Sequence[str] = (),
    others: Sequence[Arm] = (),
    ablated: int | None = None,
) -> BenchPlan:
    """Waiting, rivals, the controllers, and the controllers without something.

    others   arms to play besides
    ablated  of how many controllers something is taken away; None is all
    """
    files = tuple(find_controller(path) for path in runs)
    for file in files:
        open_fitting(file, streams.name)
    tuned = played_rivals(frozen=streams.name == "adapt_stream")
    arms: list[Arm] = [RuleArm(WAIT)]
    for name in rivals:
        along = ADAPT_ARMS.get(name)
        known = RuleArm(name) if along is None else AdaptArm(name, along)
        arms.append(StreamArm(tuned[name]) if name in tuned else known)
    arms += [*others, LearnedArm(LEARNED, files)]
    arms += [AblatedArm(name, files[:ablated], ablation=name) for name in ABLATIONS]
    arms += [BlindArm(LEARNED, len(files))]
    return BenchPlan(streams, tuple(arms), hosts, reference=LEARNED, treatments=(LEARNED,), device=device)


def worth(row: BenchRow) -> float:
    """What the life was worth; nothing for a host that the governor took away."""
    return 0.0 if row.score is None else row.score


def differences(rows: Sequence[BenchRow], arm: str, other: str) -> list[float]:
    """One entry a stream: the mean of `arm` minus `other` over what both have lived, a host under a controller.

    What lacks something is compared with the same controller whole; `blind` copies one of them on each host.
    """
    members = len({row.member for row in rows if row.arm == arm})
    theirs = {(row.instance, row.seed, row.member): worth(row) for row in rows if row.arm == other}
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.arm != arm or (other == BLIND and row.member != row.seed % members):
            continue
        partner = theirs.get((row.instance, row.seed, row.member if other in ABLATIONS else 0))
        if partner is not None:
            found.setdefault(row.instance, []).append(worth(row) - partner)
    return [statistics.fmean(each) for each in found.values()]


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
    points = f"{100 * mean:+.2f} ± {100 * error:.2f}"
    bounds = mean_interval(values)
    return points if bounds is None else f"{points} [{100 * bounds[0]:+.2f}, {100 * bounds[1]:+.2f}]"


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
    parser.add_argument("--suite", default="stream", choices=SUITES, help="(%(default)s)")
    parser.add_argument(
        "--rivals", nargs="*", default=[], choices=RIVALS, metavar="RIVAL", help="to play too"
    )
    parser.add_argument("--lives", type=Path, help="of target_lives.py, on adapt_stream")
    parser.add_argument("--rule", type=Path, help="of fit_target_rule.py, on adapt_stream")
    parser.add_argument("--ablated", type=int, help="of how many controllers something is taken away (all)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing new after these")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "stream_controller", help="folder (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.suite == "stream" and (chosen.lives or chosen.rule):
        parser.error("--lives and --rule are of adapt_stream; choose --suite adapt_stream")
    if chosen.draws < 2:
        parser.error(f"--draws is {chosen.draws}; expected 2 or more: a blind copy needs another stream")
    use_one_thread()
    held_out = tuple(map(str, suite(chosen.suite).held_out))
    cases = held_out if chosen.held_out else drawn(chosen.draws, chosen.suite)
    try:
        plan = plan_of(
            BenchSuite(chosen.suite, cases),
            chosen.runs,
            hosts=chosen.hosts,
            device=chosen.device,
            rivals=chosen.rivals,
            others=arms_of_targets(cases, chosen.lives, chosen.rule),
            ablated=chosen.ablated,
        )
    except EsperError as error:
        parser.error(str(error))
    study(plan, chosen.out, workers=chosen.workers, minutes=chosen.minutes)


def study(plan: BenchPlan, out: Path, *, workers: int = 0, minutes: float = math.inf) -> list[Row]:
    """Play what is not there yet, print the table of the streams that every arm has played, and write it."""

    def show(progress: BenchProgress) -> None:
        print(f"{progress.done:,} of {progress.total:,} lives, {progress.seconds:.0f} s", flush=True)

    _require_same(plan, out)
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


def _require_same(plan: BenchPlan, out: Path) -> None:
    """Raise unless what was played in a folder was played by the same arms, on an engine with the same numbers."""
    file, arms = (
        out / "arms.json",
        {arm.name: arm.identity for arm in plan.arms} | {"numerics": str(NUMERICS)},
    )
    known = json.loads(file.read_text()) if file.exists() else {}
    changed = [name for name, identity in arms.items() if known.get(name, identity) != identity]
    if changed:
        raise SystemExit(f"{', '.join(changed)} in {out} played otherwise than now: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known | arms, indent=1) + "\n")


if __name__ == "__main__":
    main()
