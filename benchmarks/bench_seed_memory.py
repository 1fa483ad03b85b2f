"""What a seed keeps in memory, against the bytes of its parameters."""

import gc

import torch
from torch import Tensor

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.hosts import ConvNet
from harness import Row, arguments, report

SLOT = "blocks.1"


def tensor_bytes() -> int:
    """Bytes of every storage that a living tensor holds."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):  # isinstance wakes lazy attributes of torch's modules
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(storages.values())


def train_step(model: GrowingModel, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    out = model(x)
    assert isinstance(out, Tensor)
    out.square().mean().backward()
    optimizer.step()


def main() -> None:
    arguments(__doc__ or "")
    torch.set_num_threads(1)
    x = torch.randn(8, 3, 32, 32)
    rows: list[Row] = []
    names = list(esper.wrap(ConvNet(3, 10, dims=2, widths=(16, 32, 64)), [SLOT], x).slots[SLOT].blueprints)
    for blueprint in names:
        model = esper.wrap(ConvNet(3, 10, dims=2, widths=(16, 32, 64)), [SLOT], x)
        optimizer = torch.optim.Adam(model.parameters())
        model.attach(optimizer)
        train_step(model, optimizer, x)
        before = tensor_bytes()
        model.germinate(SLOT, blueprint)
        born = tensor_bytes() - before
        model.tick()
        train_step(model, optimizer, x)
        trained = tensor_bytes() - before
        parameter_bytes = 4 * model.added_parameters
        model.tick()
        model.tick()
        model.prune(SLOT)
        rows.append(
            {
                "blueprint": blueprint,
                "parameter bytes": parameter_bytes,
                "at birth / parameters": born / parameter_bytes,
                "after an Adam step / parameters": trained / parameter_bytes,
                "bytes left after pruning": tensor_bytes() - before,
            }
        )
    report("seed_memory", "Memory that a seed holds (Adam: gradient and two moments make 4)", rows)


if __name__ == "__main__":
    main()
