"""A user's loop: for how long it goes on, and what was compiled of its model."""

import sys

import torch

from esper.kasmina import GrowingModel

USUAL_EPOCHS = 20
"""The length of a run that did not say: what controllers are trained on."""
EPOCHS_AHEAD = 8
"""A run of unknown length never has fewer left, nor one that outlives what it said."""


def topology(model: GrowingModel) -> list[object]:
    """What a compiled graph depends on; alpha does not belong to it."""
    return [(slot.life.births, slot.stage, slot.life.fading) for slot in model.slots.values()]


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    if "torch._dynamo" not in sys.modules:  # a second's import, and without it nothing has been compiled
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
