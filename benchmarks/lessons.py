"""What scripts that teach controllers share: a network for each rng seed, each taught in a process of its own."""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from esper.runs.ship import controller_of_network
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import use_one_thread
from esper.simic.teaching import Lesson, TeacherOf, teach
from harness import Row
from study_learning import setting_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `teach_seeds`."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="rng seeds (%(default)s)")
    parser.add_argument("--at-once", type=int, default=10, help="processes (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="of playing and teaching (%(default)s)")
    parser.add_argument("--episodes", type=int, default=64, help="of a round (%(default)s)")
    parser.add_argument("--passes", type=int, default=40, help="over what was said, a round (%(default)s)")
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument("--out", type=Path, default=Path("runs/taught"), help="folder (%(default)s)")


def teach_seeds(preset: str, teacher_of: TeacherOf, name: str, options: argparse.Namespace) -> list[Row]:
    """Teach and write a network and a controller for each seed; a row for each of their lessons.

    teacher_of  can be sent to other processes
    name        of the teacher, for the files
    """
    context = multiprocessing.get_context("spawn")
    processes = min(options.at_once, len(options.seeds))
    with ProcessPoolExecutor(processes, mp_context=context, initializer=use_one_thread) as pool:
        teach_one = partial(_taught, preset=preset, teacher_of=teacher_of, name=name, options=options)
        found = list(pool.map(teach_one, options.seeds))
    return [row for seed, lessons in zip(options.seeds, found, strict=True) for row in _rows(seed, lessons)]


def _taught(
    seed: int, preset: str, teacher_of: TeacherOf, name: str, options: argparse.Namespace
) -> list[Lesson]:
    changed = dict(setting_of(text) for text in options.set)
    config = TrainingConfig.preset(
        preset, seed=seed, device=options.device, reward_control_variate=False, workers=0, **changed
    )
    lessons: list[Lesson] = []
    began = time.monotonic()

    def show(number: int, lesson: Lesson) -> None:
        lessons.append(lesson)
        print(f"seed {seed}, round {number + 1}, {time.monotonic() - began:.0f} s: {lesson}", flush=True)

    network = teach(
        config,
        teacher_of,
        name,
        rounds=options.rounds,
        episodes=options.episodes,
        passes=options.passes,
        progress=show,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    student = f"{config.suite}-{seed}"
    network.save(options.out / f"{student}.safetensors")
    controller_of_network(network, name=student).save(options.out / student)
    return lessons


def _rows(seed: int, lessons: Sequence[Lesson]) -> list[Row]:
    return [
        {
            "seed": seed,
            "round": number,
            "played by": "student" if number > 1 else "teacher",
            "utility": f"{lesson.utility:.4f}",
            "agreement": f"{lesson.agreement:.3f}",
            "where the teacher acts": "-" if lesson.acting is None else f"{lesson.acting:.3f}",
        }
        for number, lesson in enumerate(lessons, start=1)
    ]
