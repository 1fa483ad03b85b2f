"""Simic: selection. Rewards, environments, PPO, rollouts and the trainer.

What people look for here but lives beneath: the gradient collector (tolaria) and the heads' typed dicts (leyline).
Names are loaded on first use, so that settings can be read and checked before torch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.kasmina.gradients import SeedGradientCollector, materialize_grad_stats
    from esper.leyline import ActionDict, HeadEntropies, HeadLogProbs
    from esper.simic.config.training_config import TrainingConfig

_HOMES = {
    "ActionDict": "esper.leyline",
    "HeadEntropies": "esper.leyline",
    "HeadLogProbs": "esper.leyline",
    "SeedGradientCollector": "esper.kasmina.gradients",
    "TrainingConfig": "esper.simic.config.training_config",
    "materialize_grad_stats": "esper.kasmina.gradients",
}

__all__ = [
    "ActionDict",
    "HeadEntropies",
    "HeadLogProbs",
    "SeedGradientCollector",
    "TrainingConfig",
    "materialize_grad_stats",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'esper.simic' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
