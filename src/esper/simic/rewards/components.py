"""What a reward is made of."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Utility:
    """What a state is worth, in its parts. The control's part is 0 when it is not subtracted."""

    score: float
    rent: float
    control: float

    @property
    def value(self) -> float:
        return self.score + self.rent + self.control


@dataclass(frozen=True, slots=True)
class RewardComponents:
    """The reward of one step; the components sum to it."""

    final_score: float = 0.0
    """Accuracy (or minus the scaled loss) of the product, on the last step only."""
    final_rent: float = 0.0
    """Minus the rent of the product."""
    final_control: float = 0.0
    """Minus what the wait-only control scored at the same epoch."""
    potential_after: float = 0.0
    """gamma x potential of the state after the step; 0 at a terminal state."""
    potential_before: float = 0.0
    """Minus the potential of the state before it."""
    rollback: float = 0.0
    """Minus the penalty for an end by the governor."""

    @property
    def total(self) -> float:
        before_the_end = self.final_score + self.final_rent + self.final_control
        return before_the_end + self.potential_after + self.potential_before + self.rollback


COMPONENT_NAMES = tuple(field.name for field in fields(RewardComponents))
