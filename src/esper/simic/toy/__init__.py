"""The toy: growth without training, with closed-form learning curves and an exact oracle."""

from esper.simic.toy.instance import BLUEPRINTS, ToyInstance, ToyPhase, toy_case, toy_instance
from esper.simic.toy.oracle import OraclePlan, best_plan
from esper.simic.toy.suites import TOY_SUITES, ToySuite
from esper.simic.toy.world import ToyControls, ToyWorld

__all__ = [
    "BLUEPRINTS",
    "TOY_SUITES",
    "OraclePlan",
    "ToyControls",
    "ToyInstance",
    "ToyPhase",
    "ToySuite",
    "ToyWorld",
    "best_plan",
    "toy_case",
    "toy_instance",
]
