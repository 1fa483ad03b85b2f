"""The end of a user's loop: which seeds are kept, or the network of the epoch that validated best."""

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Json
from torch import Tensor

from esper.grower.measuring import Scale, ValidateCall, coalition_metrics
from esper.kasmina import GrowingModel, coalitions
from esper.kasmina.coalitions import Coalition
from esper.kasmina.persistence import ModelRecord, describe, reinstate
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

    coalitions.settle([model], rent, settle=settle, measure=scores)


class SavedBest(BaseModel):
    """The best epoch as a checkpoint of a grower holds it."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    epoch: int
    value: float
    model: Json[ModelRecord]
    tensors: dict[str, Tensor]


class BestEpoch:
    """A copy of weights, seeds and optimiser state in the CPU's memory, taken whenever validation is best.

    A model that cannot be saved cannot be kept: that is found out when this is made.
    """

    def __init__(self, model: GrowingModel) -> None:
        self._model = model
        self._kept: tuple[ModelRecord, Mapping[str, Tensor]] | None = None
        self.epoch: int | None = None
        """The epoch that is kept."""
        self.value: float | None = None
        """Of its validation; more is better."""
        describe(model)

    def offer(self, epoch: int, value: float | None) -> None:
        """Keep the model as it is now if `value`, the more the better, is the best so far."""
        if value is None or (self.value is not None and value <= self.value):
            return
        record, tensors = describe(self._model)
        self.epoch, self.value = epoch, value
        self._kept = record, {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}

    def restore(self) -> None:
        """Bring the model back to the best epoch."""
        if self._kept is None:
            raise ValueError(
                "finish(best=True): no epoch has been validated yet, so none is the best: train, call step() once an "
                "epoch with validation, or finish() as things stand"
            )
        reinstate(self._model, *self._kept, origin=f"epoch {self.epoch}")

    def state_dict(self) -> dict[str, object] | None:
        """What is kept, for a checkpoint."""
        if self._kept is None:
            return None
        record, tensors = self._kept
        return {
            "epoch": self.epoch,
            "value": self.value,
            "model": record.model_dump_json(),
            "tensors": dict(tensors),
        }

    def load(self, saved: SavedBest | None) -> None:
        """Keep what a checkpoint kept."""
        self.epoch = None if saved is None else saved.epoch
        self.value = None if saved is None else saved.value
        self._kept = None if saved is None else (saved.model, saved.tensors)


def restore_best(best: BestEpoch | None, settle: Settle) -> int:
    """Go back to the best epoch, for `finish(settle=settle, best=True)`; returns which it was."""
    if best is None:
        raise ValueError("finish(best=True) needs the best epoch, which is not kept: Grower(keep_best=True)")
    if settle != "worth":
        raise ValueError(
            f"finish(settle={settle!r}, best=True): the best epoch comes as it was validated, not settled: leave "
            "one of the two out"
        )
    best.restore()
    assert best.epoch is not None  # or there was nothing to restore
    return best.epoch


def remove_unseen(model: GrowingModel) -> dict[str, str]:
    """Remove the seeds in TRAINING, which no output shows and no export holds; slot -> blueprint of each."""
    unseen = {
        name: slot.seed.blueprint_name
        for name, slot in model.slots.items()
        if slot.seed and slot.stage is Stage.TRAINING
    }
    for name in unseen:
        model.remove(name)
    return unseen
