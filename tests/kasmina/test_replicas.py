"""What averaging the gradients of seeds asks of the device: it neither waits for it nor sends it anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import esper
from esper.kasmina.replicas import CopiedReplicas

FROM_HOST, TO_HOST = "aten.lift_fresh.default", "aten._local_scalar_dense.default"


class _Calls(TorchDispatchMode):
    """The names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def seed_parameters(tmp_path: Path) -> Iterator[tuple[CopiedReplicas, list[nn.Parameter]]]:
    """A seed's, each with a gradient, and the processes (one) that average it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        host = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model = esper.wrap(DistributedDataParallel(host), ["0"], torch.ones(2, 4))
        assert isinstance(model.replicas, CopiedReplicas)
        model.germinate("0", "mlp")
        seed = model.slots["0"].seed
        assert seed is not None
        for number, parameter in enumerate(seed.parameters()):
            parameter.grad = torch.full_like(parameter, number + 1.0)
        yield model.replicas, list(seed.parameters())
    finally:
        dist.destroy_process_group()


def test_gradients_are_averaged_without_waiting(
    seed_parameters: tuple[CopiedReplicas, list[nn.Parameter]],
) -> None:
    replicas, parameters = seed_parameters
    with torch.no_grad(), _Calls() as calls:
        replicas._end_of_backward()
    assert "aten.cat.default" in calls.names
    assert FROM_HOST not in calls.names
    assert TO_HOST not in calls.names
    for number, parameter in enumerate(parameters):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full_like(parameter, number + 1.0))


def test_a_parameter_that_nobody_used_keeps_no_gradient(
    seed_parameters: tuple[CopiedReplicas, list[nn.Parameter]],
) -> None:
    """As in one process: an optimiser leaves it alone, where a gradient of 0 would move it by its momentum."""
    replicas, parameters = seed_parameters
    parameters[0].grad = parameters[1].grad = None
    with torch.no_grad(), _Calls() as calls:
        replicas._end_of_backward()
    assert parameters[0].grad is None
    assert parameters[1].grad is None
    assert parameters[2].grad is not None
    assert TO_HOST not in calls.names  # one `tolist` for all, which is no such call
