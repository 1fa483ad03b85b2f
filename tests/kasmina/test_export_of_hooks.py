"""Hooks that an exported copy would lose are refused."""

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

import esper
from esper.kasmina.hosts import MLP


@pytest.mark.parametrize(
    "register",
    [
        lambda module: module.register_forward_hook(lambda *_: None),
        lambda module: module.register_forward_pre_hook(lambda *_: None),
        lambda module: module.register_full_backward_hook(lambda *_: None),
        lambda module: module.register_full_backward_pre_hook(lambda *_: None),
    ],
    ids=["forward", "forward_pre", "backward", "backward_pre"],
)
@pytest.mark.parametrize("graph", [True, False])
def test_every_kind_of_hook_that_an_fx_graph_would_lose_is_refused(
    register: Callable[[nn.Module], object], graph: bool
) -> None:
    """A module of Esper's own becomes such a graph."""
    part: nn.Module = MLP(6, 6)
    if graph:
        part = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 6)))
    model = esper.wrap(nn.Sequential(part, nn.Linear(6, 2)), ["1"], torch.randn(3, 6))
    register(part)
    with pytest.raises(ValueError, match="has hooks, which an exported copy would lose: remove them first"):
        model.export()
