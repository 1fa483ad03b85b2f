"""What could tell, before anything grows, where a seed is worth its place in a frozen host."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.kasmina import GrowingModel
from esper.kasmina.birth_signals import birth_signals
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.step import mean_loss

SIGNALS = ("ratio at birth", "ratio with a trained head", "parameters", "depth")
"""The signal-to-noise ratio of `birth_signals` with the base's own head and after the head was trained; and what is
known without any data: how large the seed would be, and how far behind the input."""
_BATCHES, _BATCH = 8, 32


@dataclass(frozen=True, slots=True)
class Pair:
    """One (slot, blueprint) of a host, and what each signal says of it."""

    slot: str
    blueprint: str
    signals: dict[str, float]


def signals_of(host: TrainedHost) -> tuple[Pair, ...]:
    """Of a host whose head was trained and in which nothing grew; slots are in the order of the forward."""
    task, seed, device = host.task, host.seed, host.device
    fresh = task.grow(host.data.source, seed=seed, device=device)
    samples = host.data.ranges[0]
    order = torch.Generator().manual_seed(seed)
    rows = torch.randint(samples.start, samples.stop, (_BATCHES, _BATCH), generator=order).to(device)
    batches = [(host.data.inputs[each], host.data.targets[each]) for each in rows]
    ratios = [_ratios(model, batches) for model in (fresh, host.model)]
    pairs = []
    for depth, (name, slot) in enumerate(fresh.slots.items()):
        for card in slot.cards:
            key = name, card.name
            values = (ratios[0][key], ratios[1][key], float(card.parameters), float(depth))
            pairs.append(Pair(*key, dict(zip(SIGNALS, values, strict=True))))
    return tuple(pairs)


def _ratios(model: GrowingModel, batches: list[tuple[Tensor, Tensor]]) -> dict[tuple[str, str], float]:
    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return mean_loss(net(batch[0]), batch[1])

    return {
        pair: 0.0 if ratio is None else ratio for pair, ratio in birth_signals(model, batches, loss).items()
    }
