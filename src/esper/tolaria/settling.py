"""The end of a run: what is not part of the product goes, and so does every seed whose removal pays now."""

import math
from collections.abc import Callable, Mapping

from esper.kasmina import GrowingModel
from esper.leyline import Stage

Accuracies = Mapping[int, float]
"""Coalition bitmask -> validation accuracy."""


def utility(accuracy: float, added_parameters: int, host_parameters: int, rent: float) -> float:
    """accuracy - rent x added parameters / host parameters"""
    return accuracy - rent * added_parameters / host_parameters


def settle(
    model: GrowingModel, rent: float, *, committed_only: bool, measure: Callable[[], Accuracies]
) -> bool:
    """Remove TRAINING and fading seeds, then greedily any live seed without which utility is higher now.

    No adaptation is left, so leave-one-out is the right question here. What stays, stays at its alpha. With
    `committed_only` just the fossilised seeds stay. `measure` validates the model as it is, each live seed off in
    turn. Returns whether anything was removed.
    """
    if not 0.0 <= rent < math.inf:
        raise ValueError(f"rent must be a finite number >= 0, not {rent!r}")
    removed = False
    slots = tuple(model.slots.values())
    for slot in slots:
        unfinished = slot.stage is Stage.TRAINING or slot.life.fading
        if slot.stage.is_live and (unfinished or committed_only):
            model.remove(slot.name)
            removed = True
    while live := [index for index, slot in enumerate(slots) if slot.stage.is_live]:
        accuracies = measure()
        everything = sum(1 << index for index in live)
        added, bare = model.added_parameters, model.host_parameters
        gains = {
            index: utility(
                accuracies[everything ^ (1 << index)], added - slots[index].parameter_count, bare, rent
            )
            - utility(accuracies[everything], added, bare, rent)
            for index in live
        }
        worst = max(gains, key=gains.__getitem__)
        if not gains[worst] > 0.0:
            break
        model.remove(slots[worst].name)
        removed = True
    return removed
