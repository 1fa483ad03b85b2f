"""The slots and blueprints that observation, masks, actions and policy of one batch of hosts share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from esper.leyline import BlueprintCard, HostProtocol, SlotConfig
from esper.tamiyo.layout import ActionLayout, growth_layout


@dataclass(frozen=True)
class GrowthSpace:
    """Places for the slots of any host in a batch, and the names of every blueprint offered anywhere.

    A host with fewer slots takes the first places; the others are padding.
    """

    slot_config: SlotConfig
    blueprints: tuple[str, ...]

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
        return len(self.slot_config)

    @cached_property
    def action_layout(self) -> ActionLayout:
        return growth_layout(self.slot_config, len(self.blueprints))

    @cached_property
    def blueprint_index(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.blueprints)}

    def require_fits(self, host_slots: SlotConfig, cards: Mapping[str, Sequence[BlueprintCard]]) -> None:
        """Raise unless a host with these slots and cards has a place here."""
        if len(host_slots) > self.slot_count:
            raise ValueError(
                f"the host has {len(host_slots)} slots ({', '.join(host_slots.slot_ids)}); "
                f"the space has places for {self.slot_count}"
            )
        named = self.slot_config != numbered_slots(self.slot_count)
        if named and len(host_slots) == self.slot_count:
            self.slot_config.require_same(host_slots, ours="the space", theirs="the host")
        for slot in host_slots.slot_ids:
            unknown = [card.name for card in cards[slot] if card.name not in self.blueprint_index]
            if unknown:
                raise ValueError(
                    f"slot {slot!r} offers {', '.join(unknown)}; the space knows {', '.join(self.blueprints)}"
                )


def numbered_slots(count: int) -> SlotConfig:
    """slot0, slot1, ...: places that hosts with different names share."""
    return SlotConfig(tuple(f"slot{number}" for number in range(count)))
