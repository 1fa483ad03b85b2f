"""What is collected in one round, before it is learned from."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from esper.leyline import LifecycleOp
from esper.simic.env import EpisodeSummary
from esper.simic.reports import mean_of_known


@dataclass(slots=True)
class BatchSummary:
    """The episodes that ended in a round, and what was done in it."""

    episodes: list[EpisodeSummary] = field(default_factory=list)
    operations: list[int] = field(default_factory=lambda: [0] * len(LifecycleOp))
    """How often each LifecycleOp was chosen, over all envs."""

    @property
    def mean_gain(self) -> float | None:
        return mean_of_known(episode.gain for episode in self.episodes)

    def count(self, actions: NDArray[np.int64], lost: NDArray[np.bool_]) -> None:
        """The operations of one step, actions (env, head); a host that was lost executed nothing."""
        for op in actions[~lost, 0].tolist():
            self.operations[op] += 1
