"""`esper bench`: compare controllers, rules, schedules and equal-size baselines on held-out hosts."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import (
    INTERRUPTED,
    RUNS,
    BadInput,
    VerbParser,
    as_json,
    as_typed,
    note,
    stopped_by,
    table,
)

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from esper.benchmark import BenchProgress, BenchRequest, BenchTable
    from esper.benchmark.planning import BenchSize

_SUMMARY = """Play every arm on the same held-out hosts and compare them in pairs, on the test split.

  esper bench [options]      play; a bench that was stopped goes on where it was
  esper bench table DIR      the table, from the rows in DIR alone
  esper bench report DIR     the same as a page with pictures, DIR/report.html

Arms: wait; the rules random, periodic, plateau, fit_ratio, probe_and_keep, detect_then_probe, by_layout,
frozen_spread, live_on; on the suites adapt and adapt_stream fine_tuning, lora4, lora16 (the base trained in these
ways, and nothing grown); the open-loop schedules sbs (the single best one on training draws), sbs_hindsight (on these
instances) and vbs (the best of each instance, of as many as were tried, chosen on other hosts); what a user would try
first, fitted on training draws: look_up (the best schedule for the layout of the host's slots), look_once (a linear
rule at one early epoch), try_2, try_3, try_5 (so many whole runs, the best on validation kept), successive_halving
(over the same list, schedule_1 to schedule_4, at the cost of try_3); rivals on streams, under the same cap: wide,
l2_init, shrink_and_perturb, continual_backprop, redo, reset, adapters, look_again (a linear rule after each jump
of validation), look_always (one after every epoch, taught by a teacher that knows the changes); networks of equal
size, made from what the --match arm kept on the same host: static (a wider host), from_birth, from_scratch,
random_matched; blind (the --match arm's decisions on another instance); and what
--controller names."""


def run_bench(arguments: list[str]) -> int:
    """Play a benchmark, or show one that was played; returns the exit code."""
    if arguments[:1] == ["table"]:
        return _table(arguments[1:])
    if arguments[:1] == ["report"]:
        return _report(arguments[1:])
    example = (
        "esper bench --instances 2 --seeds 4 --out benches/small   (minutes; without these two options: hours)\n"
        "  esper bench --suite cpu --seeds 8 --controller runs/a runs/b --out benches/cpu"
    )
    parser = VerbParser("bench", _SUMMARY, example, "quiet")
    suite = "a suite or a task instance (%(default)s)"
    parser.add_argument("--suite", default="cpu", metavar="NAME", help=suite)
    arms = "only these, wait and the controllers; by default all"
    parser.add_argument("--arms", nargs="+", metavar="ARM", help=arms)
    parser.add_count("--seeds", "hosts of each instance (%(default)s)", default=8)
    parser.add_count("--instances", "only so many, spread over the suite's list")
    paths = (
        "runs or checkpoints of one arm, one for each training seed; NAME=PATH first names the arm (learned)"
    )
    parser.add_argument("--controller", nargs="+", action="append", default=[], metavar="PATH", help=paths)
    parser.add_argument("--match", metavar="ARM", help="the arm that networks of equal size are made from")
    parser.add_argument(
        "--outcomes", type=Path, metavar="FILE", help="outcomes of schedules for sbs, vbs and rivals"
    )
    parser.add_count("--workers", "processes; 0 plays in this one (%(default)s)", least=0, default=2)
    cluster = "a Ray cluster to play on: 'local' starts one, 'auto' joins that of this machine; or HOST:PORT"
    parser.add_argument("--cluster", metavar="ADDRESS", help=cluster)
    parser.add_argument("--device", default="cpu", help="where hosts are trained (%(default)s)")
    minutes = "begin nothing after so long"
    parser.add_argument("--minutes", type=_minutes, default=math.inf, metavar="X", help=minutes)
    record = "keep every episode that is played now in DIR/episodes, as a data set (see docs/offline.md)"
    parser.add_argument("--record-episodes", action="store_true", help=record)
    out = "rows go here (%(default)s)"
    parser.add_argument("--out", type=Path, default=Path("bench"), metavar="DIR", help=out)
    chosen = parser.parse(arguments)
    with as_typed(_OPTIONS):
        return _play(chosen)


_FIELDS = ("suite", "arms", "seeds", "instances", "match", "outcomes", "workers", "cluster", "device")
_OPTIONS = {name: f"--{name}" for name in _FIELDS}
"""Field of a request -> its option."""


def _minutes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise BadInput(f"--minutes is {text}; expected a number > 0")


def _play(chosen: "Namespace") -> int:
    from esper.benchmark import BenchRequest
    from esper.benchmark.bench import bench
    from esper.benchmark.planning import bench_size
    from esper.simic.timing import CTRL_C

    request = BenchRequest(
        suite=chosen.suite,
        arms=None if chosen.arms is None else tuple(chosen.arms),
        seeds=chosen.seeds,
        instances=chosen.instances,
        controllers=_controllers(chosen.controller),
        match=chosen.match,
        outcomes=chosen.outcomes,
        device=chosen.device,
    )
    size = bench_size(request)
    _require_controllers(request)
    if not chosen.quiet:
        print("counting what is to be played...", flush=True)
        _show_size(size)
        if chosen.instances is not None and chosen.instances > size.instances:
            note(f"--instances is {chosen.instances}, and there are {size.instances}: all of them are played")
    progress = (lambda _: None) if chosen.quiet else show_progress
    try:
        result = bench(
            chosen.out,
            request,
            workers=chosen.workers,
            cluster=chosen.cluster,
            minutes=chosen.minutes,
            record_episodes=chosen.record_episodes,
            progress=progress,
        )
    except KeyboardInterrupt as interrupt:
        print(_going_on(stopped_by(interrupt), chosen.out), flush=True)
        return INTERRUPTED
    stopped = result.interrupted
    if stopped is not None:
        print(_going_on(stopped, chosen.out), flush=True)
    if stopped == "the clock":
        return 0
    if stopped in (CTRL_C, "SIGTERM"):
        return INTERRUPTED
    if not chosen.quiet and not result.tables:
        print(f"there is no table yet: no instance in {chosen.out} was played by every arm with every seed")
    elif not chosen.quiet:
        print(tables_text(result.tables))
        print(
            f"Tables are of all that was played in {chosen.out}; `esper bench report {chosen.out}` makes a page of it"
        )
    return int(stopped is not None)


def _split_of(tables: "Sequence[BenchTable]") -> str:
    """By which accuracies arms are judged: the toy has no test split."""
    tested = any(arm.test_accuracy is not None for each in tables for arm in each.arms)
    return "test" if tested else "validation"


def _going_on(stopped: str, out: Path) -> str:
    """What stopped it, what is kept, and how to go on."""
    from esper.benchmark import RowStore

    kept = len(RowStore(out).read()) if out.is_dir() else 0
    if not kept:
        return f"esper: stopped by {stopped}; nothing was played to its end; the same command begins again"
    episodes = "1 episode is" if kept == 1 else f"{kept:,} episodes are"
    return f"esper: stopped by {stopped}; {episodes} kept in {out}, and the same command goes on from there"


_LONG = 500
"""Episodes from which on a smaller command is named."""
_SMALL = (2, 4)
"""Instances, and hosts of each, of the smaller command: enough for an interval."""


def _show_size(size: "BenchSize") -> None:
    """Print how much is to be played, before anything is drawn or fitted for it; with much, a smaller command."""
    if size.episodes < _LONG:
        return
    line = f"{size.episodes:,} episodes ({size}), which may take hours"
    instances, seeds = _SMALL
    if size.instances > instances and size.seeds > seeds:
        small = replace(size, instances=instances, seeds=seeds).episodes
        line += f"; `--instances {instances} --seeds {seeds}` plays {small} of them, which takes minutes"
    print(line, flush=True)


def _controllers(given: list[list[str]]) -> dict[str, list[Path]]:
    """[["ppo=a", "b"], ["c"]] -> {"ppo": [a, b], "learned": [c]}"""
    named: dict[str, list[Path]] = {}
    for texts in given:
        name, equals, first = texts[0].partition("=")
        if not equals:
            name, first = "learned", texts[0]
        if not name.isidentifier():
            raise BadInput(
                f"--controller names {name!r}; expected letters, digits and underscores before the ="
            )
        named.setdefault(name, []).extend(Path(text) for text in (first, *texts[1:]))
    return named


def _require_controllers(request: "BenchRequest") -> None:
    """Raise BadInput where there is none, before anything is counted or fitted."""
    from esper.benchmark.controllers import ControllerError, find_controller

    for path in (path for paths in request.controllers.values() for path in paths):
        try:
            find_controller(Path(path))
        except ControllerError as error:
            run = RUNS / path
            hint = f"; did you mean {run}?" if (run / "config.json").is_file() else ""
            raise BadInput(f"--controller {error}{hint}") from None


def show_progress(progress: "BenchProgress") -> None:
    """Print a line for each chunk of episodes, and now and then where one takes long."""
    share = f"{progress.done:6,} of {progress.total:,} episodes"
    if progress.stopping:
        note("stopping after the hosts that are being played; Ctrl-C again stops now")
        return
    if progress.seconds == 0.0:
        print(f"{share} are there", flush=True)
        return
    from esper.karn.drawing import time_left

    left = "" if progress.seconds_left is None else f"  {time_left(progress.seconds_left)}"
    if progress.latest is None:
        print(f"{share}{left}  more are being played", flush=True)
        return
    arm, member, instance = progress.latest
    who = f"{arm} {member}" if member else arm
    print(f"{share}{left}  {who} on {instance}", flush=True)


# From the rows alone


def _rows_parser(verb: str, summary: str, *shared: str) -> VerbParser:
    parser = VerbParser(f"bench {verb}", summary, f"esper bench {verb} bench", *shared)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where `esper bench --out` put the rows")
    return parser


def _table(arguments: list[str]) -> int:
    parser = _rows_parser("table", "The table of a benchmark, from its rows alone.", "json")
    chosen = parser.parse(arguments)
    from esper.benchmark import read_bench

    tables = read_bench(chosen.folder).tables
    print(as_json(tables) if chosen.json else tables_text(tables))
    return 0


def _report(arguments: list[str]) -> int:
    parser = _rows_parser("report", "A page of a benchmark: one file.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default DIR/report.html")
    chosen = parser.parse(arguments)
    from esper.benchmark import read_bench
    from esper.karn.report import write_report

    path = chosen.out or chosen.folder / "report.html"
    if not path.parent.is_dir() and path.parent != chosen.folder:
        raise BadInput(f"--out is {str(path)!r}; there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise BadInput(f"--out is {str(path)!r}, which is a folder; expected a file, such as report.html")
    write_report(read_bench(chosen.folder), path)
    print(path)
    return 0


def tables_text(made: "Sequence[BenchTable]") -> str:
    """Every table with its verdict, as text."""
    from esper.benchmark import gate, verdict
    from esper.benchmark.verdict import counted

    first, found = gate(made[0]), verdict(made[0])
    parts = [*found, first] if made[0].headroom is None else [first, *found]
    for each in made:
        hosts = f"{counted(len(each.instances), 'instance')} x {counted(each.seeds, 'host')}"
        parts += [f"\n{each.suite}, {each.subset}: {hosts}"]
        if each.left_out:
            parts.append(f"{len(each.left_out)} instances are left out: not every arm has played them")
        parts.append(_lines(each))
        if each is not made[0] and each.headroom is not None:
            parts.append(gate(each))
    parts.append(
        f"\nUtility: {_split_of(made)} accuracy less rent for added parameters, interquartile mean. "
        "Points: plain means."
    )
    return "\n".join(parts)


def _lines(made: "BenchTable") -> str:
    from esper.benchmark.table import some_are_frozen
    from esper.benchmark.verdict import bounds_in_points

    frozen = some_are_frozen(made.arms)
    rows = [
        (
            f"{arm.arm} ({arm.members})" if arm.members > 1 else arm.arm,
            f"{arm.score.value:.4f}"
            + (f" [{arm.score.low:.4f}, {arm.score.high:.4f}]" if arm.score.bounded else ""),
            f"{100 * arm.over_wait.value:+.2f} {bounds_in_points(arm.over_wait)}".rstrip(),
            bounds_in_points(arm.over_wait_anew) or None,
            None if arm.test_accuracy is None else f"{arm.test_accuracy:.4f}",
            None if arm.parameters is None else f"{arm.parameters:.0f}",
            *(
                [None if arm.trained_parameters is None else f"{arm.trained_parameters:.0f}"]
                if frozen
                else []
            ),
            None if arm.training_flops is None else f"{arm.training_flops / 1e9:.2f}",
            f"{arm.wall_seconds:.1f}",
            f"{arm.operations:.1f}",
        )
        for arm in made.arms
    ]
    columns = (
        "arm",
        "utility (IQM)",
        "points over waiting",
        "new instances",
        "accuracy",
        "parameters",
        *(["trained"] if frozen else []),
        "GFLOP",
        "seconds",
        "decisions",
    )
    return table(columns, rows)
