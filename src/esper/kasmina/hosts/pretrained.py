"""A host that comes with weights: what of it is trained, and whose statistics its BatchNorm layers use."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from esper.kasmina.hosts.drawn import DrawnHost, HostShape
from esper.kasmina.norm_statistics import estimating
from esper.kasmina.tree import bare_modules

Trains = Literal["head", "all", "lora4", "lora16"]
Statistics = Literal["target", "source", "moving"]
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class FrozenBody(nn.Module):
    """A host of which what was trained before stays as it is: what else is trained, and whose statistics it has.

    trains      "head": all that is not in the bodies; "all" of it; or the head and a low-rank change of every layer
                of the bodies, of rank 4 or 16
    statistics  of BatchNorm layers, where there are any: "source", those of the weights; "target", estimated once by
                `adopt_statistics`; or "moving", with the batches while it trains
    """

    statistics: Statistics = "target"
    samples_at_once: int | None = None
    """At most, of the forwards that estimate statistics; None is all of them."""

    def settle(self, bodies: Iterable[nn.Module], trains: Trains, statistics: Statistics) -> None:
        """Freeze the bodies, whose weights are loaded, and add what is trained in them."""
        self.statistics = statistics
        if trains == "all":
            return
        bodies = tuple(bodies)
        layers = [part for body in bodies for part in body.modules()]
        for body in bodies:
            body.requires_grad_(False)
        if trains != "head":
            rank = int(trains.removeprefix("lora"))
            for layer in layers:
                if isinstance(layer, _LAYERS):
                    parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))

    def train(self, mode: bool = True) -> Self:
        """As always, but that BatchNorm layers use the statistics they have, unless these are to move."""
        super().train(mode)
        if self.statistics != "moving":
            for layer in self.batch_norms():
                layer.eval()
        return self

    def batch_norms(self) -> list[nn.Module]:
        """Its own, without those of seeds."""
        return [part for part in bare_modules(self) if isinstance(part, _BatchNorm)]

    def adopt_statistics(self, inputs: Tensor) -> None:
        """Estimate the statistics on these inputs, where they are to be the target's; labels are not needed."""
        if self.statistics == "target" and self.batch_norms():
            chunks = math.ceil(len(inputs) / (self.samples_at_once or len(inputs)))
            with estimating(self):
                for some in inputs.tensor_split(chunks):  # nearly equal: one sample alone has no variance
                    self(some)


class PretrainedHost(FrozenBody, DrawnHost):
    """A drawn host whose stem and blocks were trained before; `weights` is its state dict, the head's among them."""

    def __init__(
        self,
        shape: HostShape,
        sample: tuple[int, ...],
        outputs: int,
        weights: Mapping[str, Tensor],
        *,
        trains: Trains = "head",
        statistics: Statistics = "target",
    ) -> None:
        super().__init__(shape, sample, outputs)
        self.load_state_dict(weights)
        self.settle((self.stem, self.blocks), trains, statistics)


class LowRank(nn.Module):
    """weight + up @ down, with a rank of at most `rank`; it begins at the weight itself (Hu et al. 2021, LoRA)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = len(weight), weight[0].numel()
        rank = min(rank, outputs, inputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) * inputs**-0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.up @ self.down).view_as(weight)
