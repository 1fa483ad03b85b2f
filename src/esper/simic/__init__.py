"""Simic: selection. Rewards, environments, PPO, rollouts and the trainer.

Names are loaded on first use, so that settings can be read and checked before torch is imported. The gradient
collector lives in kasmina and the typed dicts of the heads in leyline; both can be imported from here too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.kasmina.gradients import SeedGradientCollector as SeedGradientCollector
    from esper.kasmina.gradients import materialize_grad_stats as materialize_grad_stats
    from esper.leyline import ActionDict as ActionDict
    from esper.leyline import HeadEntropies as HeadEntropies
    from esper.leyline import HeadLogProbs as HeadLogProbs
    from esper.simic.config.training_config import TrainingConfig as TrainingConfig

_HOMES = {
    "esper.kasmina.gradients": ("SeedGradientCollector", "materialize_grad_stats"),
    "esper.leyline": ("ActionDict", "HeadEntropies", "HeadLogProbs"),
    "esper.simic.config.training_config": ("TrainingConfig",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'esper.simic' has no attribute {name!r}")
