"""Utility by accuracy: U = validation accuracy - rent x added parameters / host parameters."""

from esper.leyline import Standing
from esper.simic.rewards.components import Utility

WORTHLESS = 0.0
"""Score of a product that the governor took away."""


def utility(standing: Standing, host_parameters: int, *, rent: float, control_variate: bool) -> Utility:
    if standing.accuracy is None:
        raise ValueError("accuracy is unknown (None): family 'contribution' needs it, family 'loss' does not")
    control = 0.0
    if control_variate:
        if standing.control_accuracy is None:
            raise ValueError(
                "control_accuracy is unknown (None): give the environment controls, or set control_variate=False"
            )
        control = -standing.control_accuracy
    return Utility(standing.accuracy, -rent * (standing.added_parameters / host_parameters), control)
