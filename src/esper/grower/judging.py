"""Judging an epoch of a user's loop: what was trained is measured, and found sound or gone back on.

Also the end of the loop: which seeds are kept, or the network of the epoch that validated best.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from pydantic import BaseModel, ConfigDict, Json
from torch import Tensor

from esper.grower.history import Notes
from esper.grower.host import LoopHost
from esper.grower.measuring import (
    EpochMetrics,
    Gauge,
    Scale,
    ValidateCall,
    coalition_metrics,
    mean_metrics,
    measure,
    read_metrics,
)
from esper.grower.twin import Twin
from esper.grower.validating import LoaderValidation
from esper.kasmina import GrowingModel, coalitions
from esper.kasmina.coalitions import Coalition
from esper.kasmina.describing import ModelRecord, describe
from esper.kasmina.governor import Guard, Verdict, Vitals
from esper.kasmina.gradients import GradientWatch
from esper.kasmina.persistence import reinstate
from esper.leyline import EpochReport, Settle, Stage


class SavedBest(BaseModel):
    """The best epoch as a checkpoint of a grower holds it."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)

    epoch: int
    value: float
    model: Json[ModelRecord]
    tensors: dict[str, Tensor]


class BestEpoch:
    """A copy of weights and seeds in the CPU's memory, taken whenever validation is best.

    A model that cannot be saved cannot be kept: that is found out when this is made.
    """

    def __init__(self, model: GrowingModel) -> None:
        self._model = model
        self._kept: tuple[ModelRecord, Mapping[str, Tensor]] | None = None
        self.epoch: int | None = None
        """The epoch that is kept."""
        self.value: float | None = None
        """Of its validation; more is better."""
        describe(model, optimizer=False)

    def offer(self, epoch: int, value: float | None) -> None:
        """Keep the model as it is now if `value`, the more the better, is the best so far."""
        if value is None or (self.value is not None and value <= self.value):
            return
        record, tensors = describe(self._model, optimizer=False)
        self.epoch, self.value = epoch, value
        self._kept = record, {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}

    def restore(self) -> None:
        """Bring the model back to the best epoch."""
        if self._kept is None:
            raise ValueError(
                "finish(best=True): no epoch has been validated yet, so none is the best: train, call step() once an "
                "epoch with validation, or finish() as things stand"
            )
        reinstate(self._model, *self._kept, origin=f"epoch {self.epoch}", optimizer=False)

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


@dataclass(frozen=True, slots=True)
class Judged:
    """An epoch after it was taken in."""

    metrics: EpochMetrics
    idle: bool = False
    """Whether nothing was trained: the clock of the seeds stands still."""
    verdict: Verdict | None = None
    """Why the model went back to the last good epoch; None if it did not."""


class Judge:
    """Measures each epoch, removes what broke, and goes back where the host broke."""

    def __init__(
        self,
        host: LoopHost,
        gauge: Gauge,
        guard: Guard,
        watch: GradientWatch,
        notes: Notes,
        *,
        twin: Twin | None,
        best: BestEpoch | None,
        weigh_fossils: bool,
    ) -> None:
        self._host, self._model = host, host.model
        self._gauge, self._guard, self._watch, self._notes = gauge, guard, watch, notes
        self._twin, self._best, self._weigh_fossils = twin, best, weigh_fossils

    def take_in(self, epoch: int, numbers: Mapping[str, SupportsFloat | None]) -> Judged:
        """Measure and judge an epoch. The model stays as it was trained, unless it broke.

        numbers  what the loop measured itself, by name
        """
        replicas, scale = self._model.replicas, self._gauge.scale
        given, lost = mean_metrics(replicas.gather(read_metrics(**numbers)))
        scale.require(given)
        if scale.needs(given) and self._gauge.validate is None and not lost:
            raise ValueError(
                f"step() was given nothing of validation: pass {scale.wanted}, or make the "
                "Grower with validate=, a loader or a function of the model"
            )
        if not all(replicas.gather(self._watch.steps)):
            self._notes.warn(
                "step() was called although the optimizer has not stepped since the last time: call it once an "
                "epoch, after training with the optimizer that the Grower was given. This call is ignored"
            )
            return Judged(given, idle=True)
        if self._twin is not None:
            self._twin.require_same(self._watch.steps)
        replicas.align()
        # Validation is the user's code: whatever it raises, nothing has changed yet.
        validated = self._gauge.validated(self._model, given, fossils=self._weigh_fossils)
        metrics, base = validated.metrics, validated.base
        self._warn_unmeasured(*lost, *validated.lost)
        self._warn_apart()
        if metrics.only_validation_is_nan and self._guard.host_finite():
            self._notes.warn(
                "validation_loss is NaN while the network is finite: look at validate= or at how validation_loss is "
                "computed. The epoch has no score",
                once="validation_loss",
            )
            metrics, base = metrics.without_validation(), None
        replicas.share_flags()
        self._warn_unreached(*replicas.agree(self._watch.unreached))
        norm, gradients = replicas.agree(self._watch.take())
        if self._twin is not None:
            self._twin.begin_epoch()
        verdict = self._guard.judge(
            Vitals(metrics.train_loss, norm, metrics.validation_loss, metrics.validation_accuracy)
        )
        if verdict is not None and not self._data_changed(verdict, metrics):
            self._go_back(epoch, verdict, metrics, norm)
            return Judged(metrics, verdict=verdict)
        self._host.report_seeds(gradients, self._gauge.worths(metrics, base, validated.seeds))
        if not self._remove_broken() and self._best is not None:
            self._best.offer(epoch, scale.goodness(metrics))
        self._host.take(metrics.report(epoch, norm, scale.score(metrics)))
        return Judged(metrics)

    def _data_changed(self, verdict: Verdict, metrics: EpochMetrics) -> bool:
        """Whether the last good epoch does as badly now: then the data changed, and nothing is taken back."""
        validate = self._gauge.validate
        if validate is None or verdict not in (Verdict.DIVERGED, Verdict.COLLAPSED):
            return False
        before = self._guard.look_back(lambda: measure(self._model, validate, mode=self._gauge.mode)[0])
        if before is None or not self._as_bad(before, metrics):
            return False
        self._guard.begin_anew(metrics.train_loss)
        self._notes.add(
            f"the model looked {verdict.value.replace('_', ' ')}, but the last good epoch does as badly now: "
            "the data have changed, and training goes on"
        )
        return True

    def _as_bad(self, before: EpochMetrics, now: EpochMetrics) -> bool:
        """Whether the last good epoch, as it does now, would be condemned too; by a metric alone, is no better."""
        if before.validation_loss is None and before.validation_accuracy is None:
            goodness = self._gauge.scale.goodness
            old, new = goodness(before), goodness(now)
            return old is not None and new is not None and old <= new
        # Its validation loss stands for a training loss.
        return self._guard.would_condemn(
            Vitals(before.validation_loss, None, None, before.validation_accuracy)
        )

    def _go_back(self, epoch: int, verdict: Verdict, metrics: EpochMetrics, norm: float | None) -> None:
        found = verdict.value.replace("_", " ")
        shown = [f"{name} is {getattr(metrics, name):g}" for name in metrics.broken]
        shown += (
            ["the norm of its gradients is not finite"]
            if norm is not None and not math.isfinite(norm)
            else []
        )
        advice = "a lower learning rate helps if this repeats"
        if verdict is Verdict.NOT_FINITE and shown == ["train_loss is nan"] and self._guard.host_finite():
            shown.append("its weights are finite")
            advice = "look at how train_loss is computed, or at the batches"
        if verdict is Verdict.DIVERGED and metrics.train_loss is not None:
            shown.append(f"train_loss is {metrics.train_loss:.4g}")
        if verdict is Verdict.COLLAPSED and metrics.validation_accuracy is not None:
            shown.append(f"validation_accuracy is {metrics.validation_accuracy:.4g}")
        why = f" ({', '.join(shown)})" if shown else ""
        self._guard.restore()
        self._notes.warn(
            f"the governor found the model {found}{why} and went back to the last good epoch; {advice}",
            epoch=epoch,
        )
        growing = self._model.live_slots if self._guard.repeated else ()
        for name in growing:
            self._model.remove(name)
        if growing:
            self._guard.accept()
            self._notes.warn(f"it broke again with the seeds at {', '.join(growing)}, which were removed")
        if self._guard.gives_up():
            self._notes.warn("going back has not helped; from here on the model is left as it is")
        self._host.take(EpochReport(epoch, None, None, math.nan, None, None, verdict.value))

    def _remove_broken(self) -> bool:
        """Whether a seed had to go, so that the model is not the one that was validated."""
        broken = self._guard.broken_seeds()
        for name in broken:
            self._model.remove(name)
            self._notes.warn(
                f"the seed at {name} put out NaN or Inf and was removed; the host was kept from it"
            )
        return bool(broken)

    def _warn_unmeasured(self, *lost: str) -> None:
        if self._gauge.validate is None and self._model.live_slots:
            self._notes.warn(
                "seeds grow, and without validate= it is unknown what each contributes: by_layout and other rules "
                "that go by that take them out again, or leave them undecided; what is HOLDING or FOSSILIZED at the "
                "end is kept. Pass validate= to have them judged",
                once="validate",
            )
        for name in dict.fromkeys(lost):
            self._notes.warn(f"{name} is NaN and counts as unknown: look at how it is computed", once=name)

    def _warn_apart(self) -> None:
        validate = self._gauge.validate
        if isinstance(validate, LoaderValidation) and validate.measures_apart(self._model):
            self._notes.warn(
                "what each seed contributes came out otherwise, or failed, where passes of validation shared what "
                "they have in common: a part of the model leaves something behind for another. Each has a pass of "
                "its own from here on, which takes longer; contributions of epochs before may be off",
                once="apart",
            )

    def _warn_unreached(self, *slots: str) -> None:
        for name in slots:
            self._notes.warn(
                f"the seed at {name} got no gradient in the whole epoch and does not learn. If its part of the model "
                "runs under torch.no_grad() or is detached, run it with gradients: freeze by requires_grad_(False) "
                "instead of no_grad",
                once=f"unreached {name}",
            )


# The end


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
