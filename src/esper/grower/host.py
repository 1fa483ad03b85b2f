"""The model in a user's loop: wrapped, as deciders read hosts, and what torch.compile has made of it.

Also its averaged copies (EMA, SWA), which grow with it.
"""

import copy
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from weakref import ReferenceType, ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from esper.grower import checks
from esper.kasmina import GrowingModel, Slot, WrapError, wrap
from esper.kasmina.coalitions import SeedWorth
from esper.kasmina.gradients import SeedGradients
from esper.kasmina.model import GrowingHost
from esper.kasmina.probing import ExampleInput
from esper.kasmina.replicas import local, recognise
from esper.kasmina.seed import Seed
from esper.kasmina.wrapping import WrapOptions, copied_slots, slot_behind
from esper.leyline import EpochReport

TYPICAL_SAMPLES = 1000
"""Stands for a training set of unknown size: the middle of the observation's scale."""


def growing(
    model: nn.Module,
    slots: Sequence[str] | None,
    example_input: ExampleInput | None,
    wrapping: WrapOptions,
    accumulate: int,
    undo: ExitStack,
) -> GrowingModel:
    """The model that grows; one that is wrapped here is unwrapped by `undo`."""
    if isinstance(model, GrowingModel):
        checks.refuse_wrapping({"slots": slots, "example_input": example_input, **wrapping})
        checks.refuse_accumulation(accumulate)
        return model
    slots, example_input = checks.require_place(slots, example_input)
    wrapping["isolation_penalty"] = wrapping.get("isolation_penalty", 1.0) / accumulate
    came_with_slots = bool(copied_slots(recognise(model)[0]))
    wrapped = wrap(model, slots, example_input, **wrapping)
    undo.callback(wrapped.release if came_with_slots else wrapped.unwrap)
    return wrapped


class LoopHost(GrowingHost):
    """A growing model and the optimiser that trains it.

    training_samples  how many there are; None is unknown
    """

    def __init__(
        self, model: GrowingModel, optimizer: Optimizer, training_samples: int | None = None
    ) -> None:
        super().__init__(model)
        self.training_samples = TYPICAL_SAMPLES if training_samples is None else training_samples
        self._optimizer = optimizer
        self.take(self.report)

    def take(self, report: EpochReport) -> None:
        """Take in an epoch, with the learning rate of the optimiser's first group now and the highest so far.

        The samples of validation, where they were counted, are those of the epoch before.
        """
        rate = float(self._optimizer.param_groups[0]["lr"])
        highest = max(rate, self.report.highest_learning_rate or 0.0)
        samples = report.validation_samples or self.report.validation_samples
        self.report = replace(
            report, learning_rate=rate, highest_learning_rate=highest, validation_samples=samples
        )

    def report_seeds(self, gradients: Mapping[str, SeedGradients], worths: Mapping[str, SeedWorth]) -> None:
        """Take in what was measured of each live seed, and of each fossil that was weighed, in the epoch; by slot."""
        weighed = [name for name in self.model.fossils if name in worths]
        for name in (*self.model.live_slots, *weighed):
            seen, worth = gradients.get(name), worths.get(name)
            self.model.report(
                name,
                contribution=None if worth is None else worth.contribution,
                probe=None if worth is None else worth.probe,
                gradients_finite=None if seen is None else seen.finite,
                gradient_norm=seen.norm if seen is not None and seen.finite else None,
                gradient_health=None if seen is None else seen.health,
            )


def topology(model: GrowingModel) -> list[object]:
    """What a compiled graph depends on; alpha does not belong to it."""
    return [(slot.life.births, slot.stage, slot.life.fading) for slot in model.slots.values()]


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    if "torch._dynamo" not in sys.modules:  # a second's import, and without it nothing has been compiled
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


_Averaged = dict[str, tuple[ReferenceType[Seed], Seed]]
"""slot -> the last seed of the model there, while anything could bring it back, and its average."""


class Averages:
    """Brings a growing model's seeds and stages to the averages that follow it; the weights are theirs to average."""

    def __init__(self, model: GrowingModel) -> None:
        self._model = model
        self._followers: list[tuple[AveragedModel, dict[str, Slot], _Averaged]] = []

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
        self._followers.append((average, slots, {}))
        self.update()

    def update(self) -> None:
        """Give each average the seeds and stages that the model has now; a new seed begins as it is born."""
        for _, slots, averaged in self._followers:
            for name, slot in self._model.slots.items():
                _mirror(slot, slots[name], averaged)

    @torch.no_grad()  # not inference_mode: who holds an average may train it
    def begin_anew_where_broken(self) -> int:
        """Give the model's weights to averages that took in NaN or Inf, which they never forget; returns how many.

        Their count of updates begins anew, so that of a plain average these weights do not count as all the others.
        """
        self.update()
        model, broken = self._model, [each for each, *_ in self._followers if not self._is_finite(each)]
        for average in broken:
            averaged = (*average.module.parameters(), *average.module.buffers())
            for kept, now in zip(averaged, (*model.parameters(), *model.buffers()), strict=True):
                kept.copy_(now)
            average.n_averaged.zero_()
        return len(broken)

    def _is_finite(self, average: AveragedModel) -> bool:
        """Whether no process has a part of it that is not (masks hold Inf on purpose)."""
        parameters = all(bool(local(p).isfinite().all()) for p in average.module.parameters())
        buffers = not any(bool(local(buffer).isnan().any()) for buffer in average.module.buffers())
        return all(self._model.replicas.gather(parameters and buffers))

    def warnings_at_birth(self) -> Iterator[tuple[str, str]]:
        """What to say of averages when a seed was born, before `update`: a name for each warning, and the warning."""
        stray = self._stray()
        if stray is not None:
            yield "average", stray
        counts = (int(average.n_averaged) for average, *_ in self._followers if _weighs_alike(average))
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
        followed = {id(average) for average, *_ in self._followers}
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


def _mirror(slot: Slot, theirs: Slot, averaged: _Averaged) -> None:
    """Make the slot of an average what the model's is.

    A seed that is there already keeps its averaged weights, and so does one that comes back: what was decided and
    never trained with is taken back.
    """
    seed, own = slot.seed, theirs.seed
    if seed is None:
        theirs.clear()
    elif (
        own is None
        or theirs.life.births != slot.life.births
        or (own.blueprint_name, own.composition) != (seed.blueprint_name, seed.composition)
    ):
        last, kept = averaged.get(slot.name, (None, None))
        if kept is None or last is None or last() is not seed:
            kept = copy.deepcopy(seed).requires_grad_(False).to(theirs.placement()[0])
        theirs.plant(kept)
    if seed is not None and theirs.seed is not None:
        averaged[slot.name] = ref(seed), theirs.seed
    elif slot.name in averaged and averaged[slot.name][0]() is None:
        del averaged[slot.name]
    theirs.restore(slot.record(), slot.life.rules)
    theirs.sync_seed()
