"""What the examples share: the same model left alone, grown, and widened to the grown size, side by side."""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import esper
from esper.karn.drawing import time_left
from esper.simic.timing import QUIET_SECONDS, SteadyEstimate, UnitTimes
from esper.tamiyo.rules import RulePolicy

Split = tuple[Tensor, Tensor]
"""Inputs, and classes of the same length."""
FIRST_SEED = 10
"""What each example tries was chosen on the seeds before it."""
ALONE, GROWN, WIDER = "left alone", "grown", "widened"


@dataclass(frozen=True)
class Splits:
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One example: its data, its model in any width, and how it is trained."""

    title: str
    splits: Callable[[int], Splits]
    """Of an epoch, from 0: most problems stay the same."""
    model: Callable[[int], nn.Module]
    """By width; drawn from torch's global generator."""
    width: int
    slots: Sequence[str]
    controller: Callable[[], str | RulePolicy] = lambda: "probe_and_keep"
    """A new one for each run."""
    blueprints: Sequence[str] | None = None
    causal: bool = False
    lr: float = 5e-3
    seed_lr_multiplier: float | None = None
    """Of the learning rate; None is what a Grower takes."""
    batch: int = 64
    epochs: int = 20
    seeds: int = 5
    """How many comparisons are worth the time."""


@dataclass(frozen=True)
class Outcome:
    parameters: int
    trained: int
    accuracy: float
    loss: float
    seconds: float
    grower: esper.Grower | None = None


class Ticker:
    """How many units of work are done, and how long the rest takes: on one line of a terminal, else now and then.

    kinds  kinds of units, which take turns and may take times of their own
    """

    def __init__(
        self, total: int, units: str, kinds: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._units, self._kinds, self._clock = total, units, kinds, clock
        self._times, self._steady = UnitTimes(), SteadyEstimate(clock)
        self._done_at, self._shown = clock(), -math.inf

    def show(self, done: int) -> None:
        """Call it with 0 where the work begins, and after each unit."""
        now = self._clock()
        if done:
            self._times.add((done - 1) % self._kinds, now - self._done_at)
        self._done_at = now
        if now - self._shown < (0.2 if sys.stdout.isatty() else QUIET_SECONDS):
            return
        self._shown = now
        tick(f"{done} of {self._total} {self._units}{self._left(done)}")

    def _left(self, done: int) -> str:
        each = [self._times.of(unit % self._kinds) for unit in range(done, self._total)]
        known = [seconds for seconds in each if seconds is not None]
        return f", {time_left(self._steady.take(sum(known)))}" if len(known) == len(each) else ""


def tick(text: str) -> None:
    """A line that the next one replaces, where there is a terminal."""
    if sys.stdout.isatty():
        print(f"   {text:60}", end="\r", flush=True)
    else:
        print(f"   {text}", flush=True)


def accuracy_and_loss(model: nn.Module, split: Split) -> tuple[float, float]:
    inputs, targets = split
    model.eval()
    with torch.inference_mode():
        logits = model(inputs)
    flat, wanted = logits.flatten(0, -2), targets.flatten()
    return (flat.argmax(-1) == wanted).float().mean().item(), F.cross_entropy(flat, wanted).item()


def train(problem: Problem, seed: int, width: int, epochs: int, *, grow: bool) -> Outcome:
    """One network, from its birth to its score on the test split, which is looked at once."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = problem.model(width)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=problem.lr)
    began, epoch = time.perf_counter(), 0

    def validate(candidate: nn.Module) -> dict[str, float]:
        accuracy, loss = accuracy_and_loss(candidate, problem.splits(epoch).validation)
        return {"validation_accuracy": accuracy, "validation_loss": loss}

    grower = None
    if grow:
        grower = esper.Grower(
            model,
            problem.slots,
            optimizer=optimizer,
            example_input=problem.splits(0).train[0][:2],
            controller=problem.controller(),
            validate=validate,
            epochs=epochs,
            blueprints=problem.blueprints,
            causal=problem.causal,
            training_samples=len(problem.splits(0).train[0]),
            seed_lr_multiplier=problem.seed_lr_multiplier,
            seed=seed,
        )
    order = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):  # which validate() reads too
        loss = train_one_epoch(model, optimizer, problem.splits(epoch).train, problem.batch, order)
        if grower is not None:
            grower.step(train_loss=loss)
    final = model if grower is None else grower.finish()
    seconds = time.perf_counter() - began
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    size = sum(parameter.numel() for parameter in final.parameters())
    accuracy, loss = accuracy_and_loss(final, problem.splits(epochs - 1).test)
    return Outcome(size, size - frozen, accuracy, loss, seconds, grower)


def train_one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, split: Split, batch: int, order: torch.Generator
) -> float:
    """A loop that knows nothing of growing."""
    inputs, targets = split
    model.train()
    losses = []
    for rows in torch.randperm(len(inputs), generator=order).split(batch):
        logits = model(inputs[rows])
        loss = F.cross_entropy(logits.flatten(0, -2), targets[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.mean(losses)


def width_for(problem: Problem, trained: int) -> int:
    """The narrowest model with at least so many trained parameters."""
    width = problem.width
    with torch.device("meta"):
        while sum(p.numel() for p in problem.model(width).parameters() if p.requires_grad) < trained:
            width += 1
    return width


def compare(
    problem: Problem,
    seeds: int,
    epochs: int,
    first_seed: int = FIRST_SEED,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, list[Outcome]]:
    """The three networks of each seed; `progress` is called with how many networks were trained, 0 first."""
    outcomes: dict[str, list[Outcome]] = {ALONE: [], GROWN: [], WIDER: []}

    def keep(name: str, outcome: Outcome) -> None:
        outcomes[name].append(outcome)
        progress(sum(map(len, outcomes.values())))

    progress(0)
    for seed in range(first_seed, first_seed + seeds):
        keep(ALONE, train(problem, seed, problem.width, epochs, grow=False))
        keep(GROWN, grown := train(problem, seed, problem.width, epochs, grow=True))
        keep(WIDER, train(problem, seed, width_for(problem, grown.trained), epochs, grow=False))
    return outcomes


def show(problem: Problem, outcomes: dict[str, list[Outcome]]) -> None:
    console = Console(width=100)
    first = outcomes[GROWN][0].grower
    assert first is not None
    print(f"{problem.title}. The first grown one:\n\n{first.explain()}\n")
    seeds = len(outcomes[ALONE])
    table = Table(title=f"On the test split, {seeds} paired seeds, mean ± standard error")
    for column in ("network", "trained parameters", "seconds", "accuracy", "gain", "loss"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for name, each in outcomes.items():
        gains = [ours.accuracy - alone.accuracy for ours, alone in zip(each, outcomes[ALONE], strict=True)]
        table.add_row(
            name,
            f"{statistics.mean(outcome.trained for outcome in each):,.0f}",
            f"{statistics.mean(outcome.seconds for outcome in each):.1f}",
            mean_and_error([outcome.accuracy for outcome in each]),
            "" if name == ALONE else mean_and_error(gains),
            mean_and_error([outcome.loss for outcome in each]),
        )
    console.print(table)
    print(verdict(outcomes))


def verdict(outcomes: dict[str, list[Outcome]]) -> str:
    """In words, and no more than the numbers say."""
    gains = {
        name: [ours.accuracy - alone.accuracy for ours, alone in zip(each, outcomes[ALONE], strict=True)]
        for name, each in outcomes.items()
    }
    gained = 100 * statistics.mean(gains[GROWN])
    beaten = gained - 100 * statistics.mean(gains[WIDER])
    took, alone = (statistics.mean(each.seconds for each in outcomes[name]) for name in (GROWN, ALONE))
    return (
        f"Growing gained {gained:+.1f} points of accuracy and took {took / alone:.1f} times as long "
        f"({took:.1f} s a run instead of {alone:.1f}); the widened network is {abs(beaten):.1f} points "
        f"{'behind' if beaten > 0 else 'ahead'}."
    )


def mean_and_error(values: Sequence[float], digits: int = 3) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def run(problem: Problem, description: str | None, arguments: Sequence[str] | None = None) -> None:
    """The command line of an example."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=problem.seeds, help="paired random seeds (default %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=problem.epochs, help="of each run (default %(default)s)"
    )
    parser.add_argument(
        "--controller",
        metavar="WHO",
        help="who decides instead of the example's own rule: cpu-v1, a rule's name, a controller's folder",
    )
    options = parser.parse_args(arguments)
    if options.controller is not None:
        problem = replace(problem, controller=lambda: options.controller)
    if options.seeds < 1 or options.epochs < 1:
        parser.error("--seeds and --epochs must be at least 1")
    torch.set_num_threads(1)
    ticker = Ticker(3 * options.seeds, "networks trained", kinds=3)
    try:
        outcomes = compare(problem, options.seeds, options.epochs, progress=ticker.show)
    except KeyboardInterrupt:
        print("\nStopped; nothing was kept.")
        raise SystemExit(130) from None
    show(problem, outcomes)
