"""What a training loop measures: metrics as they enter, and scores under coalitions of seeds."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, SupportsFloat

import torch
from torch import Tensor, nn

from esper.grower.losses import Loss
from esper.grower.validating import LoaderValidation, Metric, RunningMetric
from esper.kasmina import GrowingModel
from esper.kasmina.coalitions import (
    Coalition,
    CoalitionPlan,
    SeedWorth,
    coalition_alphas,
    plan_coalitions,
)
from esper.kasmina.model import untouched
from esper.leyline import EpochReport

ACCURACIES = ("train_accuracy", "validation_accuracy")
METRIC = "validation_metric"
VALIDATED = ("validation_loss", "validation_accuracy", METRIC)
"""What `validate` may return."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """Unknown is None. A loss may be NaN or Inf: that is for the governor to judge."""

    train_loss: float | None = None
    train_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    validation_metric: float | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        """Losses that are no numbers."""
        values = {"train_loss": self.train_loss, "validation_loss": self.validation_loss}
        return tuple(name for name, value in values.items() if value is not None and not math.isfinite(value))

    @property
    def only_validation_is_nan(self) -> bool:
        """Whether the training loss does not say that the model broke, and validation's is NaN."""
        return self.broken == ("validation_loss",) and math.isnan(self.validation_loss or 0.0)

    def without_validation(self) -> "EpochMetrics":
        """What is known of training; none of a validation that went wrong is relied on."""
        return EpochMetrics(train_loss=self.train_loss, train_accuracy=self.train_accuracy)

    def report(self, epoch: int, gradient_norm: float | None, score: float | None) -> EpochReport:
        """The epoch as deciders read it."""
        return EpochReport(
            epoch=epoch,
            train_loss=self.train_loss,
            train_accuracy=self.train_accuracy,
            validation_loss=math.nan if self.validation_loss is None else self.validation_loss,
            validation_accuracy=self.validation_accuracy,
            gradient_norm=gradient_norm,
            rolled_back=None,
            score=math.nan if score is None else score,
        )


def read_metrics(**given: SupportsFloat | None) -> tuple[EpochMetrics, tuple[str, ...]]:
    """The metrics, and the names of those that were NaN and count as unknown: all but losses."""
    values: dict[str, float | None] = {name: _number(name, value) for name, value in given.items()}
    lost: list[str] = []
    for name in (*ACCURACIES, METRIC):
        value = values.get(name)
        if value is None:
            continue
        if math.isnan(value) or (name == METRIC and math.isinf(value)):
            values[name] = None
            lost.append(name)
        elif name == METRIC:
            continue
        elif not -_ROUNDING <= value <= 1.0 + _ROUNDING:
            percent = f": is it in percent? Pass {value / 100:g}" if 1.0 < value <= 100.0 else ""
            raise ValueError(f"{name} is {value:g}; expected a share from 0 to 1{percent}")
        else:
            values[name] = min(max(value, 0.0), 1.0)
    return EpochMetrics(**values), tuple(lost)


Read = tuple[EpochMetrics, tuple[str, ...]]
"""Metrics, and the names of those that were NaN and count as unknown."""


def mean_metrics(found: Sequence[Read]) -> Read:
    """The means over several processes, of those that know a metric; what is NaN in one counts as NaN."""
    metrics = {name: _mean([getattr(theirs, name) for theirs, _ in found]) for name in asdict(found[0][0])}
    return EpochMetrics(**metrics), tuple(dict.fromkeys(name for _, lost in found for name in lost))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(set(known)) <= 1:  # as it is: a sum may be rounded
        return known[0] if known else None
    return sum(known) / len(known)


def _number(name: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        value = value.detach()
    try:
        if isinstance(value, str | bytes):
            raise TypeError  # float() would read it
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many numbers is a RuntimeError
        raise TypeError(
            f"{name} is {_as_given(value)}; expected a float, or a tensor of one number"
        ) from None


def _as_given(value: object) -> str:
    """A wrong value, with its type; of a tensor its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


ValidateCall = Callable[[nn.Module], Mapping[str, SupportsFloat | None]]
Validate = ValidateCall | Iterable[object]
"""A function of the model that returns some of VALIDATED; or batches, (inputs, targets) or dicts."""
Mode = Literal["min", "max"]
"""Whether less or more of the metric is better."""
FIRST_EPOCHS = 3
"""Of a run, in which the span of a metric is seen."""


@dataclass(slots=True)
class Scale:
    """One number for how well validation goes, in units in which a margin means the same whatever is measured.

    Accuracy is its own score. A loss, or a metric of which less is better, is minus itself over the first one seen.
    Where zero is not the end of the way (more is better, or the first value is not positive) the unit is the span of
    zero and the first FIRST_EPOCHS values, and the score is unknown until these have been seen.

    Whichever is known first is the scale for good: an epoch that says only the other has no score. With a `mode` it
    is the metric. The family of the reward that a controller learned by does not matter.
    """

    mode: Mode | None = None
    by: Literal["accuracy", "loss", "metric"] | None = None
    seen: list[float] = field(default_factory=list)
    """The first values of what it is by, an epoch each."""
    unit: float | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and not 0.0 < self.unit < math.inf:
            raise ValueError(f"unit is {self.unit!r}; expected a finite number > 0")

    @property
    def wanted(self) -> str:
        """What a step must know of validation."""
        return "validation_loss or validation_accuracy" if self.mode is None else METRIC

    def require(self, given: EpochMetrics) -> None:
        """Raise for a metric of which it is not known whether more is better."""
        if given.validation_metric is not None and self.mode is None:
            raise ValueError(
                f"{METRIC} is {given.validation_metric:g}, and whether more of it is better is unknown: make the "
                "Grower with mode='max' or mode='min'"
            )

    def needs(self, metrics: EpochMetrics) -> bool:
        """Whether nothing of these could be scored."""
        known = (metrics.validation_accuracy, metrics.validation_loss)
        return metrics.validation_metric is None if self.mode else all(value is None for value in known)

    def observe(self, metrics: EpochMetrics) -> None:
        """Take in an epoch: the first ones set the unit."""
        if self.by is None:
            self._choose(metrics)
        value = self._value(metrics)
        if value is None or self.unit is not None:
            return
        self.seen.append(value)
        if self.by == "accuracy":
            self.unit = 1.0
        elif self.mode != "max" and self.seen[0] > 0:
            self.unit = self.seen[0]
        elif len(self.seen) >= FIRST_EPOCHS:
            self.close()

    def close(self) -> None:
        """Set the unit by what has been seen, if that says anything."""
        if self.unit is None and self.seen:
            self.unit = max(0.0, *self.seen) - min(0.0, *self.seen) or None

    def score(self, metrics: EpochMetrics) -> float | None:
        """The score of a validation, or None where it is unknown."""
        value = self.goodness(metrics)
        return None if value is None or self.unit is None else value / self.unit

    def goodness(self, metrics: EpochMetrics) -> float | None:
        """What it is by, turned so that more is better: an epoch's rank, known before the unit is."""
        value = self._value(metrics)
        return value if value is None or self.by == "accuracy" or self.mode == "max" else -value

    def _choose(self, metrics: EpochMetrics) -> None:
        if self.mode is not None:
            self.by = "metric"
        elif metrics.validation_accuracy is not None:
            self.by = "accuracy"
        elif metrics.validation_loss is not None and math.isfinite(metrics.validation_loss):
            self.by = "loss"

    def _value(self, metrics: EpochMetrics) -> float | None:
        """What it is by, of these metrics, if it is a number."""
        found = {
            "accuracy": metrics.validation_accuracy,
            "loss": metrics.validation_loss,
            "metric": metrics.validation_metric,
            None: None,
        }[self.by]
        return found if found is not None and math.isfinite(found) else None

    def __str__(self) -> str:
        if self.by is None:
            return "nothing was measured"
        if self.by == "accuracy":
            return "validation accuracy"
        if self.unit is None:
            return f"validation {self.by}, in a unit that is known after {FIRST_EPOCHS} epochs"
        if self.mode != "max" and self.seen == [self.unit]:
            return f"minus validation {self.by}, in units of the first one, {self.unit:.4g}"
        sign = "" if self.mode == "max" else "minus "
        return f"{sign}validation {self.by}, in units of its span in the first epochs, {self.unit:.4g}"


def as_call(
    validate: Validate | None,
    *,
    loss: Loss | None = None,
    metric: Metric | None = None,
    mode: Mode | None = None,
) -> ValidateCall | None:
    """The one form that measuring uses; raises for options that do not go together."""
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode is {mode!r}; expected 'min' or 'max': is less or more of the metric better?")
    if metric is not None and mode is None:
        raise ValueError(
            "metric is given and mode is not: pass mode='max' if more of it is better, else 'min'"
        )
    given = [name for name, value in (("loss", loss), ("metric", metric)) if value is not None]
    for name, value in (("loss", loss), ("metric", metric)):
        if value is not None and not callable(value) and not isinstance(value, RunningMetric):
            raise TypeError(f"{name} is a {type(value).__name__}; expected a function of (outputs, targets)")
    if validate is None or callable(validate):
        if given:
            missing = "validate is missing" if validate is None else "validate is a function"
            raise ValueError(
                f"{' and '.join(given)} would be measured over the batches of a loader, and {missing}: pass "
                "validate=loader, or measure yourself, and pass validation_loss or validation_metric to step()"
            )
        return validate
    if not hasattr(validate, "__iter__"):
        raise TypeError(
            f"validate is a {type(validate).__name__}; expected a function of the model, or a loader of batches"
        )
    if iter(validate) is validate:
        raise TypeError("validate is an iterator, which runs out: pass the loader or a list of batches")
    if mode is not None and metric is None:
        raise ValueError(
            f"mode is {mode!r} and there is no metric: pass metric=; of a loss, less is always better"
        )
    return LoaderValidation(validate, loss, metric)


def check(model: nn.Module, validate: ValidateCall, mode: Mode | None) -> None:
    """Validate the untrained model, to find what does not fit before anything is trained; it stays as it is.

    One batch of a loader, and all of them for a metric; a function is called once.
    """
    with measuring(model):
        if isinstance(validate, LoaderValidation):
            validate.check(model)
        else:
            read_validation(validate(model), mode)


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """The model is as it was afterwards, and so are the random generators; nothing is compiled for it."""
    compiling = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if compiling else nullcontext()
    # not inference_mode: what the model caches in a forward may meet autograd later
    with untouched(model), torch.no_grad(), eager:
        yield


def read_validation(found: object, mode: Mode | None) -> Read:
    """What `validate` returned, and the names of what was NaN."""
    expected = (
        "validation_loss, validation_accuracy or both" if mode is None else f"{METRIC} (mode is {mode!r})"
    )
    wanted = set(VALIDATED[:2]) if mode is None else {METRIC}
    if not isinstance(found, Mapping) or not wanted & set(found):
        raise TypeError(f"validate returned {found!r}; expected a mapping with {expected}")
    return read_metrics(**{name: found.get(name) for name in VALIDATED})


def measure(
    model: GrowingModel,
    validate: ValidateCall,
    members: Iterable[str] | None = None,
    *,
    mode: Mode | None = None,
    weighed: Sequence[str] | None = None,
) -> tuple[EpochMetrics, tuple[str, ...]]:
    """Validation metrics of the model as it is, or with just these of the weighed seeds on, and which were NaN.

    Nothing of the model is changed.

    weighed  the slots whose seeds are switched; None is those with live seeds
    """
    alphas = {} if members is None else coalition_alphas(model, [members], 1, weighed)
    with measuring(model), model.override_alpha(alphas):
        read = read_validation(validate(model), mode)
    model.replicas.rest()
    return mean_metrics(model.replicas.gather(read))


def measure_each(
    model: GrowingModel,
    validate: ValidateCall,
    coalitions: Sequence[Coalition | None],
    *,
    mode: Mode | None,
    weighed: Sequence[str],
) -> Iterator[tuple[EpochMetrics, tuple[str, ...]]]:
    """`measure` of each coalition of the weighed seeds, or of the model as it is for None, in turn.

    Over the batches of a loader, without a metric of the whole, all are measured at once: what they have in common is
    computed once. In several processes each has a pass of its own, and so it has once a check showed that the parts
    of this host leave things to each other which are not seen.
    """
    together = isinstance(validate, LoaderValidation) and validate.metric is None and len(coalitions) > 1
    if together and model.replicas.size == 1:
        assert isinstance(validate, LoaderValidation)
        alphas = [
            {} if members is None else coalition_alphas(model, [members], 1, weighed)
            for members in coalitions
        ]
        with measuring(model):
            tallies = validate.under(model, alphas)
            found = [read_validation(tally.result(), mode) for tally in tallies or ()]
        if tallies is not None:
            yield from (mean_metrics([read]) for read in found)
            return
    for members in coalitions:
        yield measure(model, validate, members, mode=mode, weighed=weighed)


def coalition_metrics(model: GrowingModel, validate: ValidateCall, *, mode: Mode | None) -> "MeasuredSeeds":
    """The model's coalitions and the metrics of each."""
    plan = plan_coalitions(model, bare=False)
    found = measure_each(model, validate, plan.coalitions, mode=mode, weighed=plan.weighed)
    return plan, [metrics for metrics, _ in found]


@dataclass(frozen=True, slots=True)
class Validated:
    """An epoch's validation."""

    metrics: EpochMetrics
    """As the loop reports them, or as they were measured."""
    lost: tuple[str, ...] = ()
    """Which of those that were measured were NaN."""
    base: EpochMetrics | None = None
    """The metrics once more, if `validate` measured them."""
    seeds: "MeasuredSeeds | None" = None
    """With and without each live seed and, if weighed, each fossil; None without any, or in a broken epoch."""


class Gauge:
    """How validation goes in a loop: as the loop reports it, and as it is measured with and without each seed."""

    def __init__(self, validate: ValidateCall | None, mode: Mode | None) -> None:
        self.validate, self.mode = validate, mode
        # What the loop says need not be what `validate` measures.
        self.scale, self.seed_scale = Scale(mode), Scale(mode)

    def begun(self, model: GrowingModel) -> EpochReport:
        """The model before its first epoch, as far as `validate` can say; its score is not known yet."""
        metrics, samples = EpochMetrics(), None
        if self.validate is not None:
            metrics, _ = measure(model, self.validate, mode=self.mode)
        if isinstance(self.validate, LoaderValidation):
            samples = sum(model.replicas.gather(self.validate.count()))
        return replace(metrics.report(0, None, None), validation_samples=samples)

    def validated(self, model: GrowingModel, given: EpochMetrics, *, fossils: bool = False) -> Validated:
        """The epoch's validation, measured here if the loop gave nothing that can be scored.

        fossils  whether these are weighed too
        """
        if self.validate is None:
            return Validated(given)
        plan = plan_coalitions(model, bare=False, fossils=fossils)
        unscored = self.scale.needs(given)
        first = None if unscored else plan.coalitions[0]
        passes = measure_each(
            model, self.validate, [first, *plan.coalitions[1:]], mode=self.mode, weighed=plan.weighed
        )
        validated = Validated(given)
        if unscored:
            found, lost = next(passes)
            known = {name: value for name, value in asdict(found).items() if value is not None}
            metrics = replace(given, **known)
            validated = Validated(metrics, lost, metrics)
        if validated.metrics.broken or not plan.weighed:
            return validated
        # Numbers of the loop's own need not be comparable with ours.
        as_it_is = [] if validated.base is None else [validated.base]
        return replace(validated, seeds=(plan, [*as_it_is, *(each for each, _ in passes)]))

    def worths(
        self, metrics: EpochMetrics, base: EpochMetrics | None, measured: "MeasuredSeeds | None"
    ) -> dict[str, SeedWorth]:
        """Take in an epoch, and return what each seed that was measured is worth in it."""
        self.scale.observe(metrics)
        if measured is not None:
            base = measured[1][0]
        if base is not None:
            self.seed_scale.observe(base)
        if measured is None:
            return {}
        plan, found = measured
        return plan.worths([self.seed_scale.score(each) for each in found])


MeasuredSeeds = tuple[CoalitionPlan, list[EpochMetrics]]
"""Which coalitions were measured, and what was."""
