"""The two policies that know nothing: never grow, and grow at random."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    STYLES,
    TEMPOS,
    ActionSpec,
    LifecycleOp,
    Situation,
)

_Choice = TypeVar("_Choice")


class WaitPolicy:
    """Never grows: the control that growth is measured against."""

    __slots__ = ()

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:  # noqa: ARG002 - nothing could change its mind
        return ActionSpec()


class RandomLegalPolicy:
    """Uniform over the legal operations, then over the slots that allow it, then over each head's choices."""

    __slots__ = ("_rng",)

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        legal = situation.legal
        operations = sorted(frozenset().union(*(here.operations for here in legal.values())))
        op = self._one_of(operations)
        if op is LifecycleOp.WAIT:
            return ActionSpec()
        slot = self._one_of([name for name, here in legal.items() if op in here.operations])
        here = legal[slot]
        return ActionSpec(
            op=op,
            slot=slot,
            blueprint=self._one_of(here.blueprints) if here.blueprints else None,
            style=self._one_of(here.styles or STYLES),
            tempo=self._one_of(TEMPOS),
            alpha_target=self._one_of(here.alpha_targets or ALPHA_TARGETS),
            alpha_speed=self._one_of(ALPHA_SPEEDS),
            alpha_curve=self._one_of(ALPHA_CURVES),
        )

    def _one_of(self, choices: Sequence[_Choice]) -> _Choice:
        return choices[int(self._rng.integers(len(choices)))]
