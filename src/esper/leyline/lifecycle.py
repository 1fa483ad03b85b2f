"""The life of a seed: its stages and the operations that move it between them."""

from enum import IntEnum
from typing import Literal


class Stage(IntEnum):
    """Where a slot stands. The numbers index observation and mask tensors."""

    is_live: bool
    """Whether a seed in this stage takes one of the `max_live_seeds` places."""

    DORMANT = 0
    """Empty. A seed may be germinated."""
    TRAINING = 1
    """A seed learns behind the host without touching it."""
    BLENDING = 2
    """Alpha is on its way to its target (or to zero, when fading)."""
    HOLDING = 3
    """Alpha has arrived at its target."""
    FOSSILIZED = 4
    """The seed is part of the host for good."""
    EMBARGOED = 5
    """A seed was pruned here lately; the slot cools down."""


LIVE_STAGES = frozenset({Stage.TRAINING, Stage.BLENDING, Stage.HOLDING})
for _stage in Stage:
    _stage.is_live = _stage in LIVE_STAGES


class LifecycleOp(IntEnum):
    """What a controller may do in one step. The numbers are the choices of the `op` head."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


Settle = Literal["worth", "committed"]
"""What stays of a finished run: the seeds that are worth their rent now, or just the fossilised ones."""
