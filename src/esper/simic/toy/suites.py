"""Suites of the toy: which cases to train on, and which to be judged by."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from esper.simic.toy.instance import toy_case

TRAINING_DRAWS = 1_000_000
"""Draws below are for training; those from here on are held out."""


@dataclass(frozen=True, slots=True)
class ToySuite:
    """Cases of the toy, drawn."""

    name: str
    slots: tuple[int, ...] = (3,)
    """How many slots a host may have."""
    changes: tuple[int, ...] = (0,)
    """Epochs at which the task may change; 0 is never."""

    def draw(self, rng: np.random.Generator) -> str:
        return self._case(int(rng.integers(TRAINING_DRAWS)), rng)

    def held_out(self, count: int) -> tuple[str, ...]:
        """The first `count` cases that are never drawn for training; always the same."""
        rng = np.random.default_rng(TRAINING_DRAWS)
        return tuple(self._case(TRAINING_DRAWS + index, rng) for index in range(count))

    def _case(self, draw: int, rng: np.random.Generator) -> str:
        return toy_case(draw, slots=int(rng.choice(self.slots)), change=int(rng.choice(self.changes)))


TOY_SUITES: Mapping[str, ToySuite] = {
    suite.name: suite
    for suite in (
        ToySuite("toy"),
        ToySuite("toy_shift", changes=(0, 6, 8, 10)),
        ToySuite("toy_slots", slots=(2, 3, 4)),
    )
}
