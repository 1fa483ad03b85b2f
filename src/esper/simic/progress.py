"""What a training run shows while it works; beside what it records, how far its preparation is."""

from collections.abc import Callable
from dataclasses import dataclass

from esper.leyline import RunEvent


@dataclass(frozen=True, slots=True)
class Preparing:
    """How many of the control curves that the first round waits for are trained."""

    done: int
    total: int


News = RunEvent | Preparing
Progress = Callable[[News], None]
