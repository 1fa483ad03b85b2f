"""A published network, frozen, on a target with few labels: a new head alone, LoRA everywhere, and what grows in it.

python examples/adapt_backbone.py                                         MobileNetV2 on noisy CIFAR-10 pictures
python examples/adapt_backbone.py --backbone minilm --samples tweets --shift none      MiniLM on tweets' sentiment

The weights and most samples are files on disk, which docs/tasks.md lists ("Data on disk"); what is missing is said,
with how to get it, and nothing is downloaded. `--samples digits` needs no more than the weights of MobileNetV2.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch
from torch import nn

import esper
from esper.kasmina.hosts.pretrained import FrozenBody
from esper.tolaria.data import DatasetMissing, Split, TaskData
from esper.tolaria.final_report import test_score
from esper.tolaria.tasks import Instance, Parameter
from esper.tolaria.tasks.backbone import BACKBONES
from side_by_side import train_one_epoch

ARMS = ("head alone", "LoRA", "grown")
BATCH, RATE = 32, 1e-3


def host_of(target: dict[str, Parameter], data: TaskData, trains: str, seed: int) -> FrozenBody:
    """The network with a new head, and in BatchNorm layers the statistics of the target's inputs."""
    row = Instance.of("backbone", target | {"trains": trains}).row
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        host = row.host(data)
    assert isinstance(host, FrozenBody)
    return host


def trained(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def fit(
    arm: str, target: dict[str, Parameter], data: TaskData, seed: int, epochs: int, budget: int
) -> tuple[nn.Module, esper.Grower | None]:
    """The network adapted in this way; the Grower, where something grew, in at most `budget` more parameters."""
    model: nn.Module = host_of(target, data, "lora4" if arm == "LoRA" else "head", seed)
    train, validation = data.phases[0].train, data.phases[0].validation
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=RATE)
    grower = None
    if arm == "grown":
        grower = esper.Grower(
            model,
            slots=BACKBONES[str(target["backbone"])].slots,
            optimizer=optimizer,
            example_input=train.inputs[:2],
            validate=batches(validation.halves()[0]),
            epochs=epochs,
            parameter_budget=budget,
            training_samples=len(train),
            seed=seed,
        )
        model = grower.model
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        train_one_epoch(model, optimizer, (train.inputs, train.targets), BATCH, order)
        if grower is not None:
            grower.step()
    if grower is not None:
        grower.finish()
    return model.eval(), grower


def batches(split: Split) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(split.inputs.split(50), split.targets.split(50), strict=True))


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Print the table, and write the first adapter that grew; arm -> test accuracy, mean over the seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="mobilenet_v2", choices=tuple(BACKBONES))
    parser.add_argument(
        "--samples", default="cifar10", help="cifar10, fashion_mnist, digits; of texts tweets, ..."
    )
    parser.add_argument(
        "--shift", default="noise", help="what happened to the samples; none, noise, blur, ..."
    )
    parser.add_argument("--amount", type=float, help="how much of it")
    parser.add_argument("--labels", type=int, default=800)
    parser.add_argument("--side", type=int, default=64, help="pixels that pictures are enlarged to")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("adapters"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    target: dict[str, Parameter] = {
        "backbone": options.backbone,
        "samples": options.samples,
        "shift": options.shift,
        "size": options.labels,
    }
    if options.amount is not None:
        target["amount"] = options.amount
    if not BACKBONES[options.backbone].reads_texts:
        target["side"] = options.side
    found: dict[str, float] = {}
    try:
        data = Instance.of("backbone", target).load()
        plain, lora = (trained(host_of(target, data, trains, 0)) for trains in ("head", "lora4"))
    except DatasetMissing as error:
        print(error)
        return found
    print(f"{Instance.of('backbone', target)}\n{'arm':12} {'trained':>9} {'test':>7}")
    for arm in ARMS:
        scores = []
        for seed in range(options.seeds):
            model, grower = fit(arm, target, data, seed, options.epochs, lora - plain)
            scores.append(test_score(model, data).accuracy)
            if grower is not None and seed == 0:
                print(grower.explain())
                grower.save_adapter(options.folder / options.samples, base_id=options.backbone)
        found[arm] = mean(scores)
        print(f"{arm:12} {trained(model):9,} {found[arm]:7.3f}", flush=True)
    folder = options.folder / options.samples
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1000:,.0f} kB")
    return found


if __name__ == "__main__":
    main()
