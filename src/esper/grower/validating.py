"""Validation over batches: any loss and any metric of a user's, and what is measured where none is given."""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from esper.kasmina import GrowingModel
from esper.kasmina.blueprints.registry import main_tensor
from esper.kasmina.coalitions import switched_slots
from esper.kasmina.feature_cache import SharedPrefix
from esper.kasmina.model import forked_randomness
from esper.kasmina.replicas import Replicas, sharded_modules

IGNORED = -100
"""A target that does not count, as everywhere in torch."""

Loss = Callable[..., object]
"""(outputs, targets) -> the mean over the batch, or a tensor with samples first, or (total, count)."""


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
class Batch:
    """A batch that went through the model."""

    outputs: object
    targets: object
    """Of a dict batch, the dict."""
    samples: int

    @property
    def found(self) -> str:
        """Outputs and targets in words, for an error."""
        return f"outputs are {shown(self.outputs)}, targets {shown(self.targets)}"


@dataclass(frozen=True, slots=True)
class Rows:
    """Sums and how many numbers are in each, (row,): a row for each sample, or one for a batch of which only the
    mean is known."""

    totals: Tensor
    counts: Tensor


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

    def under(self, model: GrowingModel, settings: Sequence[Mapping[str, Tensor | float]]) -> "list[Tally]":
        """What all batches were measured as under each of several alphas, as `override_alpha` takes them.

        What they have in common is computed once a batch. Of the loss alone, in one process, without gradients.
        """
        device, tallies = next(model.parameters()).device, [Tally(self.loss, None) for _ in settings]
        first, *others = settings
        switched = [switched_slots(model, first, alphas) for alphas in others]
        with SharedPrefix(model).installed() as prefix:
            for raw in self.loader:
                if without_samples(raw):
                    continue
                # Each begins with the random numbers of the first.
                with forked_randomness(), prefix.noting(), model.override_alpha(first):
                    tallies[0].add(passed(model, raw, device))
                for place, (alphas, slots) in enumerate(zip(others, switched, strict=True), start=1):
                    last = place == len(others)
                    random = nullcontext() if last else forked_randomness()
                    with random, prefix.reusing(slots), model.override_alpha(alphas):
                        tallies[place].add(passed(model, raw, device))
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
        except (RuntimeError, IndexError) as error:
            told = str(error).partition("\n")[0]
            raise TypeError(f"validate gives {shown(raw)}, which the model does not take: {told}") from error


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
        raise TypeError(
            f"a batch of validate is a {type(batch).__name__}; expected (inputs, targets) or a dict. For anything "
            "else pass validate as a function of the model"
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


def shown(tree: object) -> str:
    """Tensors by type and shape: 'float32 (22, 3)'."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {tuple(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {shown(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {', '.join(map(shown, tree)) or 'nothing'}"
    return f"a {type(tree).__name__}"


# What a batch measures


def loss_rows(loss: Loss, batch: Batch) -> Rows:
    """A user's loss of a batch."""
    try:
        found = loss(batch.outputs, batch.targets)
    except Exception as error:
        raise TypeError(
            f"loss failed on a batch of validate: {type(error).__name__}: {error}. The {batch.found}"
        ) from error
    if isinstance(found, tuple | list) and len(found) == 2:
        total, count = (torch.as_tensor(part) for part in found)
        if not total.ndim and not count.ndim:
            return Rows(_whole(total)[None], count.to(total.device)[None])
    if not isinstance(found, Tensor):
        raise TypeError(
            f"loss returned {shown(found)}; expected the mean over the batch as a tensor, a tensor with samples "
            f"first, or (total, count). The {batch.found}"
        )
    if not found.ndim:
        return _of_a_mean(found, batch.samples)
    largest = max((leaf.numel() for leaf in _tensors(batch)), default=0)
    if len(found) != batch.samples or found.numel() > largest:
        raise TypeError(
            f"loss returned {shown(found)} for {batch.samples} samples; expected the mean over the batch, or a "
            f"number for each sample: was something broadcast? The {batch.found}"
        )
    return _of_numbers(found, batch.samples)


def _of_a_mean(found: Tensor, samples: int) -> Rows:
    return Rows(_whole(found)[None] * samples, torch.full((1,), samples, device=found.device))


def _of_numbers(found: Tensor, samples: int) -> Rows:
    """Samples first, all numbers of a sample count."""
    per_sample = _whole(found).reshape(samples, -1)
    return Rows(per_sample.sum(1), torch.full((samples,), per_sample.shape[1], device=found.device))


def _whole(found: Tensor) -> Tensor:
    """In a precision that sums can be made in."""
    return found.detach().to(torch.promote_types(found.dtype, torch.float32))


def usual_rows(batch: Batch) -> tuple[Rows, Rows | None]:
    """(loss, hits) where the user gave no loss."""
    targets = batch.targets
    if isinstance(targets, Mapping):
        hits = _hits(getattr(batch.outputs, "logits", None), targets.get("labels"), shifted=True)
        return _of_a_mean(_own_loss(batch.outputs), batch.samples), hits
    outputs = main_tensor(batch.outputs)
    if outputs is None or not isinstance(targets, Tensor) or not outputs.is_floating_point():
        raise TypeError(f"{batch.found}: {_say_how}")
    if targets.is_floating_point():
        return _squared_error(outputs, batch), None
    return _cross_entropy(outputs, batch), _hits(_classes_last(outputs, targets), targets, shifted=False)


_say_how = "pass loss=, a function of (outputs, targets), or metric= and mode=, or validate=, a function of the model"


def refuse_unclear(batch: Batch) -> None:
    """Float targets that are all 0 or 1 can be numbers to predict as well as labels."""
    targets = batch.targets
    if not isinstance(targets, Tensor) or not targets.is_floating_point() or not targets.numel():
        return
    if bool(((targets == 0) | (targets == 1)).all()):
        losses = [_as_shaped(name, batch.outputs, targets) for name in _LABELS_OR_NUMBERS]
        raise TypeError(
            f"{batch.found}, all of them 0 or 1: pass loss={losses[0]} if they are labels, loss={losses[1]} if they "
            "are numbers to predict"
        )


_LABELS_OR_NUMBERS = ("F.binary_cross_entropy_with_logits", "F.mse_loss")


def _as_shaped(loss: str, outputs: object, targets: Tensor) -> str:
    """How to write a loss of torch's where one of the two has a last axis of one number more."""
    shape = outputs.shape if isinstance(outputs, Tensor) else targets.shape
    if shape == (*targets.shape, 1):
        return f"lambda outputs, targets: {loss}(outputs.squeeze(-1), targets)"
    if targets.shape == (*shape, 1):
        return f"lambda outputs, targets: {loss}(outputs, targets.squeeze(-1))"
    return loss


def _squared_error(outputs: Tensor, batch: Batch) -> Rows:
    """Regression; a last axis of one number may be left out of the targets."""
    targets = batch.targets
    assert isinstance(targets, Tensor)
    if outputs.shape == (*targets.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise TypeError(f"{batch.found}; expected float targets shaped as the outputs, or {_say_how}")
    return _of_numbers((_whole(outputs) - _whole(targets)).square(), batch.samples)


def _classes_last(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Outputs with their classes on the last axis, where they are on the last or on axis 1; None if neither fits."""
    last = targets.shape == outputs.shape[:-1]
    second = outputs.ndim > 2 and targets.shape == (outputs.shape[0], *outputs.shape[2:])
    if last and second:
        return None
    return outputs if last else outputs.movedim(1, -1) if second else None


def _cross_entropy(outputs: Tensor, batch: Batch) -> Rows:
    targets = batch.targets
    assert isinstance(targets, Tensor)
    logits = _classes_last(outputs, targets)
    if logits is None or logits.shape[-1] == 1:
        one = "; one output for two classes wants loss=F.binary_cross_entropy_with_logits of float targets"
        square = "; it is not clear which axis the classes are on"
        told = one if outputs.shape in (targets.shape, (*targets.shape, 1)) else ""
        told = square if not told and logits is None and outputs.shape[:-1] == targets.shape else told
        raise TypeError(f"{batch.found}; expected classes, one for each row of outputs{told}. Or {_say_how}")
    try:
        found = F.cross_entropy(
            logits.flatten(0, -2).float(), targets.flatten().long(), ignore_index=IGNORED, reduction="none"
        )
    except IndexError:  # so it is on the CPU, where they are tried before anything is trained
        counted = targets[targets != IGNORED]
        low, high = int(counted.min()), int(counted.max())
        span = f"go to {high}" if low >= 0 else f"go from {low} to {high}"
        raise TypeError(
            f"{batch.found}; the targets {span}, and the model puts out {logits.shape[-1]} classes: expected "
            f"targets from 0 to {logits.shape[-1] - 1}"
        ) from None
    counted = (targets != IGNORED).reshape(batch.samples, -1)
    return Rows(found.view_as(counted).sum(1), counted.sum(1))


def _own_loss(output: object) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the model gives no loss for these batches (labels missing?), but {shown(output)}: {_say_how}"
        )
    return loss.mean()


def _hits(logits: object, targets: object, *, shifted: bool) -> Rows | None:
    """Where the likeliest class is the target; None where the two cannot be compared.

    shifted  the model may answer for the next position, as language models with a loss of their own do
    """
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    if targets.shape != logits.shape[:-1] or (shifted and logits.ndim > 2):
        return None
    counted = (targets != IGNORED).reshape(len(targets), -1)
    right = (logits.argmax(-1) == targets).reshape(len(targets), -1) & counted
    return Rows(right.sum(1), counted.sum(1))


def _tensors(batch: Batch) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((batch.outputs, batch.targets)) if isinstance(leaf, Tensor)]
