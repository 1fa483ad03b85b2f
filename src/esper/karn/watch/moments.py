"""Means and their intervals, from sums that can be added up."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


@dataclass(slots=True)
class Moments:
    """Of finite numbers; others are not counted."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float | None) -> None:
        if value is not None and abs(value) < 1e100:  # squares of more would overflow
            self.count += 1
            self.total += value
            self.squares += value * value

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, by Student's t; None of fewer than two."""
        if self.count < 2:
            return None
        mean = self.total / self.count
        variance = max(self.squares - self.count * mean * mean, 0.0) / (self.count - 1)
        half = t_quantile(self.count - 1) * math.sqrt(variance / self.count)
        return mean - half, mean + half


def pooled(parts: Iterable[Moments]) -> Moments:
    whole = Moments()
    for part in parts:
        whole.count += part.count
        whole.total += part.total
        whole.squares += part.squares
    return whole


def t_quantile(freedom: int) -> float:
    """97.5 % quantile of Student's t; an expansion in 1 / freedom (Abramowitz and Stegun 26.7.5), within 1 %."""
    if freedom == 1:
        return 12.706204736
    if freedom == 2:
        return 4.302652730
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
