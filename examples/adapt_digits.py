"""Adapters for a frozen encoder: digits that are noisy or dark, a small file for each, and both on one base.

python examples/adapt_digits.py [--epochs 20] [--seeds 3] [--folder adapters]

The encoder is trained on clean digits and then frozen. For each corruption there are 200 labelled digits. The arms: a
new head alone, LoRA of rank 4 at every convolution, and what a Grower's default for frozen hosts grows in no more
parameters; each with the BatchNorm statistics of the clean digits, and with those of the corrupted ones.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import esper
from esper.kasmina.birth_signals import birth_signals
from esper.kasmina.norm_statistics import estimating
from side_by_side import Split, Splits, accuracy_and_loss, train_one_epoch

WIDTH, CLASSES, RANK, BATCH, RATE = 16, 10, 4, 25, 5e-3
PRETRAINING = 10
"""Epochs on clean digits."""
BUDGET = 1_380
"""Parameters that LoRA adds, and seeds may add."""
SLOTS = ["encoder.0", "encoder.1", "encoder.2"]
ARMS = ("head alone", "LoRA", "grown")
OWN, TARGET = "of clean digits", "of these digits"
"""Whose BatchNorm statistics are used."""


class Digits(nn.Module):
    """An encoder of three blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(self.block(1), self.block(WIDTH), self.block(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    @staticmethod
    def block(channels: int) -> nn.Sequential:
        layer = nn.Conv2d(channels, WIDTH, 3, padding=1)
        return nn.Sequential(layer, nn.BatchNorm2d(WIDTH), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x).mean((2, 3)))
        return logits


class LoRA(nn.Module):
    """A frozen convolution with one of low rank beside it, which begins at zero."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Conv2d(layer.in_channels, RANK, 3, padding=1, bias=False)
        self.up = nn.Conv2d(RANK, layer.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.up(self.down(x))
        return out


def noisy(images: Tensor) -> Tensor:
    return images + 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))


def dark(images: Tensor) -> Tensor:
    return 1.0 - images  # ink and paper change places


CORRUPTIONS = {"noisy": noisy, "dark": dark}


@cache
def digits() -> tuple[Split, Splits]:
    """Clean digits to train the encoder on; and others, 200 to learn from, 200 to validate and the rest to test."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order.split([900, 200, 200, len(order) - 1300])
    clean, train, validation, test = ((images[part], labels[part]) for part in parts)
    return clean, Splits(train, validation, test)


@cache
def pretrained() -> dict[str, Tensor]:
    """What the encoder and its head have learned of clean digits."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    order = torch.Generator().manual_seed(0)
    for _ in range(PRETRAINING):
        train_one_epoch(model, optimizer, digits()[0], 64, order)
    return model.state_dict()


def base(seed: int | None = 0) -> Digits:
    """The frozen encoder, with a head that has not learned yet; None leaves it the head of clean digits."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed or 0)
        model = Digits()
    learned = {
        name: each for name, each in pretrained().items() if seed is None or name.startswith("encoder")
    }
    model.load_state_dict(learned, strict=seed is None)
    model.encoder.requires_grad_(False)
    return model.eval()


def corrupted(name: str) -> Splits:
    """The digits that are left, as this corruption shows them."""
    change, clean = CORRUPTIONS[name], digits()[1]
    parts = (clean.train, clean.validation, clean.test)
    return Splits(*((change(images), labels) for images, labels in parts))


def fit(
    arm: str, statistics: str, splits: Splits, seed: int, epochs: int
) -> tuple[nn.Module, esper.Grower | None]:
    """The base adapted to these digits; the Grower, where something grew.

    It is trained in evaluation mode, so that batch norm keeps the statistics it has.
    """
    digit_reader = base(seed)
    if arm == "LoRA":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for block in digit_reader.encoder:
                assert isinstance(block, nn.Sequential)
                assert isinstance(block[0], nn.Conv2d)
                block[0] = LoRA(block[0])
    model: nn.Module = digit_reader
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=RATE)
    grower = None
    if arm == "grown":
        inputs, targets = splits.validation
        grower = esper.Grower(
            model,
            slots=SLOTS,
            optimizer=optimizer,
            example_input=splits.train[0][:2],
            validate=[(inputs, targets)],
            epochs=epochs,
            parameter_budget=BUDGET,
            training_samples=len(splits.train[1]),
            seed=seed,
        )
        model = grower.model
        if statistics == TARGET:
            grower.estimate_statistics([splits.train])
    elif statistics == TARGET:
        with estimating(model):
            model(splits.train[0])
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        _one_epoch(model, optimizer, splits.train, order)
        if grower is not None:
            grower.step()
    if grower is not None:
        grower.finish()
    return model, grower


def _one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, split: Split, order: torch.Generator
) -> None:
    inputs, targets = split
    for part in torch.randperm(len(targets), generator=order).split(BATCH):
        loss = nn.functional.cross_entropy(model(inputs[part]), targets[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


Found = dict[tuple[str, str, str], float]
"""(corruption, arm, whose statistics) -> test accuracy, mean over the seeds"""


def main(arguments: Sequence[str] | None = None) -> Found:
    """Print the table, and what the saved adapters do on one base."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("adapters"))
    options = parser.parse_args(arguments)
    found: Found = {}
    print(f"{'digits':8} {'arm':12} {'statistics':16} {'trained':>8} {'test':>7}")
    for name, arm, statistics in product(CORRUPTIONS, ARMS, (OWN, TARGET)):
        splits, scores = corrupted(name), []
        for seed in range(options.seeds):
            model, grower = fit(arm, statistics, splits, seed, options.epochs)
            scores.append(accuracy_and_loss(model, splits.test)[0])
            if grower is not None and seed == 0 and statistics == TARGET:
                grower.save_adapter(options.folder / name, base_id="digits encoder")
        found[name, arm, statistics] = mean(scores)
        print(f"{name:8} {arm:12} {statistics:16} {trained(model):8,} {mean(scores):7.3f}", flush=True)
    show_signals(options.epochs)
    show_adapters(options.folder)
    return found


def show_signals(epochs: int) -> None:
    """Where a seed could do something: with the head of clean digits, and once a new head is trained."""
    images, labels = digits()[1].train
    relabelled = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(3))[labels]
    shifts = {name: corrupted(name).train for name in CORRUPTIONS} | {"relabelled": (images, relabelled)}
    for name, split in shifts.items():
        print(f"signals, {name:10}, clean head:   {signals(base(None), split)}")
    for name in CORRUPTIONS:
        model, _ = fit("head alone", OWN, corrupted(name), 0, epochs)
        print(f"signals, {name:10}, trained head: {signals(model, shifts[name])}")


def signals(model: nn.Module, split: Split) -> str:
    """The signal of each block, mean over the kinds of seed."""
    inputs, targets = split
    found = birth_signals(
        esper.wrap(model, SLOTS, inputs[:2]),
        list(zip(inputs.split(BATCH), targets.split(BATCH), strict=True)),
        lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]),
    )
    means = {slot: mean(value or 0.0 for (at, _), value in found.items() if at == slot) for slot in SLOTS}
    return ", ".join(f"{slot} {value:.1f}" for slot, value in means.items())


def show_adapters(folder: Path) -> None:
    """Load what was saved onto one base, and try each on both corruptions."""
    model: nn.Module = base(seed=7)  # another head, which adapters bring along
    for name in CORRUPTIONS:
        model = esper.load_adapter(model, folder / name)
        size = sum(path.stat().st_size for path in (folder / name).iterdir())
        print(f"{folder / name}: {size / 1000:.0f} kB")
    assert isinstance(model, esper.AdaptedModel)
    model.print_trainable_parameters()
    for name in model.names:
        model.switch(name)
        scores = {other: accuracy_and_loss(model, corrupted(other).test)[0] for other in CORRUPTIONS}
        print(
            f"adapter {name}: " + ", ".join(f"{other} digits {score:.3f}" for other, score in scores.items())
        )


if __name__ == "__main__":
    main()
