"""Saving a network that grows, and going back to its best epoch: scikit-learn's digits, an MLP, a schedule of growth.

python examples/best_epoch.py [--epochs 12]
"""

import argparse
import io
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import esper

SCHEDULE = "germinate mlp@hidden t=2; advance hidden t=3"


class Digits(nn.Module):
    """The user's own class, which knows nothing of growing."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, 6), nn.ReLU())
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.hidden(x))
        return out


def splits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """1,000 digits to train on and the others to validate with, pixels from 0 to 1."""
    found = load_digits()
    rows, labels = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    train, validation = order[:1000], order[1000:]
    return (rows[train], labels[train]), (rows[validation], labels[validation])


def main(arguments: Sequence[str] | None = None) -> esper.Grower:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=12)
    epochs = parser.parse_args(arguments).epochs

    torch.manual_seed(0)
    (inputs, targets), (held_out, answers) = splits()

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(held_out).argmax(1) == answers).float().mean())

    model = Digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    grower = esper.Grower(
        model,
        ["hidden"],
        optimizer=optimizer,
        example_input=inputs[:2],
        controller=esper.rule_policy("schedule", schedule=SCHEDULE),
        validate=lambda grown: {"validation_accuracy": accuracy(grown)},
        epochs=epochs,
        keep_best=True,
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        grower.step()

    file = io.BytesIO()
    torch.save(model.state_dict(), file)  # your own line: the seed is in it
    file.seek(0)
    saved = torch.load(file)
    print("saved:", ", ".join(name for name in saved if "esper_seed" in name))
    try:
        Digits().load_state_dict(saved)
    except RuntimeError as refusal:
        print("a plain Digits refuses it:", str(refusal).splitlines()[1].strip()[:60], "...")

    print(f"accuracy of the last epoch {accuracy(model):.4f}")
    plain = grower.finish(best=True)  # an ordinary module, of the epoch that validated best
    scores = [decision.score for decision in grower.history if decision.score is not None]
    print(f"accuracy of the best epoch, {scores.index(max(scores)) + 1}: {accuracy(plain):.4f}")
    return grower


if __name__ == "__main__":
    main()
