"""Tolaria: running hosts. Tasks and their data, populations that train together, the governor, control curves.

The public names are loaded on first use: reading the table of tasks needs no engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.tolaria.controls import ControlCurves, ControlRun
    from esper.tolaria.governor import GovernorRules, Verdict
    from esper.tolaria.gradients import SeedGradientCollector, materialize_grad_stats
    from esper.tolaria.population import Population
    from esper.tolaria.world import EngineWorld

_HOMES = {
    "ControlCurves": "controls",
    "ControlRun": "controls",
    "EngineWorld": "world",
    "GovernorRules": "governor",
    "Population": "population",
    "SeedGradientCollector": "gradients",
    "Verdict": "governor",
    "materialize_grad_stats": "gradients",
}

__all__ = [
    "ControlCurves",
    "ControlRun",
    "EngineWorld",
    "GovernorRules",
    "Population",
    "SeedGradientCollector",
    "Verdict",
    "materialize_grad_stats",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper.tolaria' has no attribute {name!r}")
    return getattr(import_module(f"esper.tolaria.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
