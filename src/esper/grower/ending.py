"""The end of a run in a user's loop: what of the grown seeds is part of the product."""

import math
from collections.abc import Sequence

from esper.grower.measuring import Scale, ValidateCall, blended_slots, measure
from esper.kasmina import GrowingModel
from esper.kasmina.coalitions import live_slots
from esper.leyline import Stage
from esper.tolaria.settling import settle


def settle_model(
    model: GrowingModel, rent: float, validate: ValidateCall | None, scale: Scale, *, committed_only: bool
) -> None:
    """Remove unfinished seeds, then what does not pay; without `validate`, what is HOLDING stays."""
    if validate is None and not committed_only:
        for name in live_slots(model):
            if model.slots[name].stage is not Stage.HOLDING:
                model.remove(name)
        return

    def scores(_: Sequence[int]) -> list[dict[int, float]]:
        assert validate is not None  # with committed_only nothing is left to be measured
        return [_coalition_scores(model, validate, scale)]

    settle([model], rent, committed_only=committed_only, measure=scores)


def _coalition_scores(model: GrowingModel, validate: ValidateCall, scale: Scale) -> dict[int, float]:
    """Bitmask -> score: everything on, and each seed off in turn."""
    index = {name: position for position, name in enumerate(model.slots)}
    everything = blended_slots(model)
    scores = {}
    for members in (everything, *(everything - {name} for name in everything)):
        score = scale.score(measure(model, validate, members)[0])
        # A coalition that cannot be scored is worth nothing: a seed it lacks is needed.
        scores[sum(1 << index[name] for name in members)] = -math.inf if score is None else score
    return scores
