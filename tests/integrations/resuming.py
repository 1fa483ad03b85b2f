"""What has to be the same after a run that was stopped and resumed: everything, bit for bit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.grower import Grower
from esper.grower.history import Decision
from esper.kasmina.describing import ModelRecord, describe


@dataclass(frozen=True)
class Outcome:
    """All that a run leaves behind."""

    decisions: tuple[Decision, ...]
    record: ModelRecord
    """Lives of the seeds, learning rates and other options of the optimiser's groups."""
    tensors: dict[str, Tensor]
    """Weights and the optimiser's state, with the seeds'."""
    exported: dict[str, Tensor]


def outcome(grower: Grower) -> Outcome:
    """Of a run that has ended; settles and exports it."""
    record, tensors = describe(grower.model)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    return Outcome(grower.history, record, kept, grower.finish().state_dict())


def assert_same(ours: Outcome, theirs: Outcome) -> None:
    """Bit for bit."""
    assert ours.decisions == theirs.decisions
    assert ours.record == theirs.record
    for mine, other in ((ours.tensors, theirs.tensors), (ours.exported, theirs.exported)):
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            assert torch.equal(tensor, other[name]), name
