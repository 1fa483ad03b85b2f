"""What a rule is: a policy without learning, for one host; its memory of an episode; what it asks of a situation."""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, runtime_checkable

from pydantic import TypeAdapter, ValidationError

from esper.leyline import (
    CAUSAL_TABLE,
    ActionSpec,
    BlueprintCard,
    DecisionSettings,
    HostSignals,
    LifecycleOp,
    Situation,
    SlotSnapshot,
)
from esper.leyline.utility import rent_due


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


@runtime_checkable
class ReasoningRule(RulePolicy, Protocol):
    """A rule that says what decided its last action."""

    reason: str | None
    """In words, with the numbers that were compared; None where there is nothing to say."""


@runtime_checkable
class TimedRule(RulePolicy, Protocol):
    """A rule that begins nothing too early, or too late to see it through."""

    def may_begin(self, horizon: int) -> range:
        """The epochs after which it may germinate, in a run of `horizon` epochs."""


@runtime_checkable
class DecidingRule(RulePolicy, Protocol):
    """A rule that may decide other things than most, such as to retire fossils."""

    @property
    def decisions(self) -> DecisionSettings:
        """What it may decide, and when a fossil counts as decayed."""


def decisions_of(rule: RulePolicy) -> DecisionSettings:
    """What a rule may decide."""
    return rule.decisions if isinstance(rule, DecidingRule) else DecisionSettings()


class Remembering(Generic[Memory]):
    """Base of rules whose memory of an episode is one dataclass of plain data, `memory`.

    kind  the dataclass; made without arguments when an episode begins
    """

    reason: str | None = None
    """What decided the last action, in words."""

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


# Questions that rules ask of a situation


def refusal(action: ActionSpec, situation: Situation) -> str | None:
    """Why an action cannot be executed now, or None if it can."""
    if action.op is LifecycleOp.WAIT:
        return None
    legal = None if action.slot is None else situation.legal.get(action.slot)
    if legal is None:
        return f"slot is {action.slot!r}; the slots are {', '.join(situation.legal)}"
    if action.op not in legal.operations:
        allowed = ", ".join(op.name for op in sorted(legal.operations))
        return f"{action.op.name} is not legal at {action.slot!r} now; legal: {allowed}"
    choices = {"blueprint": legal.blueprints, "style": legal.styles, "alpha_target": legal.alpha_targets}
    for head in CAUSAL_TABLE[action.op]:
        value = getattr(action, head)
        if head in choices and value not in choices[head]:
            return f"{head} is {value!r}; legal at {action.slot!r}: {', '.join(map(str, choices[head]))}"
    return None


def affordable(card: BlueprintCard, signals: HostSignals) -> bool:
    """Whether the parameter budget, if there is one, has room for it."""
    budget = signals.parameter_budget
    return budget is None or signals.added_parameters + card.parameters <= budget


def pays(seed: SlotSnapshot, signals: HostSignals, *, margin: float, rent: float) -> bool | None:
    """Whether a seed's leave-one-out contribution exceeds margin + rent x its share of the host; None unknown."""
    if seed.contribution is None:
        return None
    return seed.contribution > margin + rent_due(rent, seed.parameters, signals.host_parameters)


def comparison(seed: SlotSnapshot, signals: HostSignals, *, margin: float, rent: float) -> str:
    """What `pays` compares, in words: 'contribution +0.016 is under margin 0.02 + rent 0.0004'.

    A margin below 0 is taken off: 'contribution -0.016 is under rent 0.0004 less margin 0.003'.
    """
    if seed.contribution is None:
        return "its contribution is unknown"
    owed = rent_due(rent, seed.parameters, signals.host_parameters)
    side = "over" if seed.contribution > margin + owed else "under"
    asked = (
        f"rent {owed:.4f} less margin {-margin:.3g}"
        if margin < 0
        else f"margin {margin:.3g} + rent {owed:.4f}"
    )
    return f"contribution {seed.contribution:+.3f} is {side} {asked}"


def within_noise(seed: SlotSnapshot, signals: HostSignals, *, noise: float, rent: float) -> str:
    """What is neither over rent by `noise` nor under it by as much, in words."""
    owed = rent_due(rent, seed.parameters, signals.host_parameters)
    assert seed.contribution is not None
    return f"contribution {seed.contribution:+.3f} is within noise {noise:.3g} of its rent {owed:.4f}"


def has_live_seed(situation: Situation) -> bool:
    """Whether any slot has a seed that is neither fossilised nor gone."""
    return any(slot.stage.is_live for slot in situation.slots)


def cheapest_first(situation: Situation) -> list[tuple[str, BlueprintCard]]:
    """Every (slot, card) that the host offers, by parameters; of equals, the slot nearest the output first."""
    depth = {slot.name: position for position, slot in enumerate(situation.slots)}
    offers = [(slot, card) for slot, cards in situation.cards.items() for card in cards]
    return sorted(offers, key=lambda offer: (offer[1].parameters, -depth[offer[0]]))
