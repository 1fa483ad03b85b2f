"""Tolaria: running hosts. Tasks and their data, populations that train together, the governor, control curves.

The public names are loaded on first use: reading the table of tasks needs no engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.kasmina.governor import GovernorRules, Verdict
    from esper.kasmina.gradients import SeedGradientCollector, materialize_grad_stats
    from esper.tolaria.engine.population import Population
    from esper.tolaria.worlds.baselines import BaselineCurves, BaselineRun
    from esper.tolaria.worlds.engine import EngineWorld

_HOMES = {
    "BaselineCurves": "esper.tolaria.worlds.baselines",
    "BaselineRun": "esper.tolaria.worlds.baselines",
    "EngineWorld": "esper.tolaria.worlds.engine",
    "GovernorRules": "esper.kasmina.governor",
    "Population": "esper.tolaria.engine.population",
    "SeedGradientCollector": "esper.kasmina.gradients",
    "Verdict": "esper.kasmina.governor",
    "materialize_grad_stats": "esper.kasmina.gradients",
}

__all__ = [
    "BaselineCurves",
    "BaselineRun",
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
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
