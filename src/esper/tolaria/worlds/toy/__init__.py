"""The toy: growth without training, with closed-form learning curves and an exact oracle."""

from esper.tolaria.worlds.toy.instance import (
    BLUEPRINTS,
    TOY_SUITES,
    ToyInstance,
    ToyPhase,
    ToySuite,
    toy_case,
    toy_instance,
)
from esper.tolaria.worlds.toy.oracle import OraclePlan, best_plan
from esper.tolaria.worlds.toy.world import ToyBaselines, ToyWorld

__all__ = [
    "BLUEPRINTS",
    "TOY_SUITES",
    "OraclePlan",
    "ToyBaselines",
    "ToyInstance",
    "ToyPhase",
    "ToySuite",
    "ToyWorld",
    "best_plan",
    "toy_case",
    "toy_instance",
]
