"""A small convolutional network on scikit-learn's digits: left alone, grown, and widened to the grown size.

python examples/digits_cnn.py [--seeds 5] [--epochs 20] [--controller cpu-v1]
"""

from collections.abc import Sequence
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

import esper
from side_by_side import Problem, Splits, run


@cache
def digits() -> Splits:
    """1000 training, 300 validation and 497 test digits of 8 x 8 pixels, always the same."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, validation, test = (
        (images[part], labels[part]) for part in order.split([1000, 300, len(order) - 1300])
    )
    return Splits(train, validation, test)


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(1, width), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)),
    )


PROBLEM = Problem(
    title="A convolutional network on digits",
    splits=lambda _: digits(),
    model=network,
    width=4,
    slots=["0", "1", "2"],
    controller=lambda: esper.rule_policy(
        "probe_and_keep", candidates=("conv_heavy@0", "conv_heavy@1", "conv_light@2"), start=2, margin=0.0
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    run(PROBLEM, __doc__, arguments)


if __name__ == "__main__":
    main()
