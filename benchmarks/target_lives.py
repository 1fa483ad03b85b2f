"""What each of a few seeds is worth on each target of drawn streams: what a teacher of `adapt_stream` is fitted on.

Every stream is lived without a seed, and once with each choice grown anew for each of its targets, on one host. A
choice that the cap of a stream has no room for is not played there.

    python benchmarks/target_lives.py --device cuda --workers 14 --seconds 120 --out target_lives.json

The streams are of the suite's distribution, none of them is held out, and none is one that `study_adapt_streams.py`
scores. After `--seconds` nothing new is begun; a stream that was not lived with every choice is left out when it
is read.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path

from adapt_stream_choices import ANEW, NEVER, Life, Lives, by_key, fits
from esper.simic.env.making import use_one_thread
from esper.tolaria.tasks import task
from harness import RESULTS
from spreading import Job, Spread
from study_adapt_streams import drawn, play

DRAWS = 50_261
"""Rng seed of the streams."""
HOST = 9000
CHOICES = ("norm@0", "lora@0", "small@0", "depthwise@0", "small@1", "depthwise@1", "large@1")
"""Those that `study_adapt_streams.py` found best anywhere, as kind@place; beside none."""


def read_lives(path: Path) -> tuple[Lives, list[str]]:
    """The lives of a file, and the streams that were lived with every choice there is room for."""
    lives = by_key(Life(**{**one, "targets": tuple(one["targets"])}) for one in json.loads(path.read_text()))
    cases = dict.fromkeys(case for _, case, _ in lives)
    return lives, [case for case in cases if all((arm, case, HOST) in lives for arm in arms_of(case))]


def arms_of(case: str) -> list[str]:
    """What can be lived on a stream."""
    return [NEVER, *(f"{choice} {ANEW}" for choice in CHOICES if fits(choice, case))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--draws", type=int, default=80, help="streams (%(default)s)")
    parser.add_argument("--group", type=int, default=4, help="streams played side by side (%(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after these")
    parser.add_argument("--out", type=Path, default=RESULTS / "target_lives.json", help="(%(default)s)")
    chosen = parser.parse_args()
    use_one_thread()
    cases, epochs = drawn(DRAWS, chosen.draws), task("adapt_stream").epochs
    jobs = []
    for start in range(0, len(cases), chosen.group):
        group = cases[start : start + chosen.group]
        for arm in dict.fromkeys(arm for case in group for arm in arms_of(case)):
            hosts = tuple((case, HOST) for case in group if arm in arms_of(case))
            jobs.append(Job(arm, hosts, chosen.device, epochs))
    with Spread(play, chosen.workers, chosen.seconds) as spread:
        lives = spread.results(jobs, "lives of drawn streams")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps([asdict(life) for life in lives]) + "\n")
    found, whole = read_lives(chosen.out)
    print(f"{len(whole)} of {len(cases)} streams were lived with every choice, {len(found)} lives in all")


if __name__ == "__main__":
    main()
