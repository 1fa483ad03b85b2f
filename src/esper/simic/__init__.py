"""Simic: selection. Rewards, environments, PPO, rollouts and the trainer.

What people look for here but lives beneath: the gradient collector (tolaria) and the heads' typed dicts (leyline).
"""

from esper.leyline import ActionDict, HeadEntropies, HeadLogProbs
from esper.tolaria.gradients import SeedGradientCollector, materialize_grad_stats

__all__ = ["ActionDict", "HeadEntropies", "HeadLogProbs", "SeedGradientCollector", "materialize_grad_stats"]
