"""Where reward came from, averaged for logs."""

import numpy as np
from numpy.typing import NDArray

from esper.simic.rewards.batch import ComponentBatch
from esper.simic.rewards.components import COMPONENT_NAMES


class RewardTelemetry:
    """Sums components over steps; `take` gives their means and begins anew."""

    __slots__ = ("_steps", "_sums")

    def __init__(self) -> None:
        self._sums: NDArray[np.float64] = np.zeros(len(COMPONENT_NAMES))
        self._steps = 0

    def add(self, components: ComponentBatch, valid: NDArray[np.bool_]) -> None:
        """Count the steps of the envs where `valid` (env,)."""
        self._sums += components.values[:, valid].sum(axis=1)
        self._steps += int(valid.sum())

    def take(self) -> dict[str, float] | None:
        """Mean per step of each component and of the total, since the last call; None without steps."""
        if self._steps == 0:
            return None
        means = (self._sums / self._steps).tolist()
        averaged = {f"reward/{name}": mean for name, mean in zip(COMPONENT_NAMES, means, strict=True)}
        averaged["reward/total"] = sum(means)
        self._sums, self._steps = np.zeros(len(COMPONENT_NAMES)), 0
        return averaged
