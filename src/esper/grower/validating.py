"""Validation over batches: any loss and any metric of a user's, and what is measured where none is given."""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from esper.grower.losses import Batch, Loss, Rows, loss_rows, refuse_unclear, shown, usual_rows
from esper.grower.sharing import Sharing, agree
from esper.kasmina import GrowingModel
from esper.kasmina.coalitions import switched_slots
from esper.kasmina.feature_cache import SharedPrefix
from esper.kasmina.model import forked_randomness
from esper.kasmina.replicas import Replicas, sharded_modules


@runtime_checkable
class RunningMetric(Protocol):
    """A metric that is fed batch by batch, as those of torchmetrics are."""

    def reset(self) -> object:
        """Begin anew."""

    def update(self, outputs: Tensor, targets: Tensor, /) -> object:
        """Take in a batch."""

    def compute(self) -> object:
        """Return one number for all batches since the last reset."""


Metric = Callable[..., object] | RunningMetric
"""(outputs, targets) of the whole of validation -> one number; or a metric that is fed batch by batch."""


@dataclass(frozen=True, slots=True)
class LoaderValidation:
    """Batches (inputs, targets) or dicts as a function of the model.

    loss    with it `validation_loss` is its mean, and accuracy is not measured
    metric  with it `validation_metric` is measured; the loss then only if it is given too

    With neither: cross-entropy and accuracy for classes, squared error for float targets, the model's own loss for
    dicts.
    """

    loader: Iterable[object]
    loss: Loss | None = None
    metric: Metric | None = None
    sharing: WeakKeyDictionary[nn.Module, Sharing] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )
    """Model -> whether its coalitions can be measured at once."""

    def __reduce__(self) -> tuple[object, ...]:
        """What is known of the models of this process stays in it."""
        return LoaderValidation, (self.loader, self.loss, self.metric)

    def __call__(self, model: nn.Module) -> dict[str, float | None]:
        """The metrics over all batches."""
        return self.tallies(model)[0].result()

    def tallies(self, *models: nn.Module) -> "list[Tally]":
        """What all batches were measured as, for each model; all of them see a batch before the next one."""
        devices = [next(model.parameters()).device for model in models]
        tallies = [Tally(self.loss, self.metric) for _ in models]
        for tally in tallies[1:]:
            tally.metric = copy.deepcopy(self.metric)  # one that is fed batch by batch adds up
        for raw in self.loader:
            empty = without_samples(raw)
            for model, device, tally in zip(models, devices, tallies, strict=True):
                if not empty:
                    tally.add(passed(model, raw, device))
                elif sharded_modules(model):
                    passed(model, raw, device)  # the other processes wait for its shards
        for model, tally in zip(models, tallies, strict=True):
            if isinstance(model, GrowingModel):
                tally.share(model.replicas)
        if not tallies[0].batches:
            raise ValueError(_NOTHING)
        return tallies

    def under(
        self, model: GrowingModel, settings: Sequence[Mapping[str, Tensor | float]]
    ) -> "list[Tally] | None":
        """What all batches were measured as under each of several alphas, as `override_alpha` takes them.

        What they have in common is computed once a batch. Of the loss alone, in one process, without gradients. None
        where a check showed, now or before, that forwards in full give something else: then each needs a pass of its
        own. What is wrong in a few batches only, or adds nothing to the loss yet, may be seen validations later.
        """
        sharing = self.sharing.setdefault(model, Sharing())
        if sharing.refuted:
            return None
        try:
            tallies = self._side_by_side(model, settings, sharing)
        except (
            Exception
        ):  # for want of what a spared part leaves behind; else a pass in full says what is wrong
            tallies = None
        sharing.refuted = tallies is None
        return tallies

    def measures_apart(self, model: nn.Module) -> bool:
        """Whether a check has failed, and what is measured of the model has a pass of its own each time."""
        return model in self.sharing and self.sharing[model].refuted

    def _side_by_side(
        self, model: GrowingModel, settings: Sequence[Mapping[str, Tensor | float]], sharing: Sharing
    ) -> "list[Tally] | None":
        """As `under`; None where a check failed."""
        device, tallies = next(model.parameters()).device, [Tally(self.loss, None) for _ in settings]
        switched = [switched_slots(model, settings[0], alphas) for alphas in settings]
        sharing.begin(model, switched)
        with SharedPrefix(model, sharing.restless).installed() as prefix:
            for raw in self.loader:
                if without_samples(raw):
                    continue
                # Each begins with the random numbers of the first.
                with forked_randomness(), prefix.noting(), model.override_alpha(settings[0]):
                    batch = passed(model, raw, device)
                    tallies[0].add(batch)
                due = sharing.due(batch.samples, len(settings))
                checks = {place: Tally(self.loss, None) for place in due}
                # Checks come last: one between might leave what the next coalition would have missed.
                forwards = [
                    *((place, tallies[place], True) for place in range(1, len(settings))),
                    *((place, tally, False) for place, tally in checks.items()),
                ]
                for number, (place, tally, shared) in enumerate(forwards, start=1):
                    random = forked_randomness() if number < len(forwards) else nullcontext()
                    reusing = prefix.reusing(switched[place]) if shared else nullcontext()
                    with random, reusing, model.override_alpha(settings[place]):
                        tally.add(passed(model, raw, device))
                if not all(agree(tallies[place].losses[-1], checks[place].losses[-1]) for place in due):
                    return None
        if not tallies[0].batches:
            raise ValueError(_NOTHING)
        return tallies

    def count(self) -> int:
        """Samples of all batches."""
        return sum(_samples(raw[1] if isinstance(raw, tuple | list) else raw) for raw in self.loader)

    def check(self, model: nn.Module) -> None:
        """Measure one batch, with a metric all of them, to find what does not fit before anything is trained."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
            if self.metric is not None:
                self(model)
                return
            for raw in self.loader:
                if without_samples(raw):
                    continue
                batch = self._tried(model, raw)
                if self.loss is None:
                    refuse_unclear(batch)
                tally = Tally(self.loss, None)
                tally.add(batch)
                tally.result()
                return
        raise ValueError(_NOTHING)

    @staticmethod
    def _tried(model: nn.Module, raw: object) -> "Batch":
        """What the model answers; what it cannot take is named with its shapes."""
        try:
            return passed(model, raw, next(model.parameters()).device)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, TypeError, AttributeError) as error:
            plain = [leaf for leaf in tree_leaves(raw) if not isinstance(leaf, Tensor)]
            if isinstance(error, UnfitBatch) or (isinstance(error, TypeError | AttributeError) and not plain):
                raise  # of tensors it is the model's own
            told = str(error).partition("\n")[0]
            advice = (
                "" if not plain else ". Expected tensors: torch.as_tensor() makes them of arrays and lists"
            )
            raise TypeError(
                f"validate gives {shown(raw)}, which the model does not take: {told}{advice}"
            ) from error


class UnfitBatch(TypeError):
    """A batch that says itself what is wrong with it."""


_NOTHING = "validate has no batches with samples in them: there is nothing to measure with"


@dataclass(slots=True)
class Tally:
    """Adds up what batches measure. Nothing waits for a device before `result`."""

    loss: Loss | None
    metric: Metric | None
    losses: list[Rows] = field(default_factory=list)
    hits: list[Rows] = field(default_factory=list)
    gathered: list[tuple[object, object]] = field(default_factory=list)
    """(outputs, targets) of each batch, on the CPU, for a metric of the whole."""
    batches: int = 0
    samples: int = 0

    def add(self, batch: Batch) -> None:
        """Take in a batch."""
        if self.loss is not None:
            self.losses.append(loss_rows(self.loss, batch))
        elif self.metric is None:
            losses, hits = usual_rows(batch)
            self.losses.append(losses)
            self.hits += [] if hits is None else [hits]
        if isinstance(self.metric, RunningMetric):
            if not self.batches:
                self.metric.reset()
            _asked(self.metric.update, batch.outputs, batch.targets)
        elif self.metric is not None:
            pair = (batch.outputs, batch.targets)
            self.gathered.append(tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), pair))
        self.batches += 1
        self.samples += batch.samples

    def share(self, replicas: Replicas) -> None:
        """Add what the other processes measured; a metric that is fed batch by batch shares by itself, if it can."""
        if replicas.size == 1:
            return
        told = replicas.gather((_sum(self.losses), _sum(self.hits), self.gathered, self.batches))
        self.losses = [rows for losses, _, _, _ in told for rows in losses]
        self.hits = [rows for _, hits, _, _ in told for rows in hits]
        self.gathered = [pair for _, _, gathered, _ in told for pair in gathered]
        self.batches = sum(batches for _, _, _, batches in told)

    def result(self) -> dict[str, float | None]:
        """The metrics of all batches so far."""
        return {
            "validation_loss": mean(self.losses),
            "validation_accuracy": mean(self.hits),
            "validation_metric": None if self.metric is None else self._metric(self.metric),
        }

    def _metric(self, metric: Metric) -> float:
        if isinstance(metric, RunningMetric):
            found = _asked(metric.compute)
        else:
            found = _asked(metric, *joined(self.gathered))
        try:
            return float(found.detach() if isinstance(found, Tensor) else found)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"metric returned {found!r}; expected one number") from None


def _sum(rows: list[Rows]) -> list[Rows]:
    """All rows as one, on the CPU; none stay none."""
    if not rows:
        return []
    totals, counts = (
        torch.stack([getattr(row, name).sum() for row in rows]).sum().double().cpu().view(1)
        for name in ("totals", "counts")
    )
    return [Rows(totals, counts)]


def mean(rows: list[Rows]) -> float | None:
    """Of all numbers in the rows; None without any."""
    if not rows:
        return None
    total = torch.stack([row.totals.sum() for row in rows]).sum()
    count = torch.stack([row.counts.sum() for row in rows]).sum()
    return float(total / count) if count else None


def _asked(metric: Callable[..., object], *arguments: object) -> object:
    """What a user's metric answers; a failure says what it was given."""
    try:
        return metric(*arguments)
    except Exception as error:
        given = f" for {' and '.join(map(shown, arguments))}" if arguments else ""
        raise TypeError(
            f"metric failed{given}: {type(error).__name__}: {error}. Expected a function of all (outputs, "
            "targets), or an object with reset(), update(outputs, targets) and compute()"
        ) from error


# A batch through the model


def passed(model: nn.Module, raw: object, device: torch.device) -> Batch:
    """What the model answers for a batch."""
    batch = tree_map_only(Tensor, lambda tensor: tensor.to(device), raw)
    if isinstance(batch, Mapping):
        return Batch(model(**batch), batch, _samples(batch))
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UnfitBatch(
            f"a batch of validate is a {type(batch).__name__}; expected (inputs, targets) or a dict. One batch "
            "goes in a list, validate=[(inputs, targets)]; for anything else pass validate as a function of the model"
        )
    inputs, targets = batch
    outputs = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
    return Batch(outputs, targets, _samples(targets))


def without_samples(raw: object) -> bool:
    """Whether a batch, (inputs, targets) or a dict, is empty: all of its tensors are of zero rows."""
    if not isinstance(raw, Mapping | tuple | list):
        return False
    rows = [len(leaf) for leaf in tree_leaves(raw) if isinstance(leaf, Tensor) and leaf.ndim]
    return bool(rows) and not any(rows)


def _samples(targets: object) -> int:
    """The length of the first tensor that has one."""
    return next(
        (len(leaf) for leaf in tree_leaves(targets) if isinstance(leaf, Tensor) and leaf.ndim),
        1,
    )


def joined(pairs: list[tuple[object, object]]) -> tuple[object, object]:
    """The outputs and the targets of all batches, each as one; samples are the first axis."""
    flat, forms = zip(*map(tree_flatten, pairs), strict=True)
    leaves = list(zip(*flat, strict=False))
    strange = [leaf for column in leaves for leaf in column if not isinstance(leaf, Tensor)]
    shapes = [{tensor.shape[1:] for tensor in column} for column in leaves if not strange]
    if strange or len({str(form) for form in forms}) > 1 or any(len(shape) > 1 for shape in shapes):
        found = f"{type(strange[0]).__name__}" if strange else "batches of different shapes"
        raise TypeError(
            f"metric needs all outputs and targets as tensors, tuples or dicts of them; found {found}. Pass an "
            "object with reset(), update(outputs, targets) and compute(), or validate as a function of the model"
        )
    whole: tuple[object, object] = tree_unflatten([torch.cat(column) for column in leaves], forms[0])
    return whole
