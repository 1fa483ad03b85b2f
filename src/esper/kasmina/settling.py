"""The end of a run: what is not part of the product goes, and so does every seed whose removal pays now."""

import math
from collections.abc import Callable, Mapping, Sequence

from esper.kasmina import GrowingModel
from esper.kasmina.slot import Slot
from esper.leyline import Settle, Stage
from esper.leyline.utility import utility

Accuracies = Mapping[int, float]
"""Coalition bitmask -> validation accuracy."""


def settle(
    models: Sequence[GrowingModel],
    rent: float,
    *,
    settle: Settle,
    measure: Callable[[Sequence[int]], Sequence[Accuracies]],
) -> list[int]:
    """Remove TRAINING and fading seeds, then greedily any live seed without which utility is higher now.

    No adaptation is left, so leave-one-out is the right question here. What stays, stays at its alpha.

    rent     utility that it costs to add as many parameters as the host has
    settle   "worth" as above; "committed" keeps just the fossilised seeds
    measure  places in `models` -> for each, coalition -> validation score: the model as it is, and with each live
             seed off in turn

    Returns the places of the models that lost a seed.
    """
    if not 0.0 <= rent < math.inf:
        raise ValueError(f"rent must be a finite number >= 0, not {rent!r}")
    changed = {
        row for row, model in enumerate(models) if _drop_unfinished(model, everything=settle == "committed")
    }
    unsettled = [row for row, model in enumerate(models) if _live(model)]
    while unsettled:
        measured = zip(unsettled, measure(unsettled), strict=True)
        dropped = [row for row, accuracies in measured if _drop_worst(models[row], rent, accuracies)]
        changed |= set(dropped)
        unsettled = [row for row in dropped if _live(models[row])]
    return sorted(changed)


def _slots(model: GrowingModel) -> tuple[Slot, ...]:
    return tuple(model.slots.values())


def _live(model: GrowingModel) -> list[int]:
    return [index for index, slot in enumerate(_slots(model)) if slot.stage.is_live]


def _drop_unfinished(model: GrowingModel, *, everything: bool) -> bool:
    unfinished = [
        slot
        for slot in _slots(model)
        if slot.stage.is_live and (everything or slot.stage is Stage.TRAINING or slot.life.fading)
    ]
    for slot in unfinished:
        model.remove(slot.name)
    return bool(unfinished)


def _drop_worst(model: GrowingModel, rent: float, accuracies: Accuracies) -> bool:
    """Remove the live seed without which utility rises most, if there is one."""
    live, slots = _live(model), _slots(model)
    everything = sum(1 << index for index in live)
    added, bare = model.added_parameters, model.host_parameters
    gains = {
        index: utility(
            accuracies[everything ^ (1 << index)], rent, added - slots[index].parameter_count, bare
        )
        - utility(accuracies[everything], rent, added, bare)
        for index in live
    }
    worst = max(gains, key=gains.__getitem__)
    if not gains[worst] > 0.0:
        return False
    model.remove(slots[worst].name)
    return True
