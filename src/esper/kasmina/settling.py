"""The end of a run: remove what is not part of the product, then every seed whose removal pays now."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from esper.kasmina.coalitions import Coalition
from esper.kasmina.model import GrowingModel
from esper.leyline import Settle, Stage
from esper.leyline.utility import utility

Scores = Mapping[Coalition, float]
"""Validation accuracy, or another score, by the slots whose seeds are switched on."""


def require_settle(settle: str) -> None:
    """Raise unless it is one of the ways to settle."""
    if settle not in get_args(Settle):
        raise ValueError(f"settle is {settle!r}; expected one of {', '.join(get_args(Settle))}")


def settle(
    models: Sequence[GrowingModel],
    rent: float,
    *,
    settle: Settle,
    measure: Callable[[Sequence[int]], Sequence[Scores]],
) -> list[int]:
    """Remove TRAINING and fading seeds, then greedily any live seed without which utility is higher now.

    No adaptation is left, so leave-one-out is the right question here. What stays, stays at its alpha.

    rent     utility that it costs to add as many parameters as the host has
    settle   "worth" as above; "committed" keeps just the fossilised seeds
    measure  places in `models` -> for each, coalition -> validation score: the model as it is, and with each live
             seed off in turn

    Returns the places of the models that lost a seed.
    """
    require_settle(settle)
    if not 0.0 <= rent < math.inf:
        raise ValueError(f"rent must be a finite number >= 0, not {rent!r}")
    changed = {row for row, model in enumerate(models) if _drop_unfinished(model, settle)}
    unsettled = [row for row, model in enumerate(models) if model.live_slots]
    while unsettled:
        measured = zip(unsettled, measure(unsettled), strict=True)
        dropped = [row for row, scores in measured if _drop_worst(models[row], rent, scores)]
        changed |= set(dropped)
        unsettled = [row for row in dropped if models[row].live_slots]
    return sorted(changed)


def _drop_unfinished(model: GrowingModel, settle: Settle) -> bool:
    unfinished = [
        name
        for name in model.live_slots
        if settle == "committed" or model.slots[name].stage is Stage.TRAINING or model.slots[name].life.fading
    ]
    for name in unfinished:
        model.remove(name)
    return bool(unfinished)


def _drop_worst(model: GrowingModel, rent: float, scores: Scores) -> bool:
    """Remove the live seed without which utility rises most, if there is one."""
    everything, host = frozenset(model.live_slots), model.host_parameters
    added = model.added_parameters
    now = utility(scores[everything], rent, added, host)
    gains = {}
    for name in model.live_slots:
        left = added - model.slots[name].parameter_count
        gains[name] = utility(scores[everything - {name}], rent, left, host) - now
    worst = max(gains, key=gains.__getitem__)
    if not gains[worst] > 0.0:
        return False
    model.remove(worst)
    return True
