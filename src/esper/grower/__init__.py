"""The grower: growth in any training loop, one decision an epoch."""

from esper.grower.grower import Grower
from esper.grower.history import Decision, GrowthWarning
from esper.grower.twin import Gain

__all__ = ["Decision", "Gain", "Grower", "GrowthWarning"]
