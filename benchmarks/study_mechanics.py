"""How should a seed be brought in? Penalty, shadow pass, plain ramp, waiting; its learning rate; its birth scale.

Nine instances, paired seeds, two kinds of seed, born at epoch 3 of 20. Each arm's final validation accuracy against a
plain ramp from birth (3 epochs, learning rate x3, scale 0) of the same instance and seed, in points; the interval
draws paired seeds anew. Takes about an hour on one core: spread it with --workers.
"""

from dataclasses import replace

from growth_study import CASES, Arm, Job, Outcome, bootstrap_interval, job_of, options, play_missing
from harness import Row, report

BORN = 3
SEEDS = {"mixer@2": Arm("mixer", 2, BORN, isolated=0), "conv_small@2": Arm("conv_small", 2, BORN, isolated=0)}
ARMS = {
    "plain ramp from birth": {},
    "inserted at once": {"ramp": 1},
    "wait 3, then plain ramp": {"born": BORN + 3},
    "isolated 1, penalty 10": {"isolated": 1},
    "isolated 3, no penalty": {"isolated": 3, "penalty": 0.0},
    "isolated 3, penalty 0.1": {"isolated": 3, "penalty": 0.1},
    "isolated 3, penalty 1": {"isolated": 3, "penalty": 1.0},
    "isolated 3, penalty 10": {"isolated": 3, "penalty": 10.0},
    "isolated 3, penalty 100": {"isolated": 3, "penalty": 100.0},
    "shadow 1, then ramp": {"isolated": 1, "shadow": True},
    "shadow 3, then ramp": {"isolated": 3, "shadow": True},
    "shadow 3, then at once": {"isolated": 3, "shadow": True, "ramp": 1},
    "ramp, learning rate x0.3": {"rate": 0.3},
    "ramp, learning rate x1": {"rate": 1.0},
    "ramp, learning rate x10": {"rate": 10.0},
    "ramp, birth scale 0.1": {"scale": 0.1},
}


def main() -> None:
    chosen = options(__doc__, seeds=6)
    wanted = {
        (seed_name, arm_name): replace(base, **changes)  # type: ignore[arg-type]
        for seed_name, base in SEEDS.items()
        for arm_name, changes in ARMS.items()
    }
    jobs = [Job(case, seed, arm) for seed in range(chosen.seeds) for case in CASES for arm in wanted.values()]
    rows = play_missing("mechanics", jobs, chosen)
    report(
        "mechanics",
        "Bringing a seed in: points of final accuracy against a plain ramp from birth",
        table(rows),
    )


def table(episodes: list[Outcome]) -> list[Row]:
    index = {(job.case, job.seed, job.arm): row for row in episodes for job in (job_of(row),)}
    rows: list[Row] = []
    for arm_name, changes in ARMS.items():
        row: dict[str, str | float | int] = {"arm": arm_name}
        for seed_name, base in SEEDS.items():
            clusters: dict[int, list[float]] = {}
            steps: list[float] = []
            for case in CASES:
                for seed in sorted({int(str(row["seed"])) for row in episodes}):
                    arm = replace(base, **changes)  # type: ignore[arg-type]
                    ours, theirs = (index.get((case, seed, a)) for a in (arm, base))
                    if ours is not None and theirs is not None:
                        clusters.setdefault(seed, []).append(100 * (_number(ours) - _number(theirs)))
                        steps.append(_insertion(ours, arm))
            if clusters:
                middle, low, high = bootstrap_interval(list(clusters.values()))
                row[f"{seed_name}"] = f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"
                row[f"{seed_name}: first epoch in"] = f"{100 * sum(steps) / len(steps):+.1f}"
                row["pairs"] = sum(len(cluster) for cluster in clusters.values())
        if len(row) > 1:  # something was played
            rows.append(row)
    return rows


def _number(row: Outcome) -> float:
    return float(str(row["final"]))


def _insertion(row: Outcome, arm: Arm) -> float:
    """How validation accuracy moved in the first epoch of blending."""
    accuracies = row["accuracies"]
    assert isinstance(accuracies, list)
    first = arm.born + arm.isolated
    return accuracies[first] - accuracies[first - 1]


if __name__ == "__main__":
    main()
