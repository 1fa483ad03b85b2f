"""The model in a user's loop: wrapped, as deciders read hosts, and what torch.compile has made of it."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from esper.grower import checks
from esper.kasmina import GrowingModel, wrap
from esper.kasmina.coalitions import SeedWorth
from esper.kasmina.gradients import SeedGradients
from esper.kasmina.model import GrowingHost
from esper.kasmina.probing import ExampleInput
from esper.kasmina.replicas import recognise
from esper.kasmina.wrapping import WrapOptions, copied_slots
from esper.leyline import EpochReport

TYPICAL_SAMPLES = 1000
"""Stands for a training set of unknown size: the middle of the observation's scale."""


def growing(
    model: nn.Module,
    slots: Sequence[str] | None,
    example_input: ExampleInput | None,
    wrapping: WrapOptions,
    accumulate: int,
    undo: ExitStack,
) -> GrowingModel:
    """The model that grows; one that is wrapped here is unwrapped by `undo`."""
    if isinstance(model, GrowingModel):
        checks.refuse_wrapping({"slots": slots, "example_input": example_input, **wrapping})
        return model
    slots, example_input = checks.require_place(slots, example_input)
    wrapping["isolation_penalty"] = wrapping.get("isolation_penalty", 1.0) / accumulate
    came_with_slots = bool(copied_slots(recognise(model)[0]))
    wrapped = wrap(model, slots, example_input, **wrapping)
    undo.callback(wrapped.release if came_with_slots else wrapped.unwrap)
    return wrapped


class LoopHost(GrowingHost):
    """A growing model and the optimiser that trains it.

    training_samples  how many there are; None is unknown
    """

    def __init__(
        self, model: GrowingModel, optimizer: Optimizer, training_samples: int | None = None
    ) -> None:
        super().__init__(model)
        self.training_samples = TYPICAL_SAMPLES if training_samples is None else training_samples
        self._optimizer = optimizer
        self.take(self.report)

    def take(self, report: EpochReport) -> None:
        """Take in an epoch, with the learning rate of the optimiser's first group now and the highest so far.

        The samples of validation, where they were counted, are those of the epoch before.
        """
        rate = float(self._optimizer.param_groups[0]["lr"])
        highest = max(rate, self.report.highest_learning_rate or 0.0)
        samples = report.validation_samples or self.report.validation_samples
        self.report = replace(
            report, learning_rate=rate, highest_learning_rate=highest, validation_samples=samples
        )

    def report_seeds(self, gradients: Mapping[str, SeedGradients], worths: Mapping[str, SeedWorth]) -> None:
        """Take in what was measured of each live seed, and of each fossil that was weighed, in the epoch; by slot."""
        weighed = [name for name in self.model.fossils if name in worths]
        for name in (*self.model.live_slots, *weighed):
            seen, worth = gradients.get(name), worths.get(name)
            self.model.report(
                name,
                contribution=None if worth is None else worth.contribution,
                probe=None if worth is None else worth.probe,
                gradients_finite=None if seen is None else seen.finite,
                gradient_norm=seen.norm if seen is not None and seen.finite else None,
                gradient_health=None if seen is None else seen.health,
            )


def topology(model: GrowingModel) -> list[object]:
    """What a compiled graph depends on; alpha does not belong to it."""
    return [(slot.life.births, slot.stage, slot.life.fading) for slot in model.slots.values()]


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    if "torch._dynamo" not in sys.modules:  # a second's import, and without it nothing has been compiled
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
