"""Does it learn? One configuration trained with several seeds, each judged greedy on held-out instances and hosts.

Every seed trains in a process of its own (with `--workers` more for its hosts), at most `--at-once` of them together.
Then the last checkpoint of each, waiting and rules play the same episodes: of the held-out instances, or of new draws
from the training ranges (`--on draws`), to choose settings by.

    python benchmarks/study_learning.py --preset cpu --seeds 0 1 2 3 4 --workers 2 --at-once 1
    python benchmarks/study_learning.py --preset demo --set num_envs=8 rounds=30 --seeds 0
    python benchmarks/study_learning.py --preset shift --set warm_start=mine/seed-{seed} --on draws
    python benchmarks/study_learning.py --preset hosts --on draws --arm plain --arm ratios observation_units=ratios

With several arms each seed trains once in each of them, and all are judged on the same episodes. A seed whose run
exists under `--runs` is not trained again, so that the study can be stopped and gone on with.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from esper.leyline import EpisodeFinished, RoundFinished
from esper.nissa import read_events
from esper.simic.agent import PPOAgent
from esper.simic.building import build, evaluation_episodes
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.evaluation import LearnedPlayer, Player, RulePlayer, play_cases, utilities
from esper.simic.held_out import held_out_cases
from esper.tamiyo.rules import rule_policy
from esper.tolaria.worlds.baselines import BaselineCurves
from harness import Row, report

RULES = ("wait", "random", "probe_and_keep", "detect_then_probe")
RESAMPLES = 2000
DRAW_SEED, FIRST_HOST_SEED = 4242, 1_500_000


def main() -> None:
    options = _options()
    configs = configurations(options)
    began = time.perf_counter()
    train_all(list(configs.values()), options.at_once, began + 60 * options.minutes)
    print(f"trained after {time.perf_counter() - began:.0f} s", flush=True)
    judging = options.judging_workers or os.cpu_count() or 1
    some = next(iter(configs.values()))
    suite = some.suite
    wanted = (
        drawn(suite, options.episodes)
        if options.on == "draws"
        else held_out_cases(suite, options.episodes, 0)
    )
    baselines = make_world(suite, 1, horizon=some.horizon, device=some.device).baselines
    if some.reward_control_variate and isinstance(baselines, BaselineCurves):
        baselines.prepare(wanted, workers=judging)
    played = judge_all(configs, wanted, judging, options.together)
    _tell(options.name or options.preset, configs, played)
    print(f"judged after {time.perf_counter() - began:.0f} s", flush=True)


def configurations(options: argparse.Namespace) -> dict[str, TrainingConfig]:
    """ "seed 0", or "ratios, seed 0" where there are arms -> its settings; seeds of all arms before the next seed."""
    study, configs = options.name or options.preset, dict[str, TrainingConfig]()
    for seed in options.seeds:
        for arm, *settings in options.arm or [[""]]:
            given = [text.replace("{seed}", str(seed)) for text in (*options.set, *settings)]
            configs[f"{arm}, seed {seed}" if arm else f"seed {seed}"] = TrainingConfig.preset(
                options.preset,
                **{
                    "workers": options.workers,
                    **dict(setting_of(text) for text in given),
                    "seed": seed,
                    "run_name": f"{study}-{arm}-{seed}" if arm else f"{study}-{seed}",
                    "run_directory": str(options.runs),
                },
            )
    if len(configs) != len(options.seeds) * len(options.arm or [""]):
        raise SystemExit("--arm: expected a name of its own for each arm, and each of --seeds once")
    if len({config.suite for config in configs.values()}) > 1:
        raise SystemExit("--arm: all arms are judged on the same episodes; expected one suite")
    return configs


def train_all(configs: Sequence[TrainingConfig], at_once: int, deadline: float) -> None:
    """As `esper train` would, each in its own process; what runs past the deadline is asked to stop and save."""
    waiting, running = list(configs), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            config = waiting.pop(0)
            if not (Path(config.run_directory) / str(config.run_name)).exists():
                running.append(_start(config))
        running = [process for process in running if process.poll() is None]
        if time.perf_counter() > deadline:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()
            return
        time.sleep(0.5)


def _start(config: TrainingConfig) -> "subprocess.Popen[bytes]":
    file = Path(config.run_directory) / f"{config.run_name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    config.save(file)
    command = [sys.executable, "-m", "esper", "train", "--config", str(file), "--quiet"]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def drawn(suite: str, episodes: int) -> list[tuple[str, int]]:
    """(case, host seed): new draws of a suite, each met once."""
    rng, cases = np.random.default_rng(DRAW_SEED), make_world(suite, 1).cases
    return [(cases.draw(rng), FIRST_HOST_SEED + index) for index in range(episodes)]


def judge_all(
    configs: dict[str, TrainingConfig], wanted: Sequence[tuple[str, int]], workers: int, together: int
) -> dict[str, list[EpisodeFinished]]:
    """policy -> its episodes, the same for all."""
    some = next(iter(configs.values()))
    parts = [wanted[start : start + together] for start in range(0, len(wanted), together)]
    judges = {f"learned, {label}": config for label, config in configs.items()}
    names = [*RULES, *judges]
    jobs = [
        (name, judges.get(name, some), number, part) for name in names for number, part in enumerate(parts)
    ]
    spawn = multiprocessing.get_context("spawn")
    played: dict[str, dict[int, list[EpisodeFinished]]] = {name: {} for name in names}
    with ProcessPoolExecutor(workers, spawn) as pool:
        for name, number, judged in pool.map(_judge, jobs):
            played[name][number] = judged
    return {name: [one for number in sorted(of) for one in of[number]] for name, of in played.items()}


def _judge(
    job: tuple[str, TrainingConfig, int, Sequence[tuple[str, int]]],
) -> tuple[str, int, list[EpisodeFinished]]:
    name, config, number, part = job
    torch.set_num_threads(1)
    config = replace(config, workers=0, num_envs=8, num_minibatches=None)
    training = build(config)
    if name in RULES:
        rng = np.random.default_rng(number)
        player: Player = RulePlayer(lambda _: rule_policy(name, rng=rng))
    else:
        _load(training.agent, config)
        player = LearnedPlayer(training.agent.actor)
    arena = evaluation_episodes(training, config, len(part))
    return name, number, play_cases(player, arena, part)


def _flattery(played: Sequence[EpisodeFinished]) -> str:
    """By how much the half that was settled by is above the judged one, where settling took out a seed."""
    differences = [
        one.observed_accuracy - one.validation_accuracy
        for one in played
        if one.seeds_settled and one.observed_accuracy is not None and one.validation_accuracy is not None
    ]
    if len(differences) < 2:
        return f"? ({len(differences)})"
    error = float(np.std(differences, ddof=1)) / len(differences) ** 0.5
    return f"{np.mean(differences):+.4f} +- {error:.4f} ({len(differences)})"


def _load(agent: PPOAgent, config: TrainingConfig) -> None:
    path = Path(config.run_directory) / str(config.run_name) / "checkpoints" / "last.pt"
    checkpoint = torch.load(path, map_location=agent.device, weights_only=True)
    agent.policy.load_state_dict(checkpoint["policy"])
    agent.observation_stats.load_state_dict(checkpoint["observation_stats"])


def _tell(name: str, configs: dict[str, TrainingConfig], played: dict[str, list[EpisodeFinished]]) -> None:
    rows: list[Row] = []
    (family,) = {config.reward_family for config in configs.values()}
    worth = {policy: utilities(of, family) for policy, of in played.items()}
    wait, random = np.array(worth["wait"]), np.array(worth["random"])
    for policy, values in worth.items():
        mean, low, high = _interval(np.array(values) - wait)
        over, over_low, over_high = _interval(np.array(values) - random)
        rows.append(
            {
                "policy": policy,
                "episodes": len(values),
                "utility": float(np.mean(values)),
                "over wait": f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]",
                "over random": f"{over:+.4f} [{over_low:+.4f}, {over_high:+.4f}]",
                "settled half over judged": _flattery(played[policy]),
            }
        )
    report(
        f"learning_{name}",
        f"{name}: utility on the same episodes, with 95 % intervals of paired differences",
        rows,
    )
    curves = {label: list(_curve(config)) for label, config in configs.items()}
    print("\nmean gain of each round while it trains (it explores):")
    for label, curve in curves.items():
        gains = " ".join("?" if one.mean_gain is None else f"{one.mean_gain:+.3f}" for one in curve)
        last = curve[-1]
        print(f"{label}, {sum(one.seconds for one in curve):.0f} s: {gains}")
        print(f"   explained variance {last.explained_variance}, {dict(last.operations)}")
        print(f"   entropies {dict(last.entropy_by_head)}")
    out = Path(__file__).parent / "results" / f"learning_{name}_curves.json"
    rounds = {label: [asdict(one) for one in curve] for label, curve in curves.items()}
    out.write_text(json.dumps({"utilities": worth, "curves": rounds}, default=dict))


def _interval(differences: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float, float]:
    places = np.random.default_rng(0).integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[places].mean(axis=1), (0.025, 0.975)).tolist()
    return float(differences.mean()), low, high


def _curve(config: TrainingConfig) -> Iterator[RoundFinished]:
    run = Path(config.run_directory) / str(config.run_name)
    for record in read_events(run, kinds=["round_finished"]):
        assert isinstance(record.event, RoundFinished)
        yield record.event


def setting_of(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--name", help="of the study and its runs; the preset's if not given")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument(
        "--arm",
        nargs="+",
        action="append",
        metavar=("NAME", "FIELD=VALUE"),
        help="settings to compare, such as `--arm absolute --arm ratios observation_units=ratios`",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=2, help="processes that train hosts, for each seed")
    parser.add_argument("--at-once", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which training is stopped")
    parser.add_argument("--on", choices=("held_out", "draws"), default="held_out", help="what to judge on")
    parser.add_argument("--episodes", type=int, default=96, help="to judge by")
    parser.add_argument("--together", type=int, default=6, help="episodes that a process plays side by side")
    parser.add_argument("--judging-workers", type=int, help="for judging; all cores if not given")
    parser.add_argument("--runs", type=Path, default=Path("runs/study"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
