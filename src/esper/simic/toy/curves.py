"""The toy's learning curves in closed form. Epochs are counted as trained so far; 0 is the untrained host.

host      a(t) = p - (p - a0) exp(-t / tau), anew from half its accuracy when the task changes
seed      effect = alpha gain (1 - exp(-clock / tau_b))
clock     epochs blended in + ISOLATED_SHARE x epochs trained in isolation
accuracy  host + effects - scars
"""

import math
from functools import lru_cache

import numpy as np

from esper.simic.toy.instance import CHANCE, ToyInstance

ISOLATED_SHARE = 0.5
"""What an epoch of isolated training is worth beside one that is blended in."""
SCAR = 0.01
"""Accuracy that is lost for good when a seed is pruned at alpha 1."""
UNTRAINED_LOSS = -math.log(CHANCE)
BLOCK = 32
"""Epochs of noise that are drawn at once."""
_NOISE_ENTROPY = 0xE59E3


def host_curve(instance: ToyInstance, epochs: int) -> tuple[float, ...]:
    """Noise-free accuracy of the bare host at epochs 0..epochs."""
    curve = [CHANCE]
    ends = [*(phase.start_epoch for phase in instance.phases[1:]), epochs]
    for phase, end in zip(instance.phases, ends, strict=True):
        level = 0.5 * curve[-1] if phase.start_epoch else CHANCE
        rise = phase.plateau - level
        curve += [
            phase.plateau - rise * math.exp(-passed / instance.host_epochs)
            for passed in range(1, min(end, epochs) - phase.start_epoch + 1)
        ]
    return tuple(curve)


def maturity(clock: float, epochs_to_learn: float) -> float:
    """The share of its gain that a seed has learned to give."""
    return 1.0 - math.exp(-clock / epochs_to_learn)


def loss_of(accuracy: float) -> float:
    """A loss that falls linearly with accuracy: log 10 at chance, 0 at 1."""
    return UNTRAINED_LOSS * (1.0 - accuracy) / (1.0 - CHANCE)


def generalisation_gap(instance: ToyInstance, epoch: int) -> float:
    """Train minus validation accuracy: large where samples are few."""
    return 0.25 * math.sqrt(500.0 / instance.training_samples) * (1.0 - math.exp(-epoch / 6.0))


def host_gradient_norm(instance: ToyInstance, epoch: int) -> float:
    """Tells the structure apart: shuffled inputs keep the gradient large."""
    structure = instance.phase_at(epoch).structure
    return (1.0 + 2.0 * structure) * (0.5 + 0.5 * math.exp(-epoch / instance.host_epochs))


@lru_cache(maxsize=4096)
def noise_block(draw: int, seed: int, block: int, slots: int) -> tuple[tuple[float, ...], ...]:
    """Standard normal (epoch in block, column); the same whatever is grown, so that no state is carried.

    Columns: validation untouched, validation touched, training, gradient, then contribution and probe a slot.
    """
    rng = np.random.default_rng((_NOISE_ENTROPY, draw, seed, block))
    values = rng.standard_normal((BLOCK, 4 + 2 * slots))
    return tuple(tuple(row) for row in values.tolist())
