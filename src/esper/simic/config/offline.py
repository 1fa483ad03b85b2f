"""The settings of implicit Q-learning."""

from pydantic.dataclasses import dataclass

from esper.simic.config import ranges
from esper.simic.config.errors import CHECKED, explained


@explained
@dataclass(slots=True, frozen=True, kw_only=True, config=CHECKED)
class IQLConfig:
    """The settings of an `IQL` learner, checked when they are set."""

    gamma: ranges.UpToOne = 1.0
    """Discount per step; that of the recorded reward's shaping."""
    expectile: ranges.Expectile = 0.8
    """Which expectile of Q over recorded actions V is: 0.5 is what was done, towards 1 the best that was done."""
    beta: ranges.NotNegative = 10.0
    """How sharply better actions are preferred; 0 clones what was done."""
    trace: ranges.Share = 0.0
    """How much of what was done later counts for what an action is worth (lambda): 0 asks V after each step."""
    balance: ranges.Share = 0.0
    """How far rare actions count as much as frequent ones for Q and policy: 0 as often as they were done, 1 alike."""
    target_rate: ranges.UpToOne = 0.01
    """How far the slow copies of the critics move with each update."""
    lr: ranges.Positive = 1e-3
    """Adam's learning rate."""
