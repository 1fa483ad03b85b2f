"""A training step of a frozen host with two seeds, against LoRA of like size through peft.

Goal: two seeds of kind lora <= LoRA of rank 4 at the same two layers through peft (not met: docs/adapters.md).
"""

import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.feature_cache import FeatureCache
from esper.leyline import Stage
from harness import Row, arguments, interleaved_seconds, median_milliseconds, ratio, report

WIDTH, DEPTH, CLASSES, SAMPLES, BATCH = 256, 8, 10, 512, 64
PLACES = (4, 6)
"""Blocks that are adapted, of `DEPTH`."""
SLOTS = [f"encoder.{place}.0" for place in PLACES]


class Host(nn.Module):
    """Eight linear blocks, frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(DEPTH))
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(x))
        return logits


def host() -> Host:
    torch.manual_seed(0)
    model = Host()
    model.encoder.requires_grad_(False)
    return model.eval()


def grown(*, fossilised: bool = False) -> GrowingModel:
    """With two seeds of rank 4 at full strength, which are watched until they are fossilised."""
    model = esper.wrap(host(), SLOTS, torch.zeros(2, WIDTH))
    for slot in SLOTS:
        model.germinate(slot, "lora")
        while model.slots[slot].stage is not Stage.HOLDING:
            model.report(slot, contribution=0.1, gradients_finite=True)
            if model.slots[slot].stage is Stage.TRAINING and model.slots[slot].life.age:
                model.advance(slot)
            model.tick()
    if fossilised:
        for slot in SLOTS:
            model.report(slot, contribution=0.1)
            model.fossilize(slot)
    return model.eval()


def lora() -> nn.Module:
    config = LoraConfig(
        r=4, lora_alpha=4, target_modules="|".join(slot.replace(".", r"\.") for slot in SLOTS)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = inject_adapter_in_model(config, host())
    model.get_submodule("head").requires_grad_(True)
    return model.eval()


def stepper(model: nn.Module, cache: FeatureCache | None) -> Callable[[], None]:
    """One pass over the samples."""
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator)
    targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)

    def one(rows: Tensor) -> None:
        if cache is None:
            loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        else:
            with cache.of(rows):
                loss = F.cross_entropy(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def epoch() -> None:
        for rows in torch.arange(SAMPLES).split(BATCH):
            one(rows)

    return epoch


def trained(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    kept = grown(fossilised=True)
    models = {
        "LoRA, peft": lora(),
        "two live seeds": grown(),
        "two fossilised seeds": grown(fossilised=True),
        "fossilised, features remembered": kept,
    }
    caches = {"fossilised, features remembered": FeatureCache(kept, SLOTS[0], SAMPLES)}
    candidates = {name: stepper(model, caches.get(name)) for name, model in models.items()}
    rounds = 5 if options.quick else 40
    seconds = interleaved_seconds(candidates, rounds=rounds, clock=time.process_time)
    rows: list[Row] = []
    for name, found in seconds.items():
        times, low, high = ratio(found, seconds["LoRA, peft"])
        rows.append(
            {
                "what": name,
                "trained": trained(models[name]),
                "ms an epoch": median_milliseconds(found),
                "of LoRA": times,
                "low": low,
                "high": high,
            }
        )
    report("adapters", "Eight steps of a frozen host, processor time", rows)


if __name__ == "__main__":
    main()
