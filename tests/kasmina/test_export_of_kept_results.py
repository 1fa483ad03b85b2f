"""Hosts that hold on to results of their last forward, which torch does not copy, are exported all the same."""

import torch
from torch import Tensor, nn

import esper
from esper.leyline import Stage
from tiny import grow_until


class KeepsFeatures(nn.Module):
    """Holds on to what it last computed, as optical flow networks and old weight norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(4, 4)
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features = [self.block(x)]
        return self.features[0].relu()


def test_a_host_that_keeps_results_of_its_last_forward_is_exported_after_training() -> None:
    host, x = KeepsFeatures(), torch.randn(3, 4)
    model = esper.wrap(host, ["block"], x)
    grow_until(model, "block", Stage.HOLDING, "mlp")
    model.train()(x).sum().backward()
    assert not host.features[0].is_leaf
    seed = model.slots["block"].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    assert torch.equal(model.eval().export()(x), model(x))
