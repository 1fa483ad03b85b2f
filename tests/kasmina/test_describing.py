"""A remembered model in plain data: what it would be after going back to it, and the model is not touched."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.describing import Described, describe, describe_remembered
from esper.kasmina.snapshots import ModelSnapshot
from kasmina import test_rollback as lives
from kasmina.test_rollback import CHANGES, OPTIMISERS, X


def _touched(model: GrowingModel) -> list[object]:
    """What anybody could hold of a model and its optimiser."""
    assert model.care is not None
    groups = model.care.optimizer.param_groups
    tensors = [*model.parameters(), *model.buffers()]
    return [
        [(id(tensor), tensor._version, id(tensor.grad)) for tensor in tensors],
        [(id(group), dict(group)) for group in groups],
        {id(p): dict(state) for p, state in model.care.optimizer.state.items()},
    ]


def _assert_alike(ours: Described, theirs: Described) -> None:
    assert ours[0] == theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for name, tensor in ours[1].items():
        assert torch.equal(tensor, theirs[1][name]), name


def _copy(described: Described) -> Described:
    return described[0], {name: tensor.clone() for name, tensor in described[1].items()}


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_it_is_what_going_back_would_give(
    kind: str, change: Callable[[GrowingModel], None], options: bool
) -> None:
    model = lives._model(kind)
    lives._live(model, 6)
    model.slots["blocks.1"].reported_gradients_finite = None
    snapshot = ModelSnapshot(model, options=options)
    change(model)
    for _ in range(2):
        lives._epoch(model)
    assert model.care is not None
    model.care.optimizer.param_groups[0]["lr"] *= 0.5
    before = _touched(model)
    remembered = _copy(describe_remembered(snapshot))
    assert _touched(model) == before
    snapshot.restore()
    _assert_alike(remembered, describe(model))


class _Centred(nn.Module):
    """Assigns its running mean anew in each forward."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


def test_buffers_and_groups_that_came_meanwhile() -> None:
    host = nn.Sequential(nn.Flatten(), nn.Linear(13, 7), _Centred(), nn.Linear(7, 7), nn.Tanh())
    model, late = esper.wrap(host, ["1", "3"], X), list(host[3].parameters())
    optimizer = SGD([*host[1].parameters()], lr=0.1, momentum=0.9)
    model.attach(optimizer)
    lives._epoch(model)
    model.germinate("1", "mlp")
    lives._epoch(model)
    snapshot = ModelSnapshot(model)
    optimizer.add_param_group({"params": late, "lr": 0.01})
    model.germinate("3", "mlp")
    lives._epoch(model)
    remembered = _copy(describe_remembered(snapshot))
    snapshot.restore()
    _assert_alike(remembered, describe(model))
    assert remembered[0].optimizer is not None
    assert [len(group.parameters) for group in remembered[0].optimizer.groups] == [2, 5, 2]
