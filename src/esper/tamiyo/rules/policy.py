"""What a policy without learning is."""

from typing import Protocol

from esper.leyline import ActionSpec, Situation


class RulePolicy(Protocol):
    """Decides for one host, once an epoch, and only ever what is legal. One instance per env."""

    def reset(self) -> None:
        """A new episode begins."""
        ...

    def act(self, situation: Situation) -> ActionSpec: ...
