"""Can a controller be learned from recorded episodes alone? Random episodes are recorded, learned from, and judged.

Episodes of a random policy that prunes seldom are played on the training pool of a preset, in `--workers` processes.
Then `esper train --offline` learns from them, one process a seed, and the last checkpoint of each, waiting and rules
play the same episodes on new draws of the suite (or on held-out ones).

    python benchmarks/study_offline.py --preset cpu --device cuda --learn-on cuda --episodes 2560 --workers 15 \\
        --seeds 0 1 2 3 4 --set pool_cases=512 lr=3e-3 rounds=30 offline_batches=50 offline_batch=64    # with MPS
    python benchmarks/study_offline.py --preset toy --episodes 20480 --together 512 --workers 1 --seeds 0 1 2 \\
        --on held_out --judged 128 --set normalize_observations=true first_growth=1 lr=2e-3 rounds=60 offline_batch=64

What exists under `--runs` is not made again: recording, training and judging can each be stopped and gone on with.
"""

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from esper.simic.building import build, prepare_baselines
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.env.making import TOY_HORIZON
from esper.simic.evaluation import utilities
from esper.simic.held_out import held_out_cases
from esper.simic.offline.dataset import Dataset, write_episodes
from esper.simic.offline.recorder import RandomPlayer, record_episodes
from esper.statistics import mean_interval
from esper.tolaria.worlds.baselines import BaselineCurves
from esper.tolaria.worlds.toy.instance import toy_instance
from harness import Row, report
from study_learning import drawn, judge_all, setting_of, train_all

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from toy_oracle import best_plan

PATIENT = {"WAIT": 1.0, "ADVANCE": 2.0, "PRUNE": -4.0, "FOSSILIZE": -3.0}
"""Logits of random operations under which most seeds grow up, so that what they are worth is seen, and some become
part of the host, so that what may grow after them is."""


def main() -> None:
    options = _options()
    base = TrainingConfig.preset(
        options.preset,
        **{
            "device": options.device,
            "workers": 0,
            "run_directory": str(options.runs),
            "eval_every": 0,
            **dict(setting_of(text) for text in options.set),
        },
    )
    began, folder = time.perf_counter(), options.runs / f"episodes-by-{options.together}"
    record_all(base, folder, options.episodes, options.workers, options.together)
    data = Dataset.open([folder])
    gains = [row.gain for row in data.rows if row.gain is not None]
    print(
        f"{len(data)} episodes, mean gain {np.mean(gains):+.4f}, after {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    configs = {
        f"seed {seed}": replace(
            base, seed=seed, run_name=f"offline-{seed}", offline=(str(folder),), device=options.learn_on
        )
        for seed in options.seeds
    }
    train_all(list(configs.values()), options.workers, began + 60 * options.minutes)
    print(f"trained after {time.perf_counter() - began:.0f} s", flush=True)
    on_draws = options.on == "draws"
    wanted = drawn(base.suite, options.judged) if on_draws else held_out_cases(base.suite, options.judged, 0)
    judged = {label: replace(config, device=options.device) for label, config in configs.items()}
    baselines = make_world(base.suite, 1, horizon=base.horizon, device=options.device).baselines
    if isinstance(baselines, BaselineCurves):
        baselines.prepare(wanted, workers=options.workers)
    played = judge_all(judged, wanted, options.workers, together=16)
    worth = {policy: np.array(utilities(of, base.reward_family)) for policy, of in played.items()}
    worth["learned, mean of the seeds"] = np.mean(
        [values for policy, values in worth.items() if policy.startswith("learned")], axis=0
    )
    best = oracle_gain([case for case, _ in wanted]) if base.suite == "toy" else None
    rows: list[Row] = []
    for policy, values in worth.items():
        gain = values - worth["wait"]
        low, high = mean_interval(gain.tolist()) or (math.nan, math.nan)
        rows.append(
            {
                "policy": policy,
                "episodes": len(values),
                "over waiting": f"{gain.mean():+.4f} [{low:+.4f}, {high:+.4f}]",
                **({} if best is None else {"share of the oracle's": f"{gain.mean() / best:.0%}"}),
            }
        )
    report(f"offline_{options.preset}", f"{options.preset}: from {len(data)} recorded episodes alone", rows)
    print(f"judged after {time.perf_counter() - began:.0f} s", flush=True)


def oracle_gain(cases: Sequence[str]) -> float:
    """Mean gain of the best plans for these cases of the toy."""
    return fmean(best_plan(toy_instance(case), horizon=TOY_HORIZON).gain for case in cases)


def record_all(config: TrainingConfig, folder: Path, episodes: int, workers: int, together: int) -> None:
    """Random episodes of the training pool, in files of `together`; the pool's baselines are trained first."""
    parts = [number for number in range(-(-episodes // together)) if not _file(folder, number).exists()]
    if not parts:
        return
    training = build(replace(config, num_envs=1, num_minibatches=1))
    prepare_baselines(training, config)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn) as pool:
        for _ in pool.map(_record, [(config, folder, number, together) for number in parts]):
            pass


def _record(job: tuple[TrainingConfig, Path, int, int]) -> None:
    """One file: hosts of the pool in turn, each met again with other actions in a later file."""
    config, folder, number, together = job
    torch.set_num_threads(1)
    training = build(replace(config, num_envs=together, num_minibatches=None))
    episodes = training.envs.episodes
    episodes.critic_looks = config.critic_sees_baseline
    player = RandomPlayer(episodes.space.action_layout, torch.Generator().manual_seed(1000 + number), PATIENT)
    first = number * together
    wanted = list(islice(cycle(training.pool.pairs()), first, first + together))
    recording, _ = record_episodes(
        player, episodes, wanted, policy="random", log_probs=lambda: player.log_prob
    )
    write_episodes(_file(folder, number), recording)


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.safetensors"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--preset", default="toy")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument("--device", default="cpu", help="where hosts are trained")
    parser.add_argument("--learn-on", default="cpu", help="where the offline runs compute")
    parser.add_argument("--episodes", type=int, default=2048, help="to record")
    parser.add_argument(
        "--together", type=int, default=32, help="hosts side by side while it records: a file"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--workers", type=int, default=2, help="processes that record, train and judge")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which training is stopped")
    parser.add_argument("--on", choices=("held_out", "draws"), default="draws", help="what to judge on")
    parser.add_argument("--judged", type=int, default=96, help="episodes to judge by")
    parser.add_argument("--runs", type=Path, default=Path("runs/study-offline"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
