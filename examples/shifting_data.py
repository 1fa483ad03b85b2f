"""A model whose data shift while it trains: left alone, grown when validation falls, and wider from the start.

python examples/shifting_data.py [--seeds 3] [--epochs 24] [--controller cpu-v1]

MNIST-1D, generated: from epoch 10 on the 40 positions are in another order, for all three networks alike.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

import esper
from esper.kasmina.hosts import ConvNet
from esper.tolaria.data import Split as Sealable
from esper.tolaria.tasks import Instance
from side_by_side import Problem, Splits, run


@cache
def phase(number: int) -> Splits:
    """Before and after the change. Half of the validation samples are kept for the end."""
    data = Instance.parse("shift:kind=shuffle,shuffled=1.0,change=10,size=1000").load()
    part = data.phases[number]
    half = len(part.validation) // 2
    return Splits(
        (part.train.inputs, part.train.targets),
        _rows(part.validation, slice(0, half)),
        _rows(part.validation, slice(half, None)),
    )


def _rows(split: Sealable, rows: slice) -> tuple[Tensor, Tensor]:
    return split.inputs[rows], split.targets[rows]


def network(width: int) -> torch.nn.Module:
    return ConvNet(1, 10, dims=1, widths=(width, 2 * width, 2 * width), pools=(1, 2, 2))


PROBLEM = Problem(
    title="Data that shift at epoch 10",
    splits=lambda epoch: phase(int(epoch >= 10)),
    model=network,
    width=8,
    slots=["blocks.*"],
    blueprints=["mixer", "conv_small", "norm"],
    controller=lambda: esper.rule_policy(
        "detect_then_probe", candidates=("mixer@0", "mixer@1", "conv_small@2")
    ),
    lr=7e-3,
    epochs=24,
    seeds=3,
)


def main(arguments: Sequence[str] | None = None) -> None:
    run(PROBLEM, __doc__, arguments)


if __name__ == "__main__":
    main()
