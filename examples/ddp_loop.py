"""Growth in a loop under DistributedDataParallel: two processes on the CPU, each with half of every batch.

python examples/ddp_loop.py [--epochs 12] [--processes 2]

Every process makes the same Grower and calls step() and finish(). Rank 0 decides; the processes have the same network
after each decision, and the one that they export.
"""

import argparse
import tempfile
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import esper
from digits_cnn import digits, network


def train(epochs: int) -> tuple[esper.Grower, torch.nn.Module]:
    """What each process does: the Grower, and the plain module it gives back."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = DistributedDataParallel(network(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    samples = TensorDataset(*digits().train)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=32 // processes, sampler=sampler)
    inputs, targets = digits().validation
    grower = esper.Grower(
        model,
        slots=["0", "1", "2"],
        optimizer=optimizer,
        example_input=digits().train[0][:2],
        controller=esper.rule_policy("probe_and_keep", candidates=("conv_heavy@0",), start=2, margin=0.0),
        validate=[
            (inputs[rank::processes], targets[rank::processes])
        ],  # a share each: sums and counts are added
        epochs=epochs,
    )
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for batch, classes in loader:
            loss = F.cross_entropy(model(batch), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decision = grower.step(train_loss=loss)
        if rank == 0:
            print(f"epoch {epoch + 1:2}  accuracy {decision.score:.3f}  {decision}")
    plain = grower.finish()
    if rank == 0:
        print(grower.explain())
    return grower, plain


def _process(rank: int, processes: int, epochs: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    train(epochs)
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12, help="of the run (default 12)")
    parser.add_argument("--processes", type=int, default=2, help="that share each batch (default 2)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_process, (options.processes, options.epochs, folder), nprocs=options.processes)


if __name__ == "__main__":
    main()
