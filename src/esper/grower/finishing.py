"""The end of a user's loop: which seeds are kept."""

import math
from collections.abc import Sequence

from esper.grower.measuring import Scale, ValidateCall, coalition_metrics
from esper.kasmina import GrowingModel, settling
from esper.kasmina.coalitions import Coalition
from esper.leyline import Settle, Stage


def settle_loop(
    model: GrowingModel, validate: ValidateCall | None, scale: Scale, rent: float, settle: Settle
) -> None:
    """Remove unfinished seeds, then what does not pay; without `validate`, what is HOLDING stays."""
    if validate is None and settle == "worth":
        for name in model.live_slots:
            if model.slots[name].stage is not Stage.HOLDING:
                model.remove(name)
        return

    def scores(_: Sequence[int]) -> list[dict[Coalition, float]]:
        assert validate is not None  # with "committed" nothing is left to be measured
        plan, measured = coalition_metrics(model, validate, mode=scale.mode)
        scale.observe(measured[0])
        scale.close()
        # A coalition that cannot be scored is worth nothing: a seed it lacks is needed.
        found = [scale.score(metrics) for metrics in measured]
        known = [-math.inf if score is None else score for score in found]
        return [dict(zip(plan.coalitions, known, strict=True))]

    settling.settle([model], rent, settle=settle, measure=scores)
