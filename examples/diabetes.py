"""Regression: an MLP that predicts the progress of diabetes from ten numbers grows by its R squared.

python examples/diabetes.py [--epochs 20]

Targets are floats, loss and metric are functions of (outputs, targets), and `mode` says that more of the metric is
better. All of it is tried when the Grower is made.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs.squeeze(-1), targets)


def r_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 is perfect, 0 is no better than the mean."""
    return 1 - loss(outputs, targets) / targets.var(correction=0)


def table() -> tuple[TensorDataset, TensorDataset, TensorDataset]:
    """242 training, 100 validation and 100 test rows of 10 numbers; targets in standard deviations of training."""
    rows, progress = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    parts = order.split([242, 100, 100])
    progress = (progress - progress[parts[0]].mean()) / progress[parts[0]].std()
    train, validation, test = (TensorDataset(20 * rows[part], progress[part]) for part in parts)
    return train, validation, test


def main(arguments: Sequence[str] | None = None) -> esper.Grower:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20, help="of the run (default 20)")
    epochs = parser.parse_args(arguments).epochs
    train, validation, test = table()
    order = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Linear(10, 4), nn.Tanh()), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = esper.Grower(
        model,
        slots=["0"],
        optimizer=optimizer,
        example_input=train[:2][0],
        validate=DataLoader(validation, batch_size=64),
        loss=loss,
        metric=r_squared,
        mode="max",
        epochs=epochs,
    )
    for _ in range(epochs):
        for inputs, targets in DataLoader(train, batch_size=32, shuffle=True, generator=order):
            batch_loss = loss(grower.model(inputs), targets)
            optimizer.zero_grad()
            batch_loss.backward()
            optimizer.step()
        grower.step(train_loss=batch_loss)
    plain = grower.finish().eval()
    print(grower.explain())
    inputs, targets = test[:]
    with torch.no_grad():
        print(f"R squared on test: {r_squared(plain(inputs), targets):.3f}")
    return grower


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
