"""Averaged copies of a model (EMA, SWA) that grow with it."""

import copy
import gc
from collections.abc import Iterator

from torch.optim.swa_utils import AveragedModel

from esper.kasmina import GrowingModel, Slot, WrapError
from esper.kasmina.wrapping import slot_behind


class Averages:
    """Brings a growing model's seeds and stages to the averages that follow it; the weights are theirs to average."""

    def __init__(self, model: GrowingModel) -> None:
        self._model = model
        self._followers: list[tuple[AveragedModel, dict[str, Slot]]] = []

    def follow(self, average: AveragedModel) -> None:
        """Let an average grow with the model from here on."""
        if not isinstance(average, AveragedModel):
            raise TypeError(
                f"average is a {type(average).__name__}; expected a torch.optim.swa_utils.AveragedModel"
            )
        copied = average.module.host if isinstance(average.module, GrowingModel) else average.module
        modules = dict(copied.named_modules(remove_duplicate=False))
        found = {name: slot_behind(modules[name]) for name in self._model.slots if name in modules}
        slots = {name: slot for name, slot in found.items() if slot is not None}
        if set(slots) != set(self._model.slots):
            raise WrapError(
                "the average has not the model's slots: make it after the Grower, AveragedModel(model), and then "
                "follow it"
            )
        self._followers.append((average, slots))
        self.update()

    def update(self) -> None:
        """Give each average the seeds and stages that the model has now; a new seed begins as it is born."""
        for _, slots in self._followers:
            for name, slot in self._model.slots.items():
                _mirror(slot, slots[name])

    def warnings_at_birth(self) -> Iterator[tuple[str, str]]:
        """What to say of averages when a seed was born, before `update`: a name for each warning, and the warning."""
        stray = self._stray()
        if stray is not None:
            yield "average", stray
        counts = (int(average.n_averaged) for average, _ in self._followers if _weighs_alike(average))
        updates = max(counts, default=0)
        if updates:
            yield (
                "plain average",
                "an average without a decay follows the model, and counts a new seed's weights at birth as "
                f"{updates} of its updates: make it with multi_avg_fn=get_ema_multi_avg_fn(0.999), or once "
                "nothing is born any more",
            )

    def _stray(self) -> str | None:
        """What to say of an average, by its class one of this model, that does not follow; None without one."""
        if not self._has_stray():
            return None
        gc.collect()  # what nobody holds any more may still be around
        if not self._has_stray():
            return None
        return (
            f"an AveragedModel of a {type(self._model.host).__name__} does not grow with it: call "
            "grower.follow(average), or its next update fails or leaves the seeds out"
        )

    def _has_stray(self) -> bool:
        followed = {id(average) for average, _ in self._followers}
        kinds = (type(self._model.host), GrowingModel)
        return any(
            issubclass(type(found), AveragedModel)
            and id(found) not in followed
            and type(found.module) in kinds
            for found in gc.get_objects()
        )


def _weighs_alike(average: AveragedModel) -> bool:
    """Whether every update has the same weight in the average: torch counts them for the model as a whole."""
    return average.avg_fn is None and average.multi_avg_fn is None


def _mirror(slot: Slot, theirs: Slot) -> None:
    """Make the slot of an average what the model's is; a seed that is there already keeps its averaged weights."""
    seed, own = slot.seed, theirs.seed
    if seed is None:
        theirs.clear()
    elif (
        own is None
        or theirs.life.births != slot.life.births
        or (own.blueprint_name, own.composition) != (seed.blueprint_name, seed.composition)
    ):
        theirs.plant(copy.deepcopy(seed).requires_grad_(False).to(theirs.placement()[0]))
    theirs.restore(slot.record(), slot.life.rules)
    theirs.sync_alpha()
