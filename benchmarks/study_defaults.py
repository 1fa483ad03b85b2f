"""What a Grower's default is worth: ten problems that no rule was tuned on, in an ordinary training loop.

python benchmarks/study_defaults.py [--seeds 6] [--problems digits sines ...]

For each seed the same network, data and minibatches: left alone, grown by the default and by probe_and_keep. Beside
them what a sceptic would try: a network that was as wide as the grown one from the start, and `try 2`, which trains
both and keeps what is better on validation. The test split is opened when all of them are trained. A score is the
accuracy, or the share of variance explained where the target is a number.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

import esper
from default_problems import PROBLEMS, Problem, Split, Splits
from esper.statistics import Estimate, Resamples, paired_difference
from harness import RESULTS, Row, report

ALONE, DEFAULT, PROBING, WIDER, TRY_2 = "left alone", "default", "probe_and_keep", "wider", "try 2"
ARMS = (ALONE, DEFAULT, PROBING, WIDER, TRY_2)
FIRST_SEED = 2000


@dataclass(frozen=True)
class Outcome:
    """One training; the test score is looked at when all arms of a seed are trained."""

    problem: str
    seed: int
    arm: str
    rule: str | None
    """That decided."""
    parameters: int
    validation: float
    test: float
    seconds: float
    did: str = ""
    """Operations by epoch."""


@dataclass(frozen=True)
class Trained:
    network: nn.Module
    seconds: float
    grower: esper.Grower | None = None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return F.mse_loss(outputs, targets)
    return F.cross_entropy(outputs, targets)


def score(network: nn.Module, part: Split) -> float:
    """Accuracy, or 1 - squared error / variance."""
    inputs, targets = part
    network.eval()
    with torch.inference_mode():
        outputs = network(inputs)
    if targets.is_floating_point():
        return 1.0 - float(F.mse_loss(outputs, targets)) / float(targets.var(correction=0))
    return float((outputs.argmax(-1) == targets).float().mean())


def validated(model: nn.Module, part: Split) -> dict[str, float]:
    """What a loop reports: the loss, and of classes the accuracy."""
    inputs, targets = part
    outputs = model(inputs)
    found = {"validation_loss": loss_of(outputs, targets).item()}
    if not targets.is_floating_point():
        found["validation_accuracy"] = (outputs.argmax(-1) == targets).float().mean().item()
    return found


def born(problem: Problem, width: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return problem.network(width)


def scheduled(problem: Problem, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler | None:
    """The schedule, stepped after every minibatch."""
    if problem.schedule == "cosine":
        return CosineAnnealingLR(optimizer, steps)
    if problem.schedule == "one cycle":
        return OneCycleLR(optimizer, problem.rate, total_steps=steps)
    return None


def train(problem: Problem, splits: Splits, seed: int, width: int, *, grow: str | None = None) -> Trained:
    """A loop as people write it. grow: a rule's name, or DEFAULT to name none; None leaves the network alone."""
    began = time.perf_counter()
    network = born(problem, width, seed)
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=problem.rate)
    (inputs, targets), validation, _ = splits
    scheduler = scheduled(problem, optimizer, problem.epochs * math.ceil(len(inputs) / problem.batch))
    grower = None
    if grow is not None:
        grower = esper.Grower(
            network,
            problem.slots,
            optimizer=optimizer,
            example_input=inputs[:2],
            controller=None if grow == DEFAULT else grow,
            validate=lambda model: validated(model, validation),
            epochs=problem.epochs,
            scheduler=scheduler,
            training_samples=len(inputs),
            seed=seed,
        )
    order = torch.Generator().manual_seed(seed)
    for _ in range(problem.epochs):
        network.train()
        losses = []
        for rows in torch.randperm(len(inputs), generator=order).split(problem.batch):
            loss = loss_of(network(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            losses.append(loss.item())
        if grower is not None:
            grower.step(train_loss=sum(losses) / len(losses))
    final = network if grower is None else grower.finish()
    return Trained(final, time.perf_counter() - began, grower)


def width_for(problem: Problem, parameters: int) -> int:
    """The narrowest network with at least so many parameters."""
    width = problem.width
    with torch.device("meta"):
        while sum(p.numel() for p in problem.network(width).parameters()) < parameters:
            width += 1
    return width


def play(problem: Problem, seed: int) -> list[Outcome]:
    """All arms of one seed, and only then the test split."""
    splits = problem.draw(seed)
    alone = train(problem, splits, seed, problem.width)
    trained = {ALONE: alone}
    for arm in (DEFAULT, PROBING):
        trained[arm] = train(problem, splits, seed, problem.width, grow=arm)
    width = width_for(problem, trained[DEFAULT].parameters)
    trained[WIDER] = alone if width == problem.width else train(problem, splits, seed, width)
    on_validation = {arm: score(each.network, splits[1]) for arm, each in trained.items()}
    better = max((ALONE, DEFAULT), key=on_validation.__getitem__)  # of equals the one left alone
    both = alone.seconds + trained[DEFAULT].seconds
    trained[TRY_2] = Trained(trained[better].network, both, trained[better].grower)
    return [
        Outcome(
            problem.name,
            seed,
            arm,
            None if each.grower is None else each.grower.controller,
            each.parameters,
            on_validation[better if arm == TRY_2 else arm],
            score(each.network, splits[2]),
            round(each.seconds, 2),
            "" if each.grower is None else story(each.grower),
        )
        for arm, each in trained.items()
    ]


def story(grower: esper.Grower) -> str:
    done = [decision for decision in grower.history if decision.action.slot is not None]
    return "; ".join(
        f"{decision.epoch} {decision.action.op.name.lower()} {decision.action.blueprint or ''}@{decision.action.slot}"
        for decision in done
    )


# Tables


def scores_of(outcomes: Sequence[Outcome], problems: Sequence[str], arm: str) -> np.ndarray:
    """(1, problem, seed) on the test split."""
    return np.array([[[o.test for o in outcomes if o.problem == name and o.arm == arm] for name in problems]])


def gain(outcomes: Sequence[Outcome], problems: Sequence[str], arm: str, *, others: bool = False) -> Estimate:
    """An arm's score over the network left alone, in points, paired. others: to be expected of other problems."""
    scores = [100.0 * scores_of(outcomes, problems, each) for each in (arm, ALONE)]
    resamples = Resamples(len(problems), scores[0].shape[2], new_instances=others)
    return resamples.estimate_of_means(paired_difference, *scores)


def shown(estimate: Estimate) -> str:
    bounds = f" [{estimate.low:+.1f}, {estimate.high:+.1f}]" if estimate.bounded else ""
    return f"{estimate.value:+.1f}{bounds}"


def rows_of(outcomes: Sequence[Outcome], problems: Sequence[Problem]) -> list[Row]:
    """A row a problem: the network left alone, then what each arm gained over it."""
    rows: list[Row] = []
    for problem in problems:
        mine = [outcome for outcome in outcomes if outcome.problem == problem.name]
        added = mean_of(mine, DEFAULT, lambda o: o.parameters) - mean_of(mine, ALONE, lambda o: o.parameters)
        row: dict[str, str | float | int] = {
            "problem": problem.name,
            "what": f"{problem.about}; {problem.schedule}",
            "parameters": round(mean_of(mine, ALONE, lambda o: o.parameters)),
            ALONE: f"{100 * mean_of(mine, ALONE, lambda o: o.test):.1f}",
        }
        row |= {arm: shown(gain(mine, [problem.name], arm)) for arm in ARMS[1:]}
        row["added"] = round(added)
        row["time"] = (
            f"{mean_of(mine, DEFAULT, lambda o: o.seconds) / mean_of(mine, ALONE, lambda o: o.seconds):.1f}x"
        )
        rows.append(row)
    names = [problem.name for problem in problems]
    if len(names) > 1:
        together = {arm: shown(gain(outcomes, names, arm, others=True)) for arm in ARMS[1:]}
        blank = dict.fromkeys(rows[0], "")
        rows.append({**blank, "problem": "all", "what": "mean, other problems like them", **together})
    return rows


def mean_of(outcomes: Sequence[Outcome], arm: str, what: Callable[[Outcome], float]) -> float:
    values = [what(outcome) for outcome in outcomes if outcome.arm == arm]
    return sum(values) / len(values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [problem.name for problem in PROBLEMS]
    parser.add_argument("--seeds", type=int, default=6, help="of each problem (default %(default)s)")
    parser.add_argument(
        "--problems", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; expected >= 1")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", esper.GrowthWarning)
    problems = [problem for problem in PROBLEMS if problem.name in options.problems]
    RESULTS.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
        for problem in problems:
            outcomes += play(problem, seed)
            told = "  ".join(f"{o.arm} {o.test:.3f}" for o in outcomes[-len(ARMS) :])
            print(f"seed {seed}, {problem.name}: {told}", flush=True)
            raw = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
            (RESULTS / "defaults_outcomes.json").write_text(raw + "\n")
    title = f"Gain over the network left alone, points of the test score, {options.seeds} seeds"
    report("defaults", title, rows_of(outcomes, problems))


if __name__ == "__main__":
    main()
