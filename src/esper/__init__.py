"""Esper: neural networks that grow while they train, under a controller that has learned when, where and what.

The public names are imported from their modules on first use, so that `import esper` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.benchmark import BenchRequest as BenchRequest
    from esper.benchmark import BenchResult as BenchResult
    from esper.benchmark.bench import bench as bench
    from esper.grower import Decision as Decision
    from esper.grower import Grower as Grower
    from esper.grower import GrowthWarning as GrowthWarning
    from esper.kasmina import GrowingModel as GrowingModel
    from esper.kasmina import GrowthRules as GrowthRules
    from esper.kasmina import blueprint as blueprint
    from esper.kasmina import wrap as wrap
    from esper.kasmina.adapted import AdaptedModel as AdaptedModel
    from esper.kasmina.adapted import load_adapter as load_adapter
    from esper.kasmina.adapters import AdapterError as AdapterError
    from esper.kasmina.governor import GovernorRules as GovernorRules
    from esper.leyline import ActionSpec as ActionSpec
    from esper.leyline import Curve as Curve
    from esper.leyline import DecisionSettings as DecisionSettings
    from esper.leyline import Layout as Layout
    from esper.leyline import LifecycleOp as LifecycleOp
    from esper.leyline import Situation as Situation
    from esper.leyline import Stage as Stage
    from esper.leyline import Style as Style
    from esper.leyline.errors import EsperError as EsperError
    from esper.runs.train import train as train
    from esper.simic import TrainingConfig as TrainingConfig
    from esper.simic.env import FlatGrowthEnv as FlatGrowthEnv
    from esper.simic.env import make_env as make_env
    from esper.simic.reward import RewardConfig as RewardConfig
    from esper.tamiyo.controller import Controller as Controller
    from esper.tamiyo.rules import rule_policy as rule_policy

__version__ = "0.1.0"

_HOMES = {
    "ActionSpec": "esper.leyline",
    "AdaptedModel": "esper.kasmina.adapted",
    "AdapterError": "esper.kasmina.adapters",
    "BenchRequest": "esper.benchmark",
    "BenchResult": "esper.benchmark",
    "Controller": "esper.tamiyo.controller",
    "Curve": "esper.leyline",
    "Decision": "esper.grower",
    "DecisionSettings": "esper.leyline",
    "EsperError": "esper.leyline.errors",
    "FlatGrowthEnv": "esper.simic.env",
    "GovernorRules": "esper.kasmina.governor",
    "Grower": "esper.grower",
    "GrowingModel": "esper.kasmina",
    "GrowthRules": "esper.kasmina",
    "GrowthWarning": "esper.grower",
    "Layout": "esper.leyline",
    "LifecycleOp": "esper.leyline",
    "RewardConfig": "esper.simic.reward",
    "Situation": "esper.leyline",
    "Stage": "esper.leyline",
    "Style": "esper.leyline",
    "TrainingConfig": "esper.simic.config.training_config",
    "bench": "esper.benchmark.bench",
    "blueprint": "esper.kasmina",
    "load_adapter": "esper.kasmina.adapted",
    "make_env": "esper.simic.env",
    "rule_policy": "esper.tamiyo.rules",
    "train": "esper.runs.train",
    "wrap": "esper.kasmina",
}
"""name -> the module it is imported from"""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
