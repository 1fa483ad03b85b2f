"""Teach controllers of streams by a teacher that knows what the data are like, which no controller is shown.

The teacher has a mixer grown while positions are shuffled. In the first round it plays; then the student plays, and
the teacher says what it would have done (`esper.simic.teaching`). Each rng seed has draws, hosts and a network of its
own, in a process of its own. What is written is a controller that `esper bench --controller` takes:

    python benchmarks/teach_streams.py --seeds 0 1 2 3 4 5 6 7 8 9 --device cuda --out runs/taught
"""

import argparse

from esper.benchmark.stream_rules import FORESIGHT, foresight
from harness import report
from lessons import add_options, teach_seeds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    options = parser.parse_args()
    rows = teach_seeds("stream", foresight, FORESIGHT, options)
    report("teach_streams", "Lessons on streams", rows, out=options.out / "teach_streams.json")


if __name__ == "__main__":
    main()
