"""The end of a run: what is not part of the product goes, and so does every seed whose removal pays now."""

import math
from collections.abc import Callable, Mapping, Sequence

from esper.leyline import Stage
from esper.tolaria.host import TrainedHost

Accuracies = Mapping[int, float]
"""Coalition bitmask -> validation accuracy."""


def utility(accuracy: float, added_parameters: int, host_parameters: int, rent: float) -> float:
    """accuracy - rent x added parameters / host parameters"""
    return accuracy - rent * added_parameters / host_parameters


def settle(
    hosts: Sequence[TrainedHost],
    rent: float,
    *,
    committed_only: bool,
    measure: Callable[[Sequence[int]], Sequence[Accuracies]],
) -> list[int]:
    """Remove TRAINING and fading seeds, then greedily any live seed without which utility is higher now.

    No adaptation is left, so leave-one-out is the right question here. What stays, stays at its alpha. With
    `committed_only` just the fossilised seeds stay. `measure` validates some of the hosts, by their place in
    `hosts`, as they are and with each live seed off in turn. Returns the places of those that lost something.
    """
    if not 0.0 <= rent < math.inf:
        raise ValueError(f"rent must be a finite number >= 0, not {rent!r}")
    changed = {row for row, host in enumerate(hosts) if _drop_unfinished(host, committed_only=committed_only)}
    unsettled = [row for row, host in enumerate(hosts) if _live(host)]
    while unsettled:
        measured = zip(unsettled, measure(unsettled), strict=True)
        dropped = [row for row, accuracies in measured if _drop_worst(hosts[row], rent, accuracies)]
        changed |= set(dropped)
        unsettled = [row for row in dropped if _live(hosts[row])]
    return sorted(changed)


def _live(host: TrainedHost) -> list[int]:
    return [index for index, slot in enumerate(host.slots) if slot.stage.is_live]


def _drop_unfinished(host: TrainedHost, *, committed_only: bool) -> bool:
    unfinished = [
        slot
        for slot in host.slots
        if slot.stage.is_live and (committed_only or slot.stage is Stage.TRAINING or slot.life.fading)
    ]
    for slot in unfinished:
        host.model.remove(slot.name)
    return bool(unfinished)


def _drop_worst(host: TrainedHost, rent: float, accuracies: Accuracies) -> bool:
    """Remove the live seed without which utility rises most, if there is one."""
    live = _live(host)
    everything = sum(1 << index for index in live)
    added, bare = host.added_parameters, host.host_parameters
    gains = {
        index: utility(
            accuracies[everything ^ (1 << index)], added - host.slots[index].parameter_count, bare, rent
        )
        - utility(accuracies[everything], added, bare, rent)
        for index in live
    }
    worst = max(gains, key=gains.__getitem__)
    if not gains[worst] > 0.0:
        return False
    host.model.remove(host.slots[worst].name)
    return True
