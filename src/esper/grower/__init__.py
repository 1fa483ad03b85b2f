"""The grower: growth in any training loop, one decision an epoch."""

from esper.grower.grower import Grower
from esper.grower.history import Decision, GrowthWarning

__all__ = ["Decision", "Grower", "GrowthWarning"]
