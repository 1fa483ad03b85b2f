"""Esper: neural networks that grow while they train, under a controller that has learned when, where and what.

The public names are loaded on first use, so that `import esper` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from esper.registration import register_when_gymnasium_comes

if TYPE_CHECKING:
    from esper.grower import Decision, Grower, GrowthWarning
    from esper.kasmina import GrowingModel, GrowthRules, blueprint, wrap
    from esper.leyline import Curve, Layout, LifecycleOp, Stage, Style
    from esper.runs.bench import bench
    from esper.runs.train import train
    from esper.simic import TrainingConfig
    from esper.simic.env import make_env
    from esper.tamiyo.controller import Controller
    from esper.tamiyo.rules import rule_policy

__version__ = "0.1.0"

_HOMES = {
    "bench": "esper.runs.bench",
    "Decision": "esper.grower",
    "Grower": "esper.grower",
    "GrowthWarning": "esper.grower",
    "Controller": "esper.tamiyo.controller",
    "rule_policy": "esper.tamiyo.rules",
    "GrowingModel": "esper.kasmina",
    "GrowthRules": "esper.kasmina",
    "blueprint": "esper.kasmina",
    "wrap": "esper.kasmina",
    "Curve": "esper.leyline",
    "Layout": "esper.leyline",
    "LifecycleOp": "esper.leyline",
    "Stage": "esper.leyline",
    "Style": "esper.leyline",
    "TrainingConfig": "esper.simic.config.training_config",
    "make_env": "esper.simic.env",
    "train": "esper.runs.train",
}

__all__ = [
    "Controller",
    "Curve",
    "Decision",
    "Grower",
    "GrowingModel",
    "GrowthRules",
    "GrowthWarning",
    "Layout",
    "LifecycleOp",
    "Stage",
    "Style",
    "TrainingConfig",
    "bench",
    "blueprint",
    "make_env",
    "rule_policy",
    "train",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


register_when_gymnasium_comes()
