"""What Esper does, in under five minutes of two cores; nothing is downloaded.

    python examples/demo.py [--out demo]

1. A shipped controller grows networks whose data change, beside the same networks left alone, wider ones of the same
   size, and two whole runs of which the better is kept.
2. A frozen encoder learns a second task through adapters that grow in it.
3. A controller learns to grow from nothing, in a world without training whose best plans are known.
"""

import argparse
import importlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import esper
from esper.benchmark import BenchProgress, BenchResult
from esper.benchmark.table import ArmSummary
from esper.karn.drawing import time_left
from esper.karn.report import write_report
from esper.leyline import RoundFinished
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import News
from esper.simic.timing import QUIET_SECONDS
from esper.tolaria.worlds.toy.instance import TOY_SUITES
from learn_toy import Examiner

BARS = "▁▂▃▄▅▆▇█"
ROUNDS_A_LINE = 10
WORDS = {
    "wait": "left alone",
    "learned": "grown by the controller shift-v1",
    "static": "wider, of the grown size",
    "try_2": "two runs, the better kept",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the smallest takes seconds and shows nothing."""

    instances: int = 3
    hosts: int = 3
    encoders: int = 5
    rounds: int = 80
    draws: int = 64


class Ticker:
    """How many units of work are done, and how long the rest takes: on one line of a terminal, else now and then."""

    def __init__(self, total: int, units: str) -> None:
        self._total, self._units = total, units
        self._began, self._shown = time.monotonic(), -math.inf

    def show(self, done: int) -> None:
        now = time.monotonic()
        if now - self._shown < (0.2 if sys.stdout.isatty() else QUIET_SECONDS):
            return
        self._shown = now
        left = f", {time_left((now - self._began) / done * (self._total - done))}" if done else ""
        _tick(f"{done} of {self._total} {self._units}{left}")


def _tick(text: str) -> None:
    """A line that the next one replaces, where there is a terminal."""
    if sys.stdout.isatty():
        print(f"   {text:60}", end="\r", flush=True)
    else:
        print(f"   {text}", flush=True)


def changing_data(folder: Path, scale: Scale) -> BenchResult:
    """Act 1: the data of each network change while it trains."""
    request = esper.BenchRequest(
        suite="shift",
        arms=("static", "try_2"),
        seeds=scale.hosts,
        instances=scale.instances,
        controllers={"learned": [Path("shift-v1")]},
    )
    result = esper.bench(folder, request, workers=2, progress=_share_done)
    print()
    arms = {arm.arm: arm for arm in result.tables[0].arms}
    for name, words in WORDS.items():
        print(f"   {words:34} {_of_an_arm(arms[name])}")
    page = folder / "report.html"
    write_report(result, page)
    grown, waited = arms["learned"], arms["wait"]
    larger = _ratio(grown.parameters, waited.parameters)
    dearer = _ratio(grown.training_flops, waited.training_flops)
    gain = grown.over_wait
    print(
        f"\n   Growing changed accuracy on the test split, less rent for the parameters, by {100 * gain.value:+.1f} "
        f"points [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}],\n   for {larger:.2f} "
        f"times the parameters and {dearer:.2f} times the training. "
        f"Pictures: {page}"
    )
    return result


def _ratio(ours: float | None, theirs: float | None) -> float:
    return math.nan if ours is None or theirs is None else ours / theirs


def _share_done(progress: BenchProgress) -> None:
    left = "" if progress.seconds_left is None else f", {time_left(progress.seconds_left)}"
    _tick(f"{progress.done} of {progress.total} networks trained{left}")


def _of_an_arm(arm: ArmSummary) -> str:
    found = (arm.test_accuracy, arm.parameters, arm.training_flops)
    accuracy, parameters, flops = (math.nan if number is None else number for number in found)
    return (
        f"accuracy {100 * accuracy:5.1f} %   {parameters:6,.0f} parameters   {flops / 1e9:5.1f} GFLOP   "
        f"{100 * arm.over_wait.value:+5.1f} points over left alone"
    )


def frozen_encoder(scale: Scale) -> str:
    """Act 2: returns the sentence that sums it up."""
    side_by_side = importlib.import_module("side_by_side")
    problem = importlib.import_module("frozen_encoder").PROBLEM
    ticker = Ticker(3 * scale.encoders, "networks trained")
    outcomes = side_by_side.compare(problem, scale.encoders, problem.epochs, progress=ticker.show)
    for name, each in outcomes.items():
        trained = sum(one.trained for one in each) / len(each)
        accuracy = side_by_side.mean_and_error([one.accuracy for one in each])
        print(f"   {name:12} {trained:6,.0f} trained parameters   accuracy {accuracy}")
    sentence: str = side_by_side.verdict(outcomes)
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
    ticker = Ticker(scale.rounds, "rounds")
    ticker.show(0)
    examiner = Examiner(TOY_SUITES["toy"].held_out(scale.draws))
    best = sum(plan.gain for plan in examiner.plans) / len(examiner.plans)
    gains: list[float] = []

    def show(news: News) -> None:
        if isinstance(news, RoundFinished) and news.mean_gain is not None:
            gains.append(news.mean_gain)
            ticker.show(news.round)
            if len(gains) == ROUNDS_A_LINE or news.round == scale.rounds:
                mean, curve = sum(gains) / len(gains), "".join(_bar(gain / best) for gain in gains)
                print(f"   until round {news.round:3} of {scale.rounds}: {mean:+.3f}  {curve}", flush=True)
                gains.clear()

    result = esper.train(config, progress=show)
    training = build(config)
    assert result.last_checkpoint is not None
    training.agent.load(result.last_checkpoint)
    share = examiner.score(training.agent).gain
    print(f"   On {scale.draws} worlds it has not met: {share:.0%} of the gain of the best plan of each.")
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
    print("1. Networks whose data change, and a controller that answers", flush=True)
    changing_data(folder / "bench", scale)
    print("\n2. A frozen encoder, and adapters that grow in it", flush=True)
    frozen_encoder(scale)
    print(
        "\n3. A controller that learns, from nothing: its gain over never growing, round by round", flush=True
    )
    learning(folder, scale)
    print(
        f"\n{time.monotonic() - began:.0f} seconds. Where to go on: docs/quickstart/practitioner.md (grow a model of "
        f"your own),\nresearcher.md (train and compare controllers), reinforcement.md (the environment); and\n"
        f"`esper watch {folder / 'toy'}` shows the run of part 3 in a browser (pip install 'esper-grow[watch]')."
    )


if __name__ == "__main__":
    main()
