"""Do networks stop learning, and do the rivals of growth prevent it? Two online streams on known ground say so.

    digits  A small network of ReLU units meets one task after another: the pixels and labels of scikit-learn's 8 x 8
            digits in an order of the task's own, each sample once. What counts is accuracy.
    bits    Slowly changing regression: a function of 20 bits (a network of 100 threshold units), 15 of which stand
            still and flip one by one. A network of 5 ReLU units has to follow it. What counts is the squared error,
            over the variance of the function.

Every minibatch is scored before it is trained on. Trained plainly with Adam a network may get worse at learning what
is new; L2 towards the initial weights, shrink and perturb, continual backprop and ReDo are to keep it from that. Some
minutes each on one core:

    python benchmarks/study_plasticity.py digits
    python benchmarks/study_plasticity.py bits
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from esper.tolaria.data.drawn import BITS, BitFunction, slow_states, some_bits
from esper.tolaria.upkeep import ContinualBackprop, L2Init, ReDo, ShrinkAndPerturb, Upkeep
from harness import Row, report

ARMS: dict[str, Callable[[], Upkeep]] = {
    "plain": Upkeep,
    "l2_init": lambda: L2Init(strength=1e-2),
    "shrink_and_perturb": lambda: ShrinkAndPerturb(shrink=0.2, noise=0.2, every=100),
    "continual_backprop": lambda: ContinualBackprop(rate=1e-2, maturity=20),
    "redo": lambda: ReDo(threshold=0.025, every=20),
}


class Known(Protocol):
    """Known ground: a stream that one network after another is trained on."""

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""

    def curve(self, upkeep: Upkeep, seed: int) -> list[float]:
        """What counts, task by task, of minibatches before they were trained on."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Permuted digits, and the sizes of the study."""

    tasks: int = 60
    samples: int = 1600
    """Of each task."""
    batch: int = 16
    widths: tuple[int, ...] = (64, 64)
    rate: float = 5e-3
    """Learning rate of Adam."""
    sign: int = 1

    def curve(self, upkeep: Upkeep, seed: int) -> list[float]:
        """Accuracy on each task."""
        pixels, labels = _digits()
        generator = torch.Generator().manual_seed(seed)
        learner = Learner(upkeep, (64, *self.widths, 10), self.rate, seed)
        accuracies = []
        for _ in range(self.tasks):
            places = torch.randperm(pixels.shape[1], generator=generator)
            names = torch.randperm(10, generator=generator)
            order = torch.randperm(len(pixels), generator=generator)[: self.samples]
            correct = 0
            for chosen in order.split(self.batch):
                targets = names[labels[chosen]]
                logits, _ = learner.learn(pixels[chosen][:, places], targets, F.cross_entropy)
                correct += int((logits.argmax(1) == targets).sum())
            accuracies.append(correct / len(order))
        return accuracies


@dataclass(frozen=True, slots=True)
class SlowBits:
    """Slowly changing regression, and the sizes of the study."""

    tasks: int = 160
    """States of the slow bits."""
    samples: int = 800
    """Of each state."""
    batch: int = 8
    widths: tuple[int, ...] = (5,)
    slow: int = 15
    rate: float = 3e-2
    """Learning rate of Adam."""
    sign: int = -1

    def curve(self, upkeep: Upkeep, seed: int) -> list[float]:
        """Squared error in each state, over the variance of the function."""
        rng = np.random.default_rng(seed)
        function = BitFunction.drawn(rng)
        learner = Learner(upkeep, (BITS, *self.widths, 1), self.rate, seed)
        errors = []
        for state in slow_states(self.slow, self.tasks, rng):
            bits = some_bits(state, self.samples, rng)
            inputs, targets = torch.tensor(bits, dtype=torch.float32), torch.from_numpy(function(bits))
            batches = zip(inputs.split(self.batch), targets.split(self.batch), strict=True)
            errors.append(statistics.fmean(learner.learn(*some, F.mse_loss)[1] for some in batches))
        return errors


class Learner:
    """A network of ReLU units that is trained by Adam, a minibatch at a time."""

    def __init__(self, upkeep: Upkeep, sizes: Sequence[int], rate: float, seed: int) -> None:
        self._network, self._upkeep = _network(sizes, seed), upkeep
        self._optimizer = torch.optim.Adam(self._network.parameters(), rate)
        upkeep.begin(self._network, self._optimizer, seed=seed)

    def learn(
        self, inputs: Tensor, targets: Tensor, loss_of: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, float]:
        """The outputs and the loss before the update."""
        outputs = self._network(inputs)
        loss = loss_of(outputs, targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._upkeep.before_step()
        self._optimizer.step()
        self._upkeep.maintain(inputs)
        return outputs.detach(), float(loss.detach())


def _digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def _network(sizes: Sequence[int], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        hidden = [layer for pair in pairwise(sizes[:-1]) for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(sizes[-2], sizes[-1]))


def rows_of(arms: dict[str, Callable[[], Upkeep]], known: Known, seeds: int) -> list[Row]:
    """One row an arm: what counts in the first and the last quarter of the tasks, and what was lost between them."""
    rows: list[Row] = []
    for name, make in arms.items():
        began = time.perf_counter()
        curves = [known.curve(make(), seed) for seed in range(seeds)]
        quarter = max(len(curves[0]) // 4, 1)
        ends = [(statistics.fmean(curve[:quarter]), statistics.fmean(curve[-quarter:])) for curve in curves]
        losses = [known.sign * (early - late) for early, late in ends]
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("known", choices=("digits", "bits"), help="which known ground")
    parser.add_argument("--tasks", type=int, help="tasks of the stream (digits 60, bits 160)")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each arm (%(default)s)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {} if chosen.tasks is None else {"tasks": chosen.tasks}
    known: Digits | SlowBits = Digits(**sizes) if chosen.known == "digits" else SlowBits(**sizes)
    what = (
        "Accuracy on new tasks, permuted digits" if chosen.known == "digits" else "Squared error, slow bits"
    )
    rows = rows_of(ARMS, known, chosen.seeds)
    title = f"{what}, {known.tasks} tasks, {chosen.seeds} networks an arm"
    report(f"plasticity_{chosen.known}", title, rows)


if __name__ == "__main__":
    main()
