"""What a training step costs, counted once for each topology."""

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.tolaria.host import TrainedHost
from esper.tolaria.step import forward

Topology = tuple[object, ...]


class FlopLedger:
    """Forward and backward of one training step, in floating point operations.

    Matrix products and convolutions are counted, as is usual; norms, activations and the optimiser are not.
    """

    def __init__(self) -> None:
        self._known: dict[Topology, int] = {}

    def epoch(self, host: TrainedHost) -> int:
        """Of an epoch of this host as it stands."""
        topology = _topology(host)
        if topology not in self._known:
            self._known[topology] = count_step(host)
        return host.steps_per_epoch * self._known[topology]


def count_step(host: TrainedHost) -> int:
    """On a copy of the model: nothing of the host moves, not even the statistics of a batch norm."""
    twin = copy.copy(host)
    twin.model = copy.deepcopy(host.model)
    batch = torch.arange(host.task.batch, device=host.device) % len(host.data.inputs)
    with FlopCounterMode(display=False) as counter:
        loss, _ = forward(twin, host.data.inputs[batch], host.data.targets[batch])
        loss.backward()
    return int(counter.get_total_flops())


def _topology(host: TrainedHost) -> Topology:
    shapes = tuple(tuple(parameter.shape) for parameter in host.model.host.parameters())
    # What `host.topology` tells apart by birth number is told apart by blueprint here.
    roles = tuple(
        None if slot.seed is None else (slot.snapshot().blueprint, str(slot.life.style), role)
        for slot, role in zip(host.slots, host.topology, strict=True)
        for role in ((role[1] if isinstance(role, tuple) else None),)
    )
    return (host.data.inputs.shape[1:], host.task.batch, shapes, roles)
