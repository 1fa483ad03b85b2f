"""What Esper does, in one to four minutes of two cores; nothing is downloaded.

    python examples/demo.py [--out demo]

1. A shipped controller grows networks whose data change, beside the same networks left alone, wider ones of the same
   size, and two whole runs of which the better is kept.
2. A frozen encoder learns a second task through adapters that grow in it.
3. A controller learns to grow from nothing, in a toy: no network trains there, a formula says how accurate it would
   be, so that the best that can be done is known.

Accuracy is in percent everywhere, and differences of it are in points: from 30 % to 32 % are 2 points.
"""

import os
import signal

if __name__ == "__main__":  # what is imported next takes seconds, which Ctrl-C may end too

    def leave(*_: object) -> None:
        os.write(1, b"\nStopped before it began.\n")
        os._exit(130)

    signal.signal(signal.SIGINT, leave)

import argparse
import importlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

import esper
from esper.benchmark import BenchProgress, BenchResult
from esper.benchmark.suites import bench_suite
from esper.benchmark.table import ArmSummary
from esper.karn.drawing import time_left
from esper.karn.report import write_report
from esper.leyline import RoundFinished, RunStarted
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import News
from esper.statistics import Estimate
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from learn_toy import Examiner
from side_by_side import Ticker, compare, mean_and_error, tick, verdict

BARS = "▁▂▃▄▅▆▇█"
ROUNDS_A_LINE = 10
ALL_TASKS = len(bench_suite("shift").instances)
WORDS = {
    "wait": "left alone",
    "learned": "grown by the controller shift-v1",
    "static": "wider, of the grown size",
    "try_2": "alone and grown by a plan, the better kept",
}
STOPPED = "\nStopped. What there is stays in {folder}; run the demo again from its beginning."


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the smallest takes seconds and shows nothing."""

    instances: int = 3
    hosts: int = 3
    encoders: int = 5
    encoder_epochs: int = 20
    rounds: int = 80
    draws: int = 64


def changing_data(folder: Path, scale: Scale) -> BenchResult:
    """Act 1: the data of each network change while it trains."""
    request = esper.BenchRequest(
        suite="shift",
        arms=("static", "try_2"),
        seeds=scale.hosts,
        instances=scale.instances,
        controllers={"learned": [Path("shift-v1")]},
    )
    explain(
        "Each network is small and learns ten classes of curves (MNIST-1D; guessing scores 10 %). Once, its data "
        "change: points are put in another order, classes are added, or labels become noisy. Nobody tells the "
        f"controller. There are {scale.instances * scale.hosts} such networks, {scale.hosts} on each of "
        f"{scale.instances} tasks, and each is trained in the four ways that the rows below name. The plan of the "
        "last row says what to grow when, and was fitted on other tasks; that row trains each network twice. Gain is "
        "accuracy over that of the network left alone, less rent; GFLOP is what its training computed; rent is a "
        "point for a network that is made twice as large."
    )
    result = esper.bench(folder, request, workers=2, progress=_share_done)
    if result.interrupted is not None:
        raise KeyboardInterrupt
    print()
    (table, *_) = result.tables
    arms = {arm.arm: arm for arm in table.arms}
    for name, words in WORDS.items():
        print(f"   {words:44} {_of_an_arm(arms[name])}")
    page = folder / "report.html"
    write_report(result, page)
    grown, waited = arms["learned"], arms["wait"]
    larger = _ratio(grown.parameters, waited.parameters)
    dearer = _ratio(grown.training_flops, waited.training_flops)
    gain, tasks = grown.over_wait, len(table.instances)
    print()
    print(
        f"   Growing gained {100 * gain.value:+.1f} points {_bounds(gain)},\n"
        f"   for {larger:.2f} times the parameters and {dearer:.2f} times the training.\n"
        f"   The brackets are 95 % intervals, this one of these {grown.episodes} networks.\n"
        f"   Of other tasks, {tasks} are too few to say anything. All {ALL_TASKS} are in docs/benchmark.md."
    )
    print(f"   Pictures: {page}")
    return result


def _bounds(estimate: Estimate) -> str:
    return f"[{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def explain(text: str) -> None:
    """Words in lines of a width that terminals have."""
    print(fill(text, 110, initial_indent="   ", subsequent_indent="   "), flush=True)


def _ratio(ours: float | None, theirs: float | None) -> float:
    return math.nan if ours is None or theirs is None else ours / theirs


def _share_done(progress: BenchProgress) -> None:
    if progress.stopping:
        print("\n   Stopping after the networks that are being trained; Ctrl-C again stops now.", flush=True)
        return
    left = "" if progress.seconds_left is None else f", {time_left(progress.seconds_left)}"
    tick(f"{progress.done} of {progress.total} trainings{left}")


def _of_an_arm(arm: ArmSummary) -> str:
    found = (arm.test_accuracy, arm.parameters, arm.training_flops)
    accuracy, parameters, flops = (math.nan if number is None else number for number in found)
    return (
        f"accuracy {100 * accuracy:5.1f} %   {parameters:6,.0f} parameters   {flops / 1e9:5.1f} GFLOP   "
        f"gain {100 * arm.over_wait.value:+5.1f} points"
    )


def frozen_encoder(scale: Scale) -> str:
    """Act 2: returns the sentence that sums it up."""
    problem = importlib.import_module("frozen_encoder").PROBLEM
    explain(
        "The encoder was trained on the digits 0 to 4 and is frozen; what is trained now tells 5 to 9 apart, from "
        "150 images (guessing scores 20 %). Mean ± standard error over pairs that begin alike."
    )
    ticker = Ticker(3 * scale.encoders, "networks trained", kinds=3)
    outcomes = compare(problem, scale.encoders, scale.encoder_epochs, progress=ticker.show)
    for name, each in outcomes.items():
        trained = sum(one.trained for one in each) / len(each)
        accuracy = mean_and_error([100 * one.accuracy for one in each], digits=1)
        print(f"   {name:12} {trained:6,.0f} trained parameters   accuracy {accuracy} %")
    sentence = verdict(outcomes)
    print(f"   {sentence}")
    return sentence


def learning(folder: Path, scale: Scale) -> float:
    """Act 3: returns the share of the best possible gain on draws that it has not met."""
    config = TrainingConfig.preset(
        "toy",
        rounds=scale.rounds,
        eval_every=0,
        normalize_observations=True,
        run_directory=folder,
        run_name="toy",
    )
    explain(
        "In a toy, no network trains: a formula says how accurate it would be after each epoch, so that the best "
        f"that can be done is known. In each round {config.num_envs} such networks are grown, and learned from. "
        "The mean gain over being left alone, in points, ten rounds a line; a full bar is the best that can be done."
    )
    examiner = Examiner(TOY_SUITES["toy"].held_out(scale.draws))
    best = sum(plan.gain for plan in examiner.plans) / len(examiner.plans)
    ticker = Ticker(scale.rounds, "rounds")
    gains: list[float] = []

    def show(news: News) -> None:
        if isinstance(news, RunStarted):
            ticker.show(0)
        if isinstance(news, RoundFinished) and news.mean_gain is not None:
            gains.append(news.mean_gain)
            ticker.show(news.round)
            if len(gains) == ROUNDS_A_LINE or news.round == scale.rounds:
                mean, curve = sum(gains) / len(gains), "".join(_bar(gain / best) for gain in gains)
                print(
                    f"   until round {news.round:3} of {scale.rounds}: {100 * mean:+5.1f}  {curve}",
                    flush=True,
                )
                gains.clear()

    result = esper.train(config, progress=show)
    if result.interrupted is not None:
        raise KeyboardInterrupt
    training = build(config)
    assert result.last_checkpoint is not None
    training.agent.load(result.last_checkpoint)
    share = examiner.score(training.agent).gain
    print(
        f"   On {scale.draws} others that it has not met: {share:.0%} of the best that can be done "
        f"({100 * share * best:+.1f} of {100 * best:+.1f} points)."
    )
    return share


def _bar(share: float) -> str:
    return BARS[min(max(int(len(BARS) * share), 0), len(BARS) - 1)]


def main(arguments: Sequence[str] | None = None, scale: Scale = Scale()) -> None:  # noqa: B008  frozen
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where things go (%(default)s)")
    folder: Path = parser.parse_args(arguments).out / time.strftime("%Y%m%d-%H%M%S")
    began = time.monotonic()
    print("Three parts, one to four minutes on two cores.\n", flush=True)
    try:
        print("1. Networks whose data change, and a controller that answers", flush=True)
        changing_data(folder / "bench", scale)
        print("\n2. A frozen encoder, and adapters that grow in it", flush=True)
        frozen_encoder(scale)
        print("\n3. A controller that learns when, where and what to grow, from nothing", flush=True)
        learning(folder, scale)
    except KeyboardInterrupt:
        print(STOPPED.format(folder=folder))
        raise SystemExit(130) from None
    print(f"\n{time.monotonic() - began:.0f} seconds after setting up. {where_to_go_on(folder / 'toy')}")


def where_to_go_on(run: Path) -> str:
    """The three doors, and the run just made in a browser; commands work where this script was started."""
    bin_folder = Path(sys.executable).parent
    if bin_folder.is_relative_to(Path.cwd()):
        bin_folder = bin_folder.relative_to(Path.cwd())
    steps = [f"{bin_folder / 'esper'} watch {run}"]
    if not find_spec("nicegui"):
        steps.insert(0, f"{bin_folder / 'pip'} install -c constraints.txt -e '.[watch]'")
    return (
        "Where to go on:\n"
        "   docs/quickstart/practitioner.md    grow a model of your own\n"
        "   docs/quickstart/researcher.md      train and compare controllers\n"
        "   docs/quickstart/reinforcement.md   growth as an environment for agents of yours\n"
        "The run of part 3 in a browser:\n   " + "\n   ".join(steps)
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
