"""Do networks stop learning, and do the rivals of growth prevent it? An online stream of permuted digits says so.

A small network of ReLU units meets one task after another: the pixels and labels of scikit-learn's 8 x 8 digits in an
order of the task's own, each sample once, in minibatches. What counts is accuracy on each minibatch before it is
trained on. Trained plainly with Adam it gets worse at learning new tasks; L2 towards the initial weights, shrink and
perturb, continual backprop and ReDo are to keep it from that. Some minutes on one core.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from esper.tolaria.upkeep import ContinualBackprop, L2Init, ReDo, ShrinkAndPerturb, Upkeep
from harness import Row, report

ARMS: dict[str, Callable[[], Upkeep]] = {
    "plain": Upkeep,
    "l2_init": lambda: L2Init(strength=1e-2),
    "shrink_and_perturb": lambda: ShrinkAndPerturb(shrink=0.2, noise=0.2, every=100),
    "continual_backprop": lambda: ContinualBackprop(rate=1e-2, maturity=20),
    "redo": lambda: ReDo(threshold=0.025, every=20),
}


@dataclass(frozen=True, slots=True)
class Stream:
    """The sizes of a study."""

    tasks: int = 60
    samples: int = 1600
    """Of each task."""
    batch: int = 16
    widths: tuple[int, ...] = (64, 64)
    rate: float = 5e-3
    """Learning rate of Adam."""


def online_accuracies(upkeep: Upkeep, stream: Stream, seed: int) -> list[float]:
    """Accuracy on each task, of minibatches before they were trained on."""
    pixels, labels = _digits()
    generator = torch.Generator().manual_seed(seed)
    network = _network(stream.widths, seed)
    optimizer = torch.optim.Adam(network.parameters(), stream.rate)
    upkeep.begin(network, optimizer, seed=seed)
    accuracies = []
    for _ in range(stream.tasks):
        places = torch.randperm(pixels.shape[1], generator=generator)
        names = torch.randperm(10, generator=generator)
        order = torch.randperm(len(pixels), generator=generator)[: stream.samples]
        correct = 0
        for chosen in order.split(stream.batch):
            inputs, targets = pixels[chosen][:, places], names[labels[chosen]]
            logits = network(inputs)
            correct += int((logits.argmax(1) == targets).sum())
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(logits, targets).backward()
            upkeep.before_step()
            optimizer.step()
            upkeep.maintain(inputs)
        accuracies.append(correct / len(order))
    return accuracies


def _digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def _network(widths: Sequence[int], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        hidden = [layer for sizes in pairwise((64, *widths)) for layer in (nn.Linear(*sizes), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(widths[-1], 10))


def rows_of(arms: dict[str, Callable[[], Upkeep]], stream: Stream, seeds: int) -> list[Row]:
    """One row an arm: accuracy on the first and the last quarter of the tasks, and what was lost between them."""
    rows: list[Row] = []
    for name, make in arms.items():
        began = time.perf_counter()
        curves = [online_accuracies(make(), stream, seed) for seed in range(seeds)]
        quarter = max(stream.tasks // 4, 1)
        ends = [(statistics.fmean(curve[:quarter]), statistics.fmean(curve[-quarter:])) for curve in curves]
        losses = [early - late for early, late in ends]
        rows.append(
            {
                "arm": name,
                "first quarter": round(statistics.fmean(early for early, _ in ends), 4),
                "last quarter": round(statistics.fmean(late for _, late in ends), 4),
                "lost": round(statistics.fmean(losses), 4),
                "lost, least": round(min(losses), 4),
                "lost, most": round(max(losses), 4),
                "seconds": round(time.perf_counter() - began, 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=60, help="tasks of the stream (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each arm (%(default)s)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(ARMS, Stream(tasks=chosen.tasks), chosen.seeds)
    title = f"Accuracy on new tasks, {chosen.tasks} tasks of permuted digits, {chosen.seeds} networks an arm"
    report("plasticity", title, rows)


if __name__ == "__main__":
    main()
