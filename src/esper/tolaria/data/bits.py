"""A function of bits that is learned while some of them flip slowly: known ground for losing the ability to learn.

The function is a network of threshold units (Dohare et al. 2024, "slowly changing regression"). A unit is on where at
least 70 % of the bits agree with the signs of its weights; the value is the sum of the units that are on, each with a
sign. At any time the slow bits stand still and the others are drawn anew for each sample, so that a learner which is
too small for the whole function has to follow it. Whole numbers throughout: the same to the bit on any machine.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BITS, UNITS = 20, 100
_AGREEING = 14
"""Bits of 20 that agree with a unit's weights where it is on."""
_JUDGED = 4096
"""Drawn inputs that the mean and the deviation of a function are taken over."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class BitFunction:
    """One target network, with values that have mean 0 and deviation 1 over all bits."""

    signs: Ints
    """(unit, bit) -1 or 1"""
    outputs: Ints
    """(unit,) -1 or 1"""
    mean: float = 0.0
    deviation: float = 1.0

    @staticmethod
    def drawn(rng: np.random.Generator) -> "BitFunction":
        """A function with signs of its own."""
        raw = BitFunction(rng.choice((-1, 1), (UNITS, BITS)), rng.choice((-1, 1), UNITS))
        values = raw(rng.integers(2, size=(_JUDGED, BITS)))[:, 0].astype(np.float64)
        return BitFunction(raw.signs, raw.outputs, float(values.mean()), float(values.std()))

    def __call__(self, bits: Ints) -> Floats:
        """(sample, 1): the value at each of `bits` (sample, bit)."""
        agreeing = bits @ self.signs.T + (self.signs < 0).sum(1)  # (sample, unit)
        values = (agreeing >= _AGREEING) @ self.outputs
        scaled: Floats = ((values - self.mean) / self.deviation).astype(np.float32)
        return scaled[:, None]


def slow_states(slow: int, count: int, rng: np.random.Generator) -> Ints:
    """(state, slow bit): each state is the one before with one bit flipped."""
    flips = rng.integers(slow, size=count)
    flips[0] = 0
    flipped = np.cumsum(np.eye(slow, dtype=np.int64)[flips], axis=0)
    states: Ints = (rng.integers(2, size=slow) + flipped) % 2
    return states


def some_bits(state: Ints, count: int, rng: np.random.Generator) -> Ints:
    """(count, bit): the slow bits as they stand, and the others drawn."""
    drawn = rng.integers(2, size=(count, BITS - len(state)))
    return np.concatenate([np.tile(state, (count, 1)), drawn], axis=1)
