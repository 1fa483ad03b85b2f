"""The slots and blueprints that a batch of hosts shares, and decisions as `ActionSpec` or one index per head."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from esper.leyline import (
    CAUSAL_TABLE,
    CHOICES,
    HEAD_NAMES,
    ActionSpec,
    BlueprintCard,
    DecisionSettings,
    HostProtocol,
    IllegalChoice,
    LifecycleOp,
    ObservationUnits,
    SlotConfig,
    operations,
)
from esper.tamiyo.layout import ActionLayout, growth_layout

Actions = NDArray[np.int64]
"""(env, head) in HEAD_NAMES order: which choice of each head."""


@dataclass(frozen=True)
class GrowthSpace:
    """Places for the slots of any host in a batch, and the names of every blueprint offered anywhere.

    A host with fewer slots takes the first places; the others are padding.
    """

    slot_config: SlotConfig
    blueprints: tuple[str, ...]
    retire: bool = False
    """Whether RETIRE is one of the operations, and what a decider sees of fossils part of the observation."""
    units: ObservationUnits = "absolute"
    """What an observation is measured in."""

    def __post_init__(self) -> None:
        if not self.blueprints:
            raise ValueError("blueprints is empty: a controller needs at least one to germinate")
        repeated = sorted({name for name in self.blueprints if self.blueprints.count(name) > 1})
        if repeated:
            raise ValueError(f"blueprints names {', '.join(repeated)} more than once")

    @staticmethod
    def covering(hosts: Iterable[HostProtocol]) -> "GrowthSpace":
        """The smallest space for all of these hosts, whatever their order.

        Slots are named as in the hosts that have the most of them if these agree, else slot0, slot1, ...
        """
        known = list(hosts)
        if not known:
            raise ValueError("hosts is empty: expected at least one host to cover")
        places = max(len(host.slot_config) for host in known)
        largest = {host.slot_config for host in known if len(host.slot_config) == places}
        names = {card.name for host in known for cards in host.cards.values() for card in cards}
        slots = largest.pop() if len(largest) == 1 else numbered_slots(places)
        return GrowthSpace(slots, tuple(sorted(names)))

    @property
    def slot_count(self) -> int:
        """Places for slots."""
        return len(self.slot_config)

    @cached_property
    def action_layout(self) -> ActionLayout:
        """The layout of a decision over these slots and blueprints."""
        return growth_layout(self.slot_config, len(self.blueprints), retire=self.retire)

    def under(self, decisions: DecisionSettings) -> "GrowthSpace":
        """The same places, with the operations and the observation that these settings give."""
        return replace(self, retire=decisions.retire, units=decisions.observation_units)

    @cached_property
    def blueprint_index(self) -> Mapping[str, int]:
        """blueprint -> its position."""
        return {name: index for index, name in enumerate(self.blueprints)}

    def misfit(self, slots: SlotConfig, blueprints: Iterable[str]) -> str | None:
        """Why hosts with these slots and offered blueprints have no place here; None if they have.

        Fewer slots fit. As many slots fit if they have the same names, or if the places here are only numbered.
        """
        theirs, ours = ", ".join(slots.slot_ids), ", ".join(self.slot_config.slot_ids)
        if len(slots) > self.slot_count:
            return f"hosts have {len(slots)} slots ({theirs}), and there are places for {self.slot_count} ({ours})"
        named = self.slot_config != numbered_slots(self.slot_count)
        if named and len(slots) == self.slot_count and slots != self.slot_config:
            return f"hosts have the slots {theirs}, and the places are those of {ours}"
        unknown = sorted(set(blueprints) - set(self.blueprints))
        if unknown:
            return f"hosts are offered {', '.join(unknown)}, and only {', '.join(self.blueprints)} are known"
        return None

    def require_fits(self, host: HostProtocol) -> None:
        """Raise unless this host has a place here."""
        offered = (card.name for cards in host.cards.values() for card in cards)
        misfit = self.misfit(host.slot_config, offered)
        if misfit is not None:
            raise ValueError(f"the host does not fit the space: {misfit}")


def numbered_slots(count: int) -> SlotConfig:
    """slot0, slot1, ...: places that hosts with different names share."""
    return SlotConfig(tuple(f"slot{number}" for number in range(count)))


def encode(action: ActionSpec, space: GrowthSpace, host_slots: SlotConfig) -> NDArray[np.int64]:
    """(head,) in HEAD_NAMES order; heads that the operation makes irrelevant are 0."""
    indices = np.zeros(len(HEAD_NAMES), dtype=np.int64)
    for head in CAUSAL_TABLE[action.op]:
        value = getattr(action, head)
        if value is None:
            raise ValueError(f"{head} is None; {action.op.name} needs one")
        choices = _choices(head, space, host_slots)
        if value not in choices:
            said = _word(value) if head == "op" else repr(value)
            raise ValueError(f"{head} is {said}; expected one of {', '.join(map(_word, choices))}")
        indices[HEAD_NAMES.index(head)] = choices.index(value)
    return indices


def decode(
    indices: Sequence[int] | NDArray[np.int64],
    space: GrowthSpace,
    host_slots: SlotConfig,
    cards: Mapping[str, Sequence[BlueprintCard]],
) -> ActionSpec:
    """The decision that these choices (head,) stand for; what the operation does not use keeps its default."""
    chosen = _by_head(indices)
    operation = LifecycleOp(_value("op", chosen["op"], operations(retire=space.retire)))  # type: ignore[arg-type]
    fields = {
        head: _value(head, chosen[head], _choices(head, space, host_slots))
        for head in CAUSAL_TABLE[operation]
    }
    action = ActionSpec(**fields)  # type: ignore[arg-type] # the table's heads are the fields' names
    if action.blueprint is not None and action.slot is not None:
        offered = [card.name for card in cards[action.slot]]
        if action.blueprint not in offered:
            raise ValueError(
                f"blueprint {action.blueprint!r} is not offered at slot {action.slot!r}; "
                f"expected one of {', '.join(offered)}"
            )
    return action


def illegal_choice(
    indices: Sequence[int] | NDArray[np.int64], mask_row: NDArray[np.bool_], space: GrowthSpace
) -> IllegalChoice | None:
    """The first head whose choice this flat mask (width,) forbids, given the heads before it."""
    layout = space.action_layout
    if mask_row.shape != (layout.width,):
        raise ValueError(f"mask_row has shape {mask_row.shape}; expected ({layout.width},)")
    chosen = _by_head(indices)
    relevant: Sequence[str] = HEAD_NAMES[:1]
    for head, size, offset in zip(layout.names, layout.sizes, layout.offsets, strict=True):
        if head not in relevant:
            continue
        parent = layout.parents.get(head)
        start = offset + (0 if parent is None else chosen[parent] * size)
        legal = mask_row[start : start + size]
        value, words = chosen[head], [_word(choice) for choice in _choices(head, space, space.slot_config)]
        if not 0 <= value < size or not legal[value]:
            said = words[value] if 0 <= value < size else str(value)
            allowed = (word for word, allows in zip(words, legal, strict=True) if allows)
            return IllegalChoice(head, said, tuple(allowed))
        if head == HEAD_NAMES[0]:
            relevant = CAUSAL_TABLE[LifecycleOp(value)]
    return None


def _choices(head: str, space: GrowthSpace, slots: SlotConfig) -> tuple[object, ...]:
    if head == "op":
        return operations(retire=space.retire)
    if head == "slot":
        return slots.slot_ids
    return space.blueprints if head == "blueprint" else CHOICES[head]


def _by_head(indices: Sequence[int] | NDArray[np.int64]) -> dict[str, int]:
    if len(indices) != len(HEAD_NAMES):
        raise ValueError(f"indices has {len(indices)} entries; expected one for each of {HEAD_NAMES}")
    return {head: int(index) for head, index in zip(HEAD_NAMES, indices, strict=True)}


def _value(head: str, index: int, choices: Sequence[object]) -> object:
    if not 0 <= index < len(choices):
        raise ValueError(
            f"{head} is choice {index}; expected 0..{len(choices) - 1} ({', '.join(map(_word, choices))})"
        )
    return choices[index]


def _word(choice: object) -> str:
    return choice.name if isinstance(choice, LifecycleOp) else str(choice)
