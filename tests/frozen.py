"""Small frozen bases, and seeds grown behind them, that tests of adapters share. Widths are primes."""

import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.leyline import Stage
from tiny import grow_until

CLASSES = 3


class Base(nn.Module):
    """Two convolutions with batch norm, frozen, two linear layers, frozen, and a head that is trained."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.deep = nn.Conv2d(width, 7, 3, stride=2, bias=False)
        self.first = nn.Linear(7, 11)
        self.second = nn.Linear(11, 13, bias=False)
        self.head = nn.Linear(13, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.deep(x)).mean((2, 3))
        x = torch.relu(self.second(torch.tanh(self.first(x))))
        out: Tensor = self.head(x)
        return out


def frozen_base(width: int = 5, seed: int = 0) -> Base:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        base = Base(width)
        base(torch.randn(16, 2, 9, 9))  # statistics that are not those of birth
    for name, parameter in base.named_parameters():
        parameter.requires_grad_(name.startswith("head"))
    return base.eval()


def pictures(count: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(count, 2, 9, 9, generator=torch.Generator().manual_seed(seed))


def grown(base: nn.Module, kinds: dict[str, str], *, seed: int = 0, alpha: float = 0.7) -> GrowingModel:
    """The base with a seed that says something in each of these slots, and a head that has moved."""
    rules = esper.GrowthRules(max_live_seeds=4)
    model = esper.wrap(base, list(kinds), pictures(2), rules=rules, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for slot, kind in kinds.items():
        grow_until(model, slot, Stage.HOLDING, kind, alpha_target=alpha)
    with torch.no_grad():
        for place in model.slots.values():
            if place.seed is not None:
                place.seed.scale.copy_(torch.randn(place.seed.scale.shape, generator=generator))
        for parameter in model.bare_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
    return model.eval()
