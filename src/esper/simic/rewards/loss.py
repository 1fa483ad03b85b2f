"""Utility by loss: U = -validation loss / untrained loss - rent x added parameters / host parameters."""

from esper.leyline import Standing
from esper.simic.rewards.components import Utility

WORTHLESS = -1.0
"""Score of a product that the governor took away: that of an untrained host. (0 would be a perfect one.)"""


def utility(
    standing: Standing, host_parameters: int, *, untrained_loss: float, rent: float, control_variate: bool
) -> Utility:
    if not untrained_loss > 0.0:
        raise ValueError(f"untrained_loss is {untrained_loss}; family 'loss' scales by it and expects > 0")
    control = 0.0
    if control_variate:
        if standing.control_loss is None:
            raise ValueError(
                "control_loss is unknown (None): give the environment controls, or set control_variate=False"
            )
        control = standing.control_loss / untrained_loss
    score = -standing.loss / untrained_loss
    return Utility(score, -rent * (standing.added_parameters / host_parameters), control)
