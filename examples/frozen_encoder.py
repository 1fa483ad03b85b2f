"""Fine-tuning a frozen encoder where seeds act as adapters: a head alone, with adapters, and a wider head.

python examples/frozen_encoder.py [--seeds 5] [--epochs 20] [--controller cpu-v1]

The encoder is trained on the digits 0 to 4 and then frozen. What is fine-tuned tells 5 to 9 apart, from 150 samples.
"""

from collections.abc import Sequence
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn

import esper
from side_by_side import Problem, Splits, run, train_one_epoch


def encoder() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(1, 8), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(1, 16), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(1, 16), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


@cache
def halves() -> tuple[Splits, Splits]:
    """The digits 0 to 4, and 5 to 9 as classes 0 to 4."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target)
    parts = []
    for low, sizes in ((0, [600, 100]), (5, [150, 250])):
        rows = ((labels >= low) & (labels < low + 5)).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(low))]
        train, validation, test = (
            (images[part], labels[part] - low) for part in rows.split([*sizes, len(rows) - sum(sizes)])
        )
        parts.append(Splits(train, validation, test))
    return parts[0], parts[1]


@cache
def pretrained() -> dict[str, torch.Tensor]:
    """What the encoder has learned of the first half."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(encoder(), nn.Linear(16, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(10):
        train_one_epoch(model, optimizer, halves()[0].train, 64, order)
    return model[0].state_dict()


def network(width: int) -> nn.Module:
    """The frozen encoder with a head of this width."""
    frozen = encoder()
    if next(frozen.parameters()).device.type != "meta":
        frozen.load_state_dict(pretrained())
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return nn.Sequential(frozen, nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 5))


PROBLEM = Problem(
    title="A frozen encoder with seeds as adapters",
    splits=lambda _: halves()[1],
    model=network,
    width=8,
    slots=["0.0", "0.1", "0.2"],
    blueprints=["lora*", "conv_small", "bottleneck", "depthwise", "norm"],
    controller=lambda: esper.rule_policy(
        "probe_and_keep", candidates=("conv_small@2", "conv_small@1", "bottleneck@0"), start=2, margin=0.0
    ),
    seed_lr_multiplier=3.0,  # there are a hundred steps; where there are many, a frozen host's own 1 is better
    batch=32,
)


def main(arguments: Sequence[str] | None = None) -> None:
    run(PROBLEM, __doc__, arguments)


if __name__ == "__main__":
    main()
