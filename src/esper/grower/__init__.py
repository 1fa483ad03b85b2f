"""The grower: growth in anybody's training loop, once an epoch."""

from esper.grower.grower import Grower
from esper.grower.history import Decision, GrowthWarning

__all__ = ["Decision", "Grower", "GrowthWarning"]
