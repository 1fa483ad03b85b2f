"""Episodes with one seed, run by hand: what the studies of mechanics and headroom are made of.

Every arm of a (case, seed) has the same host, the same minibatches and the same seed weights: differences are paired.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from itertools import product

import torch
from torch import Tensor

from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp, Stage
from esper.tolaria.engine.step import TrainingStep, forward
from esper.tolaria.worlds.engine import EngineWorld
from harness import RESULTS

CASES = (
    *(
        f"mnist1d:size={size},noise={noise},shuffled={shuffled},permutation=1"
        for shuffled, size, noise in product((0.0, 1.0), (4000, 1000), (0.0, 0.2))
    ),
    "digits",
)


def short(case: str) -> str:
    """`mnist1d:size=1000,noise=0.2,shuffled=1.0,...` -> `shuffled-small-noisy`."""
    if not case.startswith("mnist1d"):
        return case
    parts = ["shuffled" if "shuffled=1" in case else "ordered", "small" if "size=1000" in case else "full"]
    return "-".join([*parts, *(["noisy"] if "noise=0.2" in case else [])])


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to grow one seed; without a blueprint, to wait."""

    blueprint: str | None = None
    slot: int = 0
    born: int = 0
    """Epoch of germination."""
    isolated: int = 1
    """Epochs in TRAINING."""
    penalty: float = 10.0
    shadow: bool = False
    """In TRAINING, learn in a second forward with the seed on and the host held still."""
    ramp: int = 3
    """Epochs of the first ramp; 1 inserts the seed at once."""
    rate: float = 3.0
    """The seed's learning rate over the host's."""
    scale: float = 0.0
    """What the seed's output scale is born with."""


@dataclass(frozen=True, slots=True)
class Job:
    case: str
    seed: int
    arm: Arm
    epochs: int = 20


Outcome = dict[str, float | int | str | list[float] | None]


class ShadowStep(TrainingStep):
    """The host learns as if there were no TRAINING seed; the seed learns in a forward of its own."""

    def backward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        model = self.host.model
        training = {slot.name: slot for slot in self.host.slots if slot.stage is Stage.TRAINING}
        with model.override_alpha(dict.fromkeys(training, 0.0)):
            loss, logits = forward(self.host, inputs, targets)
            loss.backward()
        with model.override_alpha(dict.fromkeys(training, 1.0)):
            shadow, _ = forward(self.host, inputs, targets)
        parameters = [
            p for slot in training.values() if slot.seed is not None for p in slot.seed.parameters()
        ]
        for parameter, gradient in zip(parameters, torch.autograd.grad(shadow, parameters), strict=True):
            parameter.grad = gradient
        return loss, logits


def play(job: Job) -> Outcome:
    """One episode. Accuracies are of validation; `final` is the mean of the last two epochs."""
    arm, began = job.arm, time.perf_counter()
    world = EngineWorld(1)
    world.begin_many([Beginning(0, job.case, job.seed)])
    host = world.host(0)
    host.model.isolation_penalty = arm.penalty
    care = host.model.care
    assert care is not None
    care.seed_lr_multiplier = arm.rate
    name = host.slots[arm.slot].name
    accuracies, contributions, probes = [], dict[int, float](), dict[int, float]()
    for epoch in range(job.epochs):
        age = epoch - arm.born
        if arm.blueprint is not None and age == 0:
            host.apply(ActionSpec(LifecycleOp.GERMINATE, name, arm.blueprint))
            seed = host.slots[arm.slot].seed
            assert seed is not None
            with torch.no_grad():
                seed.scale.fill_(arm.scale)
        if arm.blueprint is not None and age == arm.isolated:
            host.slots[arm.slot].life.advance()  # by hand: the rules would ask for an epoch in TRAINING first
            ramp = host.slots[arm.slot].life.ramp
            assert ramp is not None
            ramp.epochs = arm.ramp
        if arm.shadow and arm.blueprint is not None and 0 <= age < arm.isolated:
            world.population._steps[0] = ShadowStep(host, world.population._tally[0])
        world.step_many([HostStep(0)])
        accuracies.append(host.report.validation_accuracy or 0.0)
        slot = host.slots[arm.slot]
        if slot.contribution is not None:
            contributions[age + 1] = slot.contribution
        if slot.probe is not None:
            probes[age + 1] = slot.probe
    return {
        **asdict(arm),
        "case": job.case,
        "seed": job.seed,
        "epochs": job.epochs,
        "final": (accuracies[-1] + accuracies[-2]) / 2,
        "accuracies": accuracies,
        "added": host.added_parameters / host.host_parameters,
        "contribution at 5": contributions.get(5),
        "contribution at the end": contributions[max(contributions)] if contributions else None,
        "probe": probes[max(probes)] if probes else None,
        "gap": None if host.report.train_accuracy is None else host.report.train_accuracy - accuracies[-1],
        "seconds": time.perf_counter() - began,
    }


def options(description: str | None, *, seeds: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=seeds, help="paired seeds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no episode after this time")
    parser.add_argument("--resume", action="store_true", help="keep the episodes of the last, unfinished run")
    return parser.parse_args()


def play_missing(name: str, jobs: Sequence[Job], chosen: argparse.Namespace) -> list[Outcome]:
    """The jobs' episodes, kept in results/<name>_episodes.json; with --resume only those that are not there yet."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}_episodes.json"
    rows: list[Outcome] = json.loads(path.read_text()) if chosen.resume and path.exists() else []
    known = {job_of(row) for row in rows} & set(jobs)
    rows = [row for row in rows if job_of(row) in known]
    rows += play_all(
        [job for job in jobs if job not in known], workers=chosen.workers, minutes=chosen.minutes
    )
    path.write_text(json.dumps(rows))
    return rows


def job_of(row: Outcome) -> Job:
    arm = Arm(**{field.name: row[field.name] for field in fields(Arm)})  # type: ignore[arg-type]
    return Job(str(row["case"]), int(str(row["seed"])), arm, int(str(row["epochs"])))


def play_all(jobs: Sequence[Job], *, workers: int, minutes: float = math.inf) -> list[Outcome]:
    """Every job, over processes, until the time is up; what was not begun by then is left out, and said so."""
    began, done, rows = time.monotonic(), 0, list[Outcome]()
    pending: set[Future[Outcome]] = set()
    queue = iter(sorted(jobs, key=lambda job: (job.seed, job.case)))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=prepare_process) as pool:
        while True:
            in_time = time.monotonic() - began < 60 * minutes
            while in_time and len(pending) < 2 * workers and (job := next(queue, None)) is not None:
                pending.add(pool.submit(play, job))
            if not pending:
                break
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            rows += [future.result() for future in finished]
            if len(rows) // 100 > done:
                done = len(rows) // 100
                elapsed = time.monotonic() - began
                print(f"  {len(rows)} of {len(jobs)} episodes, {elapsed:.0f} s", flush=True)
    if len(rows) < len(jobs):
        print(f"  stopped by the clock: {len(rows)} of {len(jobs)} episodes were played", flush=True)
    return rows


def prepare_process() -> None:
    torch.set_num_threads(1)


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    numbers = list(values)
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1) / len(numbers))


def bootstrap_interval(
    clusters: Sequence[Sequence[float]],
    statistic: Callable[[Tensor], Tensor] | None = None,
    *,
    draws: int = 4000,
) -> tuple[float, float, float]:
    """Mean over clusters of paired differences, with a 95 % interval that draws clusters (seeds) anew."""
    means = torch.tensor([sum(cluster) / len(cluster) for cluster in clusters], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(means), (draws, len(means)), generator=generator)
    drawn = means[picks].mean(1) if statistic is None else statistic(means[picks])
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return means.mean().item(), low, high


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    return float(torch.corrcoef(torch.tensor([xs, ys], dtype=torch.float64))[0, 1])
