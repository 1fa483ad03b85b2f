"""Teach controllers of `adapt_stream` by a teacher that knows the target, which no controller is shown.

The teacher is fitted on what each of a few seeds gained on each target of drawn streams (`target_lives.py`). It has
the seed that is expected to gain most, keeps what lives while it helps, and gives it back when it is expected to
harm. Lessons are what it says in the states that somebody leads to: at first it plays, then a student that was taught
from the lessons so far (`esper.simic.teaching`). Networks are taught from all lessons:

    L=benchmarks/evidence/adapt_stream/target_lives.json
    python benchmarks/teach_targets.py play --lives $L --seed 20 --episodes 64 --out lessons/20.safetensors
    python benchmarks/teach_targets.py fit lessons/*.safetensors --seeds 0 --out first
    python benchmarks/teach_targets.py play --lives $L --seed 30 --student first/adapt_stream-0.safetensors \\
        --episodes 64 --out lessons/30.safetensors
    python benchmarks/teach_targets.py fit lessons/*.safetensors --seeds 0 1 2 3 4 5 6 7 8 9 --out taught

Streams are drawn by `--seed`, none of them is held out. A file of lessons is kept after each 16 lives.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save

from esper.leyline.files import write_bytes
from esper.runs.ship import controller_of_network
from esper.simic.building import build
from esper.simic.cloning import PolicyNetwork
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import use_one_thread
from esper.simic.evaluation import LearnedPlayer
from esper.simic.offline.dataset import Dataset, write_episodes
from esper.simic.offline.recording import Advised, joined
from esper.simic.teaching import record_advised
from harness import Row, mean_and_error, report
from target_rules import TargetTable, fit_target_teacher, target_teacher, worth_left_out

TEACHER = "best_seed_of_target"


def config_of(seed: int, device: str) -> TrainingConfig:
    """The preset, without what only PPO needs."""
    return TrainingConfig.preset(
        "adapt_stream", seed=seed, device=device, reward_control_variate=False, workers=0
    )


# Playing


def play(chosen: argparse.Namespace) -> None:
    """Write the lessons of lives on drawn streams."""
    table = TargetTable.read(chosen.lives)
    mean, error = mean_and_error(list(worth_left_out(table).values()))
    print(
        f"composed of what was grown anew for each target, each stream left out, the teacher's choices add "
        f"{100 * mean:+.2f} ± {100 * error:.2f} points of life ({len(set(table.cases))} streams)",
        flush=True,
    )
    teacher = fit_target_teacher(table)
    student = None if chosen.student is None else LearnedPlayer(PolicyNetwork.load(chosen.student).actor)
    use_one_thread()
    training = build(config_of(chosen.seed, chosen.device))
    drawn = list(training.pool.pairs())
    if not 1 <= chosen.episodes <= len(drawn):
        raise SystemExit(
            f"--episodes is {chosen.episodes}; expected 1 to {len(drawn)}, as many as a seed draws"
        )
    lessons, lives = list[Advised](), list[float]()
    began, envs = time.monotonic(), training.envs.num_envs
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        for start in range(0, chosen.episodes, envs):
            said, worths = record_advised(
                partial(target_teacher, teacher=teacher),
                student,
                training.envs.episodes,
                drawn[start : min(start + envs, chosen.episodes)],
                policy=TEACHER,
            )
            lessons, lives = lessons + said, lives + worths
            write_lessons(lessons, chosen.out)
            seconds = time.monotonic() - began
            print(f"{len(lives)} lives, mean {np.mean(lives):.4f}, {seconds:.0f} s", flush=True)
    finally:
        training.envs.close()


def write_lessons(lessons: Sequence[Advised], file: Path) -> None:
    """The episodes as a data set, and beside it what the teacher says at each step."""
    advice = torch.cat([lesson.advice for lesson in lessons]).contiguous()
    write_bytes(_advice_of(file), save({"advice": advice}))
    write_episodes(file, joined(lessons))


def _advice_of(file: Path) -> Path:
    return file.with_suffix(".advice")


# Teaching


def fit(chosen: argparse.Namespace) -> None:
    """Write a network and a controller for each rng seed."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")
    with ProcessPoolExecutor(chosen.workers, mp_context=context, initializer=use_one_thread) as pool:
        rows = list(pool.map(partial(_fitted, chosen=chosen), chosen.seeds))
    report("teach_targets", "Lessons on adapt_stream", rows, out=chosen.out / "teach_targets.json")


def read_lessons(files: Sequence[Path]) -> Advised:
    """All lessons of some files, one after another."""
    episodes = joined(part for file in files for part in Dataset.open([file]).parts())
    return episodes.advised(torch.cat([load_file(_advice_of(file))["advice"] for file in files]))


def _fitted(seed: int, chosen: argparse.Namespace) -> Row:
    lessons, config = read_lessons(chosen.lessons), config_of(seed, "cpu")
    network = PolicyNetwork(
        lessons.space, hidden_size=config.hidden_size, num_lstm_layers=config.num_lstm_layers, seed=seed
    )
    began = time.monotonic()
    found = network.to(chosen.device).fit(lessons, passes=chosen.passes).training
    network.notes = {
        "config": config.to_dict(),
        "rule": TEACHER,
        "episodes": len(lessons),
        "env_steps": lessons.steps,
        "seconds": round(time.monotonic() - began, 1),
    }
    student = f"{config.suite}-{seed}"
    network.to("cpu").save(chosen.out / f"{student}.safetensors")
    controller_of_network(network, name=student).save(chosen.out / student)
    acting = "-" if found.acting is None else f"{found.acting:.3f}"
    return {
        "seed": seed,
        "lives": len(lessons),
        "agreement": f"{found.joint:.3f}",
        "where the teacher acts": acting,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="play|fit")
    playing = verbs.add_parser("play", help="lessons from lives that the teacher or a student leads")
    playing.add_argument("--lives", type=Path, required=True, help="what target_lives.py wrote")
    playing.add_argument("--seed", type=int, default=0, help="of streams and hosts (%(default)s)")
    playing.add_argument("--episodes", type=int, default=64, help="lives (%(default)s)")
    playing.add_argument("--student", type=Path, help="a network that plays; by default the teacher")
    playing.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    playing.add_argument("--out", type=Path, required=True, help="file of lessons, .safetensors")
    playing.set_defaults(run=play)
    fitting = verbs.add_parser("fit", help="networks from lessons")
    fitting.add_argument("lessons", type=Path, nargs="+", help="files that `play` wrote")
    fitting.add_argument("--seeds", type=int, nargs="+", default=[0], help="of networks (%(default)s)")
    fitting.add_argument("--passes", type=int, default=15, help="over all lessons (%(default)s)")
    fitting.add_argument("--workers", type=int, default=2, help="processes (%(default)s)")
    fitting.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    fitting.add_argument("--out", type=Path, required=True, help="folder")
    fitting.set_defaults(run=fit)
    chosen = parser.parse_args()
    chosen.run(chosen)


if __name__ == "__main__":
    main()
