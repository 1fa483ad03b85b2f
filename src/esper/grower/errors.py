"""What a training loop is warned of, and what else there is to note of an epoch."""

import sys
import warnings
from dataclasses import dataclass, field

_PACKAGE = __name__.partition(".")[0]


class GrowthWarning(UserWarning):
    """Something is not as it should be; training goes on, and the message says what to do."""


@dataclass(slots=True)
class Notes:
    """What happened since the last decision, for the next one to carry."""

    told_once: set[str] = field(default_factory=set)
    _pending: list[str] = field(default_factory=list)

    def add(self, note: str) -> None:
        self._pending.append(note)

    def warn(self, message: str, *, once: str | None = None) -> None:
        """Warn and note it; what has a name in `once` only the first time."""
        if once is not None:
            if once in self.told_once:
                return
            self.told_once.add(once)
        self.add(message)
        warnings.warn(message, GrowthWarning, stacklevel=_levels_to_user() + 1)

    def take(self) -> tuple[str, ...]:
        taken, self._pending = tuple(self._pending), []
        return taken


def _levels_to_user() -> int:
    """Frames from the caller up to the first that is not Esper's: a warning points at the user's own line."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, levels = frame.f_back, levels + 1
    return levels - 1
