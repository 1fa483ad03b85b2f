"""Teach controllers of `adapt_stream` by a teacher that knows the target, which no controller is shown.

The teacher is fitted on what each of a few seeds gained on each target of drawn streams (`target_lives.py`). It has
the seed that is expected to gain most, keeps what lives while it helps, and gives it back when it is expected to
harm. In the first round it plays; then the student plays, and the teacher says what it would do
(`esper.simic.teaching`). Each rng seed has draws, hosts and a network of its own, in a process of its own:

    python benchmarks/teach_targets.py --lives benchmarks/evidence/adapt_stream/target_lives.json \\
        --seeds 0 1 2 3 4 5 6 7 8 9 --rounds 3 --episodes 40 --passes 12 --device cuda --out runs/taught
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from harness import mean_and_error, report
from lessons import add_options, teach_seeds
from target_rules import TargetTable, fit_target_teacher, target_teacher, worth_left_out

TEACHER = "best_seed_of_target"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lives", type=Path, required=True, help="what target_lives.py wrote")
    add_options(parser)
    options = parser.parse_args()
    table = TargetTable.read(options.lives)
    mean, error = mean_and_error(list(worth_left_out(table).values()))
    print(
        f"composed of what was grown anew for each target, each stream left out, its choices add "
        f"{100 * mean:+.2f} ± {100 * error:.2f} points of life ({len(np.unique(table.cases))} streams)",
        flush=True,
    )
    teacher = fit_target_teacher(table)
    rows = teach_seeds("adapt_stream", partial(target_teacher, teacher=teacher), TEACHER, options)
    report("teach_targets", "Lessons on adapt_stream", rows, out=options.out / "teach_targets.json")


if __name__ == "__main__":
    main()
