"""Put a trained controller into the package, what a benchmark measured of it on its card.

    python scripts/ship_controller.py benchmarks/controllers/cpu-v1-seed2 --as cpu-v1 \\
        --summary "..." --bench benchmarks/evidence/cpu --arm learned --member 2

Gains are on the validation split, as those of `esper evaluate`; the test accuracy is beside them.
"""

import argparse
from pathlib import Path

import numpy as np

from esper.benchmark import read_bench
from esper.benchmark.arms import RULES, WAIT
from esper.benchmark.rows import BenchRow
from esper.runs.ship import with_evidence
from esper.statistics import mean_interval
from esper.tamiyo.controller import SHIPPED, Controller, HeldOutScore


def main() -> None:
    options = _options()
    controller = Controller.load(options.controller)
    result = read_bench(options.bench)
    played = {row.arm for row in result.rows}
    missing = [arm for arm in (options.arm, WAIT) if arm not in played]
    if missing:
        raise SystemExit(
            f"{missing[0]} was not played in {options.bench}; there are {', '.join(sorted(played))}"
        )
    by_arm = {
        policy: _rows(result.rows, policy, options.member if policy == options.arm else 0)
        for policy in (options.arm, WAIT, *RULES)
        if policy in played
    }
    waited = {key: row.utility or 0.0 for key, row in by_arm[WAIT].items()}
    scores = [
        _score(options.name if policy == options.arm else policy, rows, waited)
        for policy, rows in by_arm.items()
    ]
    card = controller.card.model_copy(
        update={"name": options.name, "summary": options.summary, "evidence": ()}
    )
    shipped = with_evidence(Controller(card, controller.weights), result.record.suite, scores)
    shipped.save(SHIPPED / options.name)
    for score in scores:
        print(score)


def _rows(rows: tuple[BenchRow, ...], arm: str, member: int) -> dict[tuple[str, int], BenchRow]:
    return {(row.instance, row.seed): row for row in rows if row.arm == arm and row.member == member}


def _score(
    policy: str, rows: dict[tuple[str, int], BenchRow], waited: dict[tuple[str, int], float]
) -> HeldOutScore:
    utility = {key: row.utility or 0.0 for key, row in rows.items()}
    gains = [utility[key] - waited[key] for key in waited]
    low, high = mean_interval(gains) or (None, None)
    tested = [row.test_accuracy for row in rows.values()]
    added = [row.added_parameters for row in rows.values()]
    return HeldOutScore(
        policy=policy,
        episodes=len(rows),
        utility=float(np.mean(list(utility.values()))),
        gain=float(np.mean(gains)),
        gain_low=low,
        gain_high=high,
        test_accuracy=None if None in tested else float(np.mean(tested)),  # type: ignore[arg-type]
        added_parameters=None if None in added else float(np.mean(added)),  # type: ignore[arg-type]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("controller", type=Path, help="a controller's folder")
    parser.add_argument("--as", dest="name", required=True, help="what it is called from now on")
    parser.add_argument("--summary", required=True, help="one line on what it is")
    parser.add_argument(
        "--bench", type=Path, required=True, help="the folder of a benchmark that it played in"
    )
    parser.add_argument("--arm", default="learned")
    parser.add_argument("--member", type=int, required=True, help="which of the arm's controllers it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
