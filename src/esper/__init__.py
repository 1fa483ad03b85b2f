"""Esper: neural networks that grow while they train, under a controller that has learned when, where and what.

The public names are loaded on first use, so that `import esper` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.kasmina import GrowingModel, GrowthRules, blueprint, wrap
    from esper.leyline import Curve, Layout, LifecycleOp, Stage, Style

__version__ = "0.1.0"

_HOMES = {
    "GrowingModel": "esper.kasmina",
    "GrowthRules": "esper.kasmina",
    "blueprint": "esper.kasmina",
    "wrap": "esper.kasmina",
    "Curve": "esper.leyline",
    "Layout": "esper.leyline",
    "LifecycleOp": "esper.leyline",
    "Stage": "esper.leyline",
    "Style": "esper.leyline",
}

__all__ = [
    "Curve",
    "GrowingModel",
    "GrowthRules",
    "Layout",
    "LifecycleOp",
    "Stage",
    "Style",
    "blueprint",
    "wrap",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
