"""How many episodes does PPO need, from nothing, from a clone of a rule, and from an offline run?

Every arm trains with the same seeds, hosts and settings, and is judged greedy every few rounds on the same hosts that
it does not train on. Counted are the episodes until its gain there first reaches a share of the best possible, which
on the toy is known. Episodes that the offline run learned from are not counted: they were on disk.

    python benchmarks/study_offline.py --preset toy --seeds 0 1 2 3 4 --runs runs/study-offline
    python benchmarks/study_start.py --offline runs/study-offline/offline-{seed} --seeds 0 1 2 3 4

Prints a row for every arm and writes benchmarks/results/start_toy.json. An arm that does not get there within its
rounds counts with all its episodes, and is marked: its ratio is a lower bound, or of the first arm an upper one.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean, median

import torch

from esper.leyline import EvaluationFinished
from esper.simic.building import build, selection_cases
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import News
from esper.simic.trainer import train_ppo_vectorized
from harness import Row, report
from study_offline import oracle_gain

SHARES = (0.5, 0.8)
"""Of the oracle's gain."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: gains on the same hosts, by episodes played until then."""

    arm: str
    seed: int
    points: tuple[tuple[int, float], ...]
    """(episodes, mean gain over the best possible)"""
    seconds: float

    def reached(self, share: float) -> tuple[int, bool]:
        """Episodes until this share of the best gain, and whether it was reached; all episodes if it was not."""
        for episodes, found in self.points:
            if found >= share:
                return episodes, True
        return self.points[-1][0], False


def main() -> None:
    options = _options()
    arms = {
        "from nothing": {},
        f"from a clone of {options.rule}": {"warm_start": options.rule, **_held(options)},
        "from an offline run": {"warm_start": options.offline, **_held(options)},
    }
    jobs = [
        (arm, seed, _config(options, seed, {**changes}))
        for arm, changes in arms.items()
        for seed in options.seeds
    ]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        curves = list(pool.map(_train, jobs))
    report("start_toy", "toy: episodes until a share of the best possible gain", _rows(curves))
    for curve in curves:
        print(f"{curve.arm}, seed {curve.seed}, {curve.seconds:.0f} s: " + _points(curve))


def _rows(curves: Sequence[Curve]) -> list[Row]:
    """One for each arm and share: episodes by seed, and the median of the paired ratios to the first arm's."""
    by_arm: dict[str, dict[int, Curve]] = {}
    for curve in curves:
        by_arm.setdefault(curve.arm, {})[curve.seed] = curve
    first = next(iter(by_arm.values()))
    rows: list[Row] = []
    for share in SHARES:
        for arm, of in by_arm.items():
            reached = {seed: curve.reached(share) for seed, curve in of.items()}
            ratios = [first[seed].reached(share)[0] / max(one[0], 1) for seed, one in reached.items()]
            rows.append(
                {
                    "share of the best gain": share,
                    "arm": arm,
                    "reached": f"{sum(got for _, got in reached.values())} of {len(reached)}",
                    "episodes": " ".join(f"{n}{'' if got else '+'}" for n, got in reached.values()),
                    "times fewer, median": median(ratios),
                    "times fewer, least": min(ratios),
                    "last share": fmean(curve.points[-1][1] for curve in of.values()),
                }
            )
    return rows


def _points(curve: Curve) -> str:
    return " ".join(f"{episodes}:{share:.0%}" for episodes, share in curve.points)


def _train(job: tuple[str, int, TrainingConfig]) -> Curve:
    arm, seed, config = job
    torch.set_num_threads(1)
    points: list[tuple[int, float]] = []

    def listen(news: News) -> None:
        if isinstance(news, EvaluationFinished) and news.mean_gain is not None:
            points.append((news.round * config.num_envs, news.mean_gain))

    began = time.perf_counter()
    train_ppo_vectorized(config, progress=listen)
    seconds = time.perf_counter() - began
    best = oracle_gain([case for case, _ in selection_cases(build(config), config.eval_episodes)])
    return Curve(arm, seed, tuple((episodes, gain / best) for episodes, gain in points), seconds)


def _held(options: argparse.Namespace) -> dict[str, object]:
    """How a start is used: the critic first, then a KL that fades."""
    return {
        "start_critic_rounds": options.critic_rounds,
        "start_kl": options.kl,
        "start_kl_anneal_steps": options.kl_rounds,
    }


def _config(options: argparse.Namespace, seed: int, changes: dict[str, object]) -> TrainingConfig:
    """The arms of a seed see the same pool, and are judged on the same hosts; a clone knows raw observations."""
    start = changes.get("warm_start")
    if isinstance(start, str):
        changes["warm_start"] = start.replace("{seed}", str(seed))
    settings: dict[str, object] = {
        "seed": seed,
        "rounds": options.rounds,
        "eval_every": options.every,
        "run_telemetry": "off",
        "normalize_observations": start != options.rule,
    }
    return TrainingConfig.preset("toy", **settings, **changes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--offline", required=True, help="the offline run of a seed, with {seed} in its path")
    parser.add_argument("--rule", default="probe_and_keep", help="to clone")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=96)
    parser.add_argument("--every", type=int, default=2, help="rounds between judgements")
    parser.add_argument("--critic-rounds", type=int, default=2)
    parser.add_argument("--kl", type=float, default=0.3)
    parser.add_argument("--kl-rounds", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="runs at once")
    return parser.parse_args()


if __name__ == "__main__":
    main()
