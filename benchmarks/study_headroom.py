"""Is there anything to decide? The headroom of open-loop schedules over the instances of the `cpu` suite's corners.

A grid of schedules (blueprint x slot x birth; one epoch in TRAINING, then a ramp of 3), each on nine instances with
paired seeds: what a mixer does where; the single best schedule (SBS) and the best for each instance (VBS), both
chosen on one half of the seeds and scored on the other; leave-one-out and the probe of a TRAINING seed against the
true gain; and the worth of growing when the data change. About two hours on one core: spread it with --workers.
"""

from collections import defaultdict

from growth_study import (
    CASES,
    Arm,
    Job,
    Outcome,
    bootstrap_interval,
    correlation,
    job_of,
    mean_and_error,
    options,
    play_missing,
    short,
)
from harness import Row, report

BLUEPRINTS = ("mixer", "conv_small", "conv_heavy", "attention", "norm")
SLOTS, BIRTHS = (0, 1, 2), (0, 5, 10)
RENTS = (0.01, 0.0, 0.05)
WAIT = Arm()
GRID = (WAIT, *(Arm(b, slot, born) for b in BLUEPRINTS for slot in SLOTS for born in BIRTHS))
CHANGES = (6, 10, 14)
SHIFT_EPOCHS = 24


def shift_case(change: int) -> str:
    return f"shift:change={change},kind=shuffle,shuffled=1.0,permutation=1"


def shift_jobs(seeds: int) -> list[Job]:
    jobs = []
    for change in CHANGES:
        arms = [WAIT, *(Arm("mixer", slot, born) for slot in SLOTS for born in (0, change, change + 3))]
        case = shift_case(change)
        jobs += [Job(case, seed, arm, SHIFT_EPOCHS) for seed in range(seeds) for arm in arms]
    return jobs


class Results:
    """Episodes by instance, arm and seed."""

    def __init__(self, episodes: list[Outcome]) -> None:
        self.by_key = {(job.case, job.arm, job.seed): row for row in episodes for job in (job_of(row),)}
        self.seeds = sorted({seed for _, _, seed in self.by_key})

    def utility(self, case: str, arm: Arm, seed: int, rent: float) -> float:
        row = self.by_key[case, arm, seed]
        return _number(row, "final") - rent * _number(row, "added")

    def mean(self, case: str, arm: Arm, seeds: list[int], rent: float) -> float:
        return sum(self.utility(case, arm, seed, rent) for seed in seeds) / len(seeds)


def headroom(results: Results, cases: tuple[str, ...], rent: float) -> dict[str, list[float]]:
    """SBS and VBS utilities minus waiting, seed by seed, each chosen on the seeds of the other half."""
    halves = results.seeds[::2], results.seeds[1::2]
    scores: dict[str, list[float]] = defaultdict(list)
    for chosen_on, scored_on in (halves, halves[::-1]):
        sbs = max(GRID, key=lambda arm: sum(results.mean(case, arm, chosen_on, rent) for case in cases))
        vbs = {case: max(GRID, key=lambda arm: results.mean(case, arm, chosen_on, rent)) for case in cases}
        for seed in scored_on:
            wait = sum(results.utility(case, WAIT, seed, rent) for case in cases) / len(cases)
            for name, arms in (("SBS", dict.fromkeys(cases, sbs)), ("VBS", vbs)):
                score = sum(results.utility(case, arms[case], seed, rent) for case in cases) / len(cases)
                scores[f"{name} - wait"].append(score - wait)
        scores["VBS - SBS"] = [v - s for v, s in zip(scores["VBS - wait"], scores["SBS - wait"], strict=True)]
    return scores


def headroom_rows(results: Results) -> list[Row]:
    rows: list[Row] = []
    for rent in RENTS:
        for label, cases in (("all nine", CASES), ("without digits", CASES[:-1])):
            row: dict[str, str | float | int] = {"rent": str(rent), "instances": label}
            for name, scores in headroom(results, cases, rent).items():
                middle, low, high = bootstrap_interval([[score] for score in scores])
                row[name] = f"{middle:+.4f} [{low:+.4f}, {high:+.4f}]"
            rows.append(row)
    return rows


def mixer_rows(results: Results) -> list[Row]:
    """The true effect of a mixer at each slot and birth, in points, and what leave-one-out says at the end."""
    rows: list[Row] = []
    for case in CASES:
        row: dict[str, str | float | int] = {"instance": short(case)}
        for slot in SLOTS:
            for born in (0, 10):
                arm = Arm("mixer", slot, born)
                gains = [_gain(results, case, arm, seed) for seed in results.seeds]
                mean, error = mean_and_error(100 * gain for gain in gains)
                told = [
                    _number(results.by_key[case, arm, seed], "contribution at the end")
                    for seed in results.seeds
                ]
                row[f"@{slot} t={born}"] = f"{mean:+.0f}±{error:.0f} ({100 * sum(told) / len(told):+.0f})"
        rows.append(row)
    return rows


def predictor_rows(results: Results) -> list[Row]:
    """How well what can be measured early predicts the final gain, over all schedules of the grid."""
    rows: list[Row] = []
    for born in BIRTHS:
        arms = [arm for arm in GRID if arm.blueprint is not None and arm.born == born]
        episodes = [
            (results.by_key[case, arm, seed], _gain(results, case, arm, seed))
            for case in CASES
            for arm in arms
            for seed in results.seeds
        ]
        row: dict[str, str | float | int] = {"born at": born, "episodes": len(episodes)}
        for name in ("contribution at 5", "contribution at the end", "probe"):
            known = [(_number(row, name), gain) for row, gain in episodes if row[name] is not None]
            row[f"r of {name}"] = round(correlation([x for x, _ in known], [gain for _, gain in known]), 2)
        rows.append(row)
    return rows


def variance_rows(results: Results) -> list[Row]:
    """Where the variance of the gain lies: main effects and interactions of a balanced design, in shares."""
    cells = {
        (arm.blueprint, arm.slot, arm.born, case): [_gain(results, case, arm, seed) for seed in results.seeds]
        for arm in GRID
        if arm.blueprint is not None
        for case in CASES
    }
    grand = sum(sum(v) for v in cells.values()) / sum(len(v) for v in cells.values())

    def effect(*axes: int) -> float:
        """Variance of the means over all cells that agree on these axes."""
        groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for key, values in cells.items():
            groups[tuple(key[axis] for axis in axes)] += values
        means = [sum(v) / len(v) - grand for v in groups.values()]
        return sum(mean**2 for mean in means) / len(means)

    total = sum((x - grand) ** 2 for v in cells.values() for x in v) / sum(len(v) for v in cells.values())
    b, s, t, i = (effect(axis) for axis in range(4))
    shares = {
        "blueprint": b,
        "slot": s,
        "birth": t,
        "instance": i,
        "blueprint x instance": effect(0, 3) - b - i,
        "blueprint x slot": effect(0, 1) - b - s,
        "slot x instance": effect(1, 3) - s - i,
        "birth x instance": effect(2, 3) - t - i,
        "blueprint x slot x instance": effect(0, 1, 3)
        - effect(0, 1)
        - effect(0, 3)
        - effect(1, 3)
        + b
        + s
        + i,
        "seed (noise)": total - effect(0, 1, 2, 3),
    }
    return [
        {"source": name, "share of the variance of the gain": round(share / total, 3)}
        for name, share in shares.items()
    ]


def shift_rows(results: Results) -> list[Row]:
    """What a mixer is worth that is born at the change, three epochs late, or at the beginning."""
    rows: list[Row] = []
    for slot in SLOTS:
        row: dict[str, str | float | int] = {"mixer at slot": slot}
        for name, lag in (("at the change", 0), ("3 late", 3), ("from epoch 0", None)):
            clusters: dict[int, list[float]] = defaultdict(list)
            for change in CHANGES:
                case = shift_case(change)
                for seed in results.seeds:
                    arm = Arm("mixer", slot, 0 if lag is None else change + lag)
                    clusters[seed].append(
                        results.utility(case, arm, seed, 0.0) - results.utility(case, WAIT, seed, 0.0)
                    )
            middle, low, high = bootstrap_interval(list(clusters.values()))
            row[name] = f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"
        rows.append(row)
    return rows


def _gain(results: Results, case: str, arm: Arm, seed: int) -> float:
    return results.utility(case, arm, seed, 0.0) - results.utility(case, WAIT, seed, 0.0)


def _number(row: Outcome, name: str) -> float:
    return float(str(row[name]))


def complete_seeds(rows: list[Outcome], per_seed: int) -> list[Outcome]:
    """Only the seeds of which every episode was played: the design must be balanced."""
    counts: dict[object, int] = defaultdict(int)
    for row in rows:
        counts[row["seed"]] += 1
    return [row for row in rows if counts[row["seed"]] == per_seed]


def main() -> None:
    chosen = options(__doc__, seeds=8)
    shift = play_missing("shift", shift_jobs(4), chosen)
    report(
        "shift",
        "When the data change (positions become shuffled): gain over waiting",
        shift_rows(Results(shift)),
    )
    jobs = [Job(case, seed, arm) for seed in range(chosen.seeds) for case in CASES for arm in GRID]
    rows = complete_seeds(play_missing("headroom", jobs, chosen), len(CASES) * len(GRID))
    results = Results(rows)
    print(f"{len(results.seeds)} paired seeds")
    report("headroom", "Headroom of open-loop schedules (utility)", headroom_rows(results))
    report(
        "mixer",
        "A mixer's true effect in points (and what leave-one-out says at the end)",
        mixer_rows(results),
    )
    report("predictors", "What predicts the final gain", predictor_rows(results))
    report("variance", "Where the variance of the gain lies", variance_rows(results))


if __name__ == "__main__":
    main()
