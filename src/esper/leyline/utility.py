"""What a network is worth: its score, minus rent for what was added to it. Every such number is made here."""

from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Number = TypeVar("Number", float, "NDArray[np.float64]")
"""One network's number, or an array with one entry a network."""
Family = Literal["contribution", "loss"]
"""What the score is: validation accuracy (of quantities their explained variance), or minus validation loss over the
untrained loss."""
Counts = Literal["end", "life"]
"""When it counts: of the product at the end, or of every epoch of the host's life alike."""
WORST_BY_LOSS = -3.0
"""The score of a loss that is as large or larger."""


def score_by_loss(loss: float, untrained_loss: float) -> float:
    """Minus the loss over that of the untrained host, at least WORST_BY_LOSS, which a loss of NaN has too."""
    return max(WORST_BY_LOSS, -loss / untrained_loss)  # in this order: a NaN is not larger


def rent_due(rent: float, added_parameters: Number, host_parameters: Number) -> Number:
    """rent x added parameters / host parameters"""
    return rent * (added_parameters / host_parameters)


def utility(score: Number, rent: float, added_parameters: Number, host_parameters: Number) -> Number:
    """U = score - rent x added parameters / host parameters

    score  validation (in final reports: test) accuracy, 0..1; or minus the loss over that of the untrained host
    rent   utility that it costs to add as many parameters as the host has
    """
    return score - rent_due(rent, added_parameters, host_parameters)
