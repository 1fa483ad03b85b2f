"""Grow a small digits classifier under a scripted policy, and compare it with the same network left alone.

    python examples/grow_digits.py [--repeats 5] [--epochs 24]

Every repeat trains three networks from the same random seed: the small host, the same host with two seeds grown
into it, and a host as wide as the grown one from the start. The schedule was chosen on the validation split; the
test split is looked at once, in the table at the end.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

import esper
from esper.kasmina.hosts import ConvNet
from esper.leyline import Event, SeedGerminated, StageChanged

BATCH = 64
LEARNING_RATE = 5e-3
BEFORE = "before"
SMALL, WIDE = (4, 8, 8), (6, 13, 13)

Split = tuple[Tensor, Tensor]
Schedule = dict[int, list[Callable[[esper.GrowingModel], None]]]
"""epoch -> what is done before it"""


def scripted() -> Schedule:
    """Two seeds, a few epochs apart: two epochs behind the host, three of blending, then kept."""
    schedule: Schedule = {}
    for slot, born in (("blocks.0", 3), ("blocks.1", 4)):
        germinate = partial(esper.GrowingModel.germinate, slot=slot, blueprint="conv_heavy", tempo=3)
        schedule.setdefault(born, []).append(germinate)
        schedule.setdefault(born + 2, []).append(partial(esper.GrowingModel.advance, slot=slot))
        schedule.setdefault(born + 6, []).append(partial(esper.GrowingModel.fossilize, slot=slot))
    return schedule


def load_splits() -> tuple[Split, Split, Split]:
    """1000 training, 300 validation and 497 test digits of 8 x 8 pixels, always the same."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, validation, test = order.split([1000, 300, len(order) - 1300])
    return (
        (images[train], labels[train]),
        (images[validation], labels[validation]),
        (images[test], labels[test]),
    )


@dataclass
class Diary:
    """Remembers what happened to the seeds, and when."""

    epoch: int = 0
    lines: list[str] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        if isinstance(event, SeedGerminated):
            self.lines.append(
                f"epoch {self.epoch:2d}  {event.slot}: a {event.blueprint} seed, {event.parameters} parameters"
            )
        elif isinstance(event, StageChanged):
            self.lines.append(
                f"epoch {self.epoch:2d}  {event.slot}: {event.before.name} -> {event.after.name}"
            )


@dataclass(frozen=True)
class Outcome:
    parameters: int
    validation: float
    test: float


def accuracy(model: esper.GrowingModel, split: Split) -> float:
    images, labels = split
    model.eval()
    with torch.inference_mode():
        logits = model(images)
    assert isinstance(logits, Tensor)
    return (logits.argmax(1) == labels).float().mean().item()


def train(
    seed: int,
    widths: Sequence[int],
    schedule: Schedule,
    epochs: int,
    diary: Diary,
    on_epoch: Callable[[], None],
) -> Outcome:
    training, validation, test = load_splits()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        host = ConvNet(1, 10, dims=2, widths=widths, pools=(1, 2, 2))
    model = esper.wrap(host, slots=["blocks.*"], example_input=training[0][:2], seed=seed, events=diary)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    model.attach(optimizer)
    shuffling = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        diary.epoch = epoch
        for operation in schedule.get(epoch, []):
            operation(model)
        model.tick()
        model.train()
        for batch in torch.randperm(len(training[0]), generator=shuffling).split(BATCH):
            optimizer.zero_grad()
            logits = model(training[0][batch])
            assert isinstance(logits, Tensor)
            F.cross_entropy(logits, training[1][batch]).backward()
            optimizer.step()
        on_epoch()
    return Outcome(
        model.host_parameters + model.added_parameters, accuracy(model, validation), accuracy(model, test)
    )


def mean_and_error(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.mean(values):.3f} ± {error:.3f}"


def show(console: Console, outcomes: dict[str, list[Outcome]]) -> None:
    complete = min(len(each) for each in outcomes.values())
    if complete == 0:
        console.print("Stopped before the first repeat was complete: there is nothing to compare.")
        return
    table = Table(title=f"Accuracy on digits, {complete} paired repeats, mean ± standard error")
    for column in ("network", "parameters", "validation", "test", "gain on test"):
        table.add_column(column, justify="left" if column == "network" else "right")
    left_alone = [outcome.test for outcome in outcomes[BEFORE][:complete]]
    for name, each in outcomes.items():
        tests = [outcome.test for outcome in each[:complete]]
        gain = mean_and_error([ours - theirs for ours, theirs in zip(tests, left_alone, strict=True)])
        table.add_row(
            name,
            f"{each[0].parameters:,}",
            mean_and_error([outcome.validation for outcome in each[:complete]]),
            mean_and_error(tests),
            "" if name == BEFORE else gain,
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="paired random seeds (default 5)")
    parser.add_argument("--epochs", type=int, default=24, help="epochs of each run, at least 11 (default 24)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {options.repeats}")
    if options.epochs < 11:
        parser.error(
            f"--epochs must be at least 11, so that both seeds can live through, not {options.epochs}"
        )
    torch.set_num_threads(1)
    console = Console()
    arms: dict[str, tuple[Sequence[int], Schedule]] = {
        BEFORE: (SMALL, {}),
        "after growing": (SMALL, scripted()),
        "wide from birth": (WIDE, {}),
    }
    outcomes: dict[str, list[Outcome]] = {name: [] for name in arms}
    diary = Diary()
    columns = (TextColumn("{task.description:15}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("", total=options.repeats * len(arms) * options.epochs)
            for repeat in range(options.repeats):
                for name, (widths, schedule) in arms.items():
                    progress.update(bar, description=name)
                    told = diary if repeat == 0 else Diary()
                    outcomes[name].append(
                        train(repeat, widths, schedule, options.epochs, told, lambda: progress.advance(bar))
                    )
    except KeyboardInterrupt:
        console.print("Stopped; what follows is from the complete repeats.")
    console.print("\n[bold]What happened to the seeds in the first repeat[/bold]")
    for line in diary.lines:
        console.print("  " + line, highlight=False)
    console.print()
    show(console, outcomes)


if __name__ == "__main__":
    main()
