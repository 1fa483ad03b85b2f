"""A gain that is measured: a small network grows, and its twin that does not is trained on the same batches.

python examples/twin.py [--epochs 20]

The step of training is a function of (model, optimizer, batch); `grower.train(batch)` runs it for both. At the end
`finish` gives back whichever is better on validation, and `gain` is the paired difference with its interval.
Validation has chosen what grew: the last line is on samples that nobody has looked at.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import esper
from digits_cnn import digits, network


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main(arguments: Sequence[str] | None = None) -> esper.Grower:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20, help="of the run (default 20)")
    epochs = parser.parse_args(arguments).epochs
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = network(4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    grower = esper.Grower(
        model,
        slots=["0", "1", "2"],
        optimizer=optimizer,
        scheduler=scheduler,
        example_input=digits().train[0][:2],
        controller=esper.rule_policy("probe_and_keep", candidates=("conv_heavy@0", "conv_heavy@1"), start=2),
        validate=DataLoader(TensorDataset(*digits().validation), batch_size=100),
        twin=train_step,
        epochs=epochs,
    )
    batches = DataLoader(
        TensorDataset(*digits().train),
        batch_size=64,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(epochs):
        for batch in batches:
            loss = grower.train(batch)
        assert isinstance(loss, Tensor)
        grower.step(train_loss=loss)
        scheduler.step()
    plain = grower.finish().eval()
    print(grower.explain())
    images, labels = digits().test
    with torch.no_grad():
        print(f"accuracy on test: {(plain(images).argmax(1) == labels).float().mean():.3f}")
    return grower


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
