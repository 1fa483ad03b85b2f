"""An MLP on a table, scikit-learn's breast cancer: left alone, grown, and widened to the grown size.

python examples/breast_cancer.py [--seeds 5] [--epochs 20] [--controller cpu-v1]
"""

from collections.abc import Sequence
from functools import cache

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import esper
from side_by_side import Problem, Splits, run


@cache
def table() -> Splits:
    """300 training, 120 validation and 149 test rows of 30 numbers, standardised by the training rows."""
    found = load_breast_cancer()
    rows = torch.tensor(found.data, dtype=torch.float32)
    labels = torch.tensor(found.target)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    parts = order.split([300, 120, len(order) - 420])
    mean, std = rows[parts[0]].mean(0), rows[parts[0]].std(0)
    train, validation, test = (((rows[part] - mean) / std, labels[part]) for part in parts)
    return Splits(train, validation, test)


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(30, width), nn.ReLU()),
        nn.Sequential(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 2),
    )


PROBLEM = Problem(
    title="An MLP on a table of 30 columns",
    splits=lambda _: table(),
    model=network,
    width=4,
    slots=["0", "1"],
    controller=lambda: esper.rule_policy(
        "probe_and_keep", candidates=("mlp@1", "mlp@0"), start=3, margin=0.0
    ),
    batch=32,
)


def main(arguments: Sequence[str] | None = None) -> None:
    run(PROBLEM, __doc__, arguments)


if __name__ == "__main__":
    main()
