"""A multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Linear and ReLU blocks, then a linear head. Slots: `blocks.0`, `blocks.1`, ..."""

    def __init__(self, features: int, classes: int, widths: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        sizes = (features, *widths)
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(size_in, size_out), nn.ReLU()) for size_in, size_out in pairwise(sizes))
        )
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(x.flatten(1)))
        return logits
