"""Alpha ramps: how strongly a seed is mixed in, epoch by epoch."""

import math
from dataclasses import dataclass

from esper.leyline import Curve

_STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID_NORMAL: 10.0, Curve.SIGMOID_SHARP: 16.0}


def curve_value(curve: Curve, progress: float) -> float:
    """The share of a ramp covered at `progress` in [0, 1]: monotone, exactly 0 at 0 and exactly 1 at 1.

    linear   p
    cosine   (1 - cos pi p) / 2
    sigmoid  (s(p) - s(0)) / (s(1) - s(0)) with s(p) = 1 / (1 + exp(-k (p - 1/2)))
    """
    if progress <= 0.0:
        return 0.0
    if progress >= 1.0:
        return 1.0
    if curve is Curve.LINEAR:
        return progress
    if curve is Curve.COSINE:
        return (1.0 - math.cos(math.pi * progress)) / 2.0
    # s(p) - 1/2 = tanh(k (p - 1/2) / 2) / 2, which is odd about p = 1/2
    steepness = _STEEPNESS[curve]
    return 0.5 + 0.5 * math.tanh(steepness * (progress - 0.5) / 2.0) / math.tanh(steepness / 4.0)


@dataclass(slots=True)
class Ramp:
    """Alpha on its way from `start` to `target` over `epochs` ticks; 0 epochs arrive on the first tick."""

    start: float
    target: float
    epochs: int
    curve: Curve
    elapsed: int = 0

    @property
    def arrived(self) -> bool:
        return self.elapsed >= max(self.epochs, 1)

    @property
    def epochs_left(self) -> int:
        return max(max(self.epochs, 1) - self.elapsed, 0)

    def tick(self) -> float:
        """Move one epoch on and return the new alpha."""
        self.elapsed += 1
        if self.arrived:
            return self.target
        return self.start + (self.target - self.start) * curve_value(self.curve, self.elapsed / self.epochs)
