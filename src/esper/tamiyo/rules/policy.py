"""What a rule is: a policy without learning, for one host. Its memory of an episode can be saved and loaded."""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from esper.leyline import ActionSpec, Situation


@runtime_checkable
class RulePolicy(Protocol):
    """Decides for one host, once an epoch, and only ever what is legal. One instance per env."""

    def reset(self) -> None:
        """Begin a new episode."""

    def act(self, situation: Situation) -> ActionSpec:
        """Return what to do now."""


@runtime_checkable
class SavableRule(RulePolicy, Protocol):
    """A rule that can be saved in the middle of an episode; all rules that come with Esper can."""

    def state_dict(self) -> dict[str, object]:
        """Return what it remembers of the episode, as plain data; its options are not part of that."""

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from the `state_dict` of a rule of the same class."""


Memory = TypeVar("Memory")


class Remembering(Generic[Memory]):
    """Base of rules whose memory of an episode is one dataclass of plain data, `memory`.

    kind  the dataclass; made without arguments when an episode begins
    """

    def __init__(self, kind: type[Memory]) -> None:
        self._kind = kind
        self.reset()

    def reset(self) -> None:
        """Begin a new episode, remembering nothing."""
        self.memory = self._kind()

    def state_dict(self) -> dict[str, object]:
        """Return the fields of the memory as plain data."""
        plain: dict[str, object] = TypeAdapter(self._kind).dump_python(self.memory, mode="json")
        return plain

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from the `state_dict` of a rule of the same class."""
        names = Remembering.state_dict(self).keys()
        try:
            memory = TypeAdapter(self._kind).validate_python(state)
        except ValidationError:
            memory = None
        if memory is None or state.keys() != names:
            expected = ", ".join(names) or "nothing"
            raise ValueError(f"{state!r} is not the state of a {type(self).__name__}, which has {expected}")
        self.memory = memory
