"""Teach controllers of streams by a teacher that knows what the data are like, which no controller is shown.

The teacher has a mixer grown while positions are shuffled. In the first round it plays; then the student plays, and
the teacher says what it would have done (`esper.simic.teaching`). Each rng seed has draws, hosts and a network of its
own, in a process of its own. What is written is a controller that `esper bench --controller` takes:

    python benchmarks/teach_streams.py --seeds 0 1 2 3 4 5 6 7 8 9 --device cuda --out runs/taught
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from esper.benchmark.foresight import FORESIGHT, foresight
from esper.runs.ship import controller_of_network
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import use_one_thread
from esper.simic.teaching import Lesson, teach
from harness import report
from study_learning import setting_of


def taught(seed: int, options: argparse.Namespace) -> list[Lesson]:
    """Teach one network and write it."""
    changed = dict(setting_of(text) for text in options.set)
    config = TrainingConfig.preset(
        "stream", seed=seed, device=options.device, reward_control_variate=False, workers=0, **changed
    )
    lessons: list[Lesson] = []
    began = time.monotonic()

    def show(number: int, lesson: Lesson) -> None:
        lessons.append(lesson)
        print(f"seed {seed}, round {number + 1}, {time.monotonic() - began:.0f} s: {lesson}", flush=True)

    network = teach(
        config,
        foresight,
        FORESIGHT,
        rounds=options.rounds,
        episodes=options.episodes,
        passes=options.passes,
        progress=show,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    network.save(options.out / f"stream-{seed}.safetensors")
    controller_of_network(network, name=f"stream-{seed}").save(options.out / f"stream-{seed}")
    return lessons


def main() -> None:
    options = _options()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(options.at_once, len(options.seeds)), mp_context=context, initializer=use_one_thread
    ) as pool:
        found = list(pool.map(partial(taught, options=options), options.seeds))
    rows = [
        {
            "seed": seed,
            "round": number,
            "played by": "student" if number > 1 else "teacher",
            "life": f"{lesson.utility:.4f}",
            "agreement": f"{lesson.agreement:.3f}",
            "where the teacher acts": "-" if lesson.acting is None else f"{lesson.acting:.3f}",
        }
        for seed, lessons in zip(options.seeds, found, strict=True)
        for number, lesson in enumerate(lessons, start=1)
    ]
    report("teach_streams", "Lessons on streams", rows, out=options.out / "teach_streams.json")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="rng seeds (%(default)s)")
    parser.add_argument("--at-once", type=int, default=10, help="processes (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of playing and teaching (%(default)s)")
    parser.add_argument("--episodes", type=int, default=64, help="streams of a round (%(default)s)")
    parser.add_argument("--passes", type=int, default=40, help="over what was said, a round (%(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument("--out", type=Path, default=Path("runs/taught"), help="folder (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
