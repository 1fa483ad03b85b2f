"""The model in a user's loop, as deciders read hosts."""

from dataclasses import replace

from torch.optim import Optimizer

from esper.kasmina import GrowingModel
from esper.kasmina.model import GrowingHost
from esper.leyline import EpochReport

TYPICAL_SAMPLES = 1000
"""Stands for a training set of unknown size: the middle of the observation's scale."""


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
        """Take in an epoch, with the learning rate of the optimiser's first group now and the highest so far."""
        rate = float(self._optimizer.param_groups[0]["lr"])
        highest = max(rate, self.report.highest_learning_rate or 0.0)
        self.report = replace(report, learning_rate=rate, highest_learning_rate=highest)
