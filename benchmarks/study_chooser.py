"""What choosing by the shift can gain on `adapt`, over what others do with the same targets.

A teacher that is told what each target was drawn with (`teach_schedules.py`) chooses a schedule for it from outcomes
of the other targets; so does the single best schedule. No controller that learns from this teacher can be expected to
choose better. Beside them, on the same targets and hosts: the head alone, the even spread, and fine-tuning and LoRA
everywhere at the learning rates that were tuned on other draws. Test accuracy minus rent is compared, in pairs.

    python benchmarks/make_outcomes.py --suite adapt --device cuda --workers 11 --draws 100 --draw-hosts 1 \\
        --portfolio 5 --seeds 1 --instances 1 --out adapt.parquet
    python benchmarks/study_chooser.py --outcomes adapt.parquet --workers 2

`benchmarks/evidence/adapt/outcomes.parquet` are those of the page on adapters.
"""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from adapt_choices import SINGLES, TOGETHER
from esper.benchmark.outcomes import WAITING, Outcomes
from esper.benchmark.rivals import met_hosts
from esper.simic.env.making import use_one_thread
from esper.statistics import Floats
from esper.tolaria.tasks import Instance, task
from harness import RESULTS, Row, mean_and_error, report
from spreading import Job, Spread
from study_adapt import SPREAD, Life, group_of, play
from teach_schedules import choosable, gains_of, left_out_choices

TAUGHT, SINGLE = "chosen by the shift", "the single best schedule"
LORA = "lora 4, lr 0.005"
RIVALS = (LORA, "lora 16, lr 0.002", "fine-tuning, moving statistics, lr 0.002", SPREAD)
"""Learning rates are those that `benchmarks/study_adapt.py` tuned on other draws."""
HOSTS_TOGETHER = 6
Measured = dict[str, tuple[Floats, Floats]]
"""Arm -> test utility over the head alone, and parameters that were trained, (target,)"""


def chosen(outcomes: Outcomes, schedules: int) -> Measured:
    """What the teacher and the single best schedule choose, each target left out in turn."""
    offered = choosable(outcomes, schedules)
    _, layouts = met_hosts(offered.cases, "adapt")
    left_out, gains = left_out_choices(offered, layouts), gains_of(offered, offered.score)
    hosts = list(product(offered.cases, offered.seeds))
    words = {schedule: choice for choice, schedule in (SINGLES | TOGETHER).items()}
    found: Measured = {}
    for arm, choices in ((TAUGHT, left_out.taught), (SINGLE, left_out.single_best)):
        names = [offered.schedules[choice] for choice in choices]
        played = [offered.by_key[case, name, seed] for name, (case, seed) in zip(names, hosts, strict=True)]
        trained = [head_parameters(row.case) + (row.added_parameters or 0) for row in played]
        found[arm] = (
            _by_target(gains[np.arange(len(hosts)), choices], offered),
            _by_target(trained, offered),
        )
        counted = Counter(words.get(name, "nothing") for name in names).most_common()
        print(f"{arm}: {', '.join(f'{name} x{count}' for name, count in counted)}")
    return found


def rivals(outcomes: Outcomes, lives: Sequence[Life]) -> Measured:
    """What others do with the same hosts."""
    known = {(life.arm, life.case, life.seed): life for life in lives}
    hosts = list(product(outcomes.cases, outcomes.seeds))
    waited = np.array([outcomes.by_key[case, WAITING, seed].score for case, seed in hosts])
    found: Measured = {}
    for arm in RIVALS:
        played = [known[arm, case, seed] for case, seed in hosts]
        gains = np.array([life.test for life in played]) - waited
        found[arm] = _by_target(gains, outcomes), _by_target([life.trained for life in played], outcomes)
    return found


def _by_target(values: ArrayLike, outcomes: Outcomes) -> Floats:
    """(host,) -> mean over the hosts of each target, (target,)."""
    means: Floats = np.asarray(values, float).reshape(len(outcomes.cases), -1).mean(axis=1)
    return means


@cache
def head_parameters(case: str) -> int:
    """What is trained of a host that grows nothing."""
    instance = Instance.parse(case)
    host = instance.row.host(instance.load())
    return sum(parameter.numel() for parameter in host.parameters() if parameter.requires_grad)


def rows_of(measured: Measured, cases: Sequence[str]) -> list[Row]:
    """An arm a row: over the head alone, over LoRA of rank 4, and by what the shift changes."""
    groups = np.array([group_of(case) for case in cases])
    rows: list[Row] = []
    for arm, (gains, trained) in sorted(measured.items(), key=lambda item: -item[1][0].mean()):
        row: Row = {
            "arm": arm,
            "over the head alone": _points(gains),
            "over LoRA of rank 4": "" if arm == LORA else _points(gains - measured[LORA][0]),
            "parameters trained": f"{trained.mean():,.0f}",
            **{str(group): _points(gains[groups == group]) for group in dict.fromkeys(groups)},
        }
        rows.append(row)
    return rows


def _points(gains: Floats) -> str:
    mean, error = mean_and_error(list(gains))
    return f"{100 * mean:+.1f} ± {100 * error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outcomes", type=Path, required=True, help="what make_outcomes.py wrote")
    parser.add_argument("--schedules", type=int, default=8, help="that are chosen from (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON (%(default)s)")
    options = parser.parse_args()
    use_one_thread()
    drawn = Outcomes.read(options.outcomes).part(held_out=False)
    hosts = list(product(drawn.cases, drawn.seeds))
    together = [tuple(hosts[at : at + HOSTS_TOGETHER]) for at in range(0, len(hosts), HOSTS_TOGETHER)]
    jobs = [Job(arm, some, options.device, task("adapt").epochs) for some in together for arm in RIVALS]
    with Spread(play, options.workers, math.inf) as spread:
        lives = spread.results(jobs, "rivals")
    rows = rows_of(chosen(drawn, options.schedules) | rivals(drawn, lives), drawn.cases)
    options.out.mkdir(parents=True, exist_ok=True)
    title = (
        f"Test accuracy minus rent on {len(drawn.cases)} targets, in points, ± a standard error over targets"
    )
    report("adapt_chooser", title, rows, out=options.out / "adapt_chooser.json")


if __name__ == "__main__":
    main()
