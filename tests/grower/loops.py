"""Small training loops that know nothing of growing."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES, FEATURES, SAMPLES, BATCH = 3, 5, 66, 22


def net(seed: int = 0, width: int = 7) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(
            nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh()),
            nn.Sequential(nn.Linear(width, width), nn.Tanh()),
            nn.Linear(width, CLASSES),
        )


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long() + (inputs[:, 2] > 1).long()


@dataclass
class Loop:
    """Data, and one epoch of training on them; the order is its own."""

    seed: int = 0
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    order: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.inputs, self.targets = data(self.seed)
        self.order = torch.Generator().manual_seed(self.seed)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(SAMPLES, generator=self.order)
        return [(self.inputs[part], self.targets[part]) for part in order.split(BATCH)]

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        model.train()
        total = 0.0
        for inputs, targets in self.batches():
            loss = self.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total / (SAMPLES // BATCH)

    def validate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            logits = model(self.inputs)
        accuracy = (logits.argmax(1) == self.targets).float().mean()
        return {
            "validation_loss": F.cross_entropy(logits, self.targets).item(),
            "validation_accuracy": accuracy.item(),
        }
