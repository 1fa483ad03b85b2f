"""Tolaria: running hosts. Tasks and their data, the engine that trains many together, worlds, baseline curves.

The public names are loaded on first use: reading the table of tasks needs no engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.kasmina.governor import GovernorRules as GovernorRules
    from esper.kasmina.governor import Verdict as Verdict
    from esper.kasmina.gradients import SeedGradientCollector as SeedGradientCollector
    from esper.kasmina.gradients import materialize_grad_stats as materialize_grad_stats
    from esper.tolaria.engine.population import Population as Population
    from esper.tolaria.worlds.baselines import BaselineCurves as BaselineCurves
    from esper.tolaria.worlds.baselines import BaselineRun as BaselineRun
    from esper.tolaria.worlds.engine import EngineWorld as EngineWorld

_HOMES = {
    "esper.kasmina.governor": ("GovernorRules", "Verdict"),
    "esper.kasmina.gradients": ("SeedGradientCollector", "materialize_grad_stats"),
    "esper.tolaria.engine.population": ("Population",),
    "esper.tolaria.worlds.baselines": ("BaselineCurves", "BaselineRun"),
    "esper.tolaria.worlds.engine": ("EngineWorld",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'esper.tolaria' has no attribute {name!r}")
