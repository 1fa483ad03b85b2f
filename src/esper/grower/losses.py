"""What a batch of validation measures: a loss of a user's, or the usual one where none is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from esper.kasmina.blueprints.registry import main_tensor

IGNORED = -100
"""A target that does not count, as everywhere in torch."""

Loss = Callable[..., object]
"""(outputs, targets) -> the mean over the batch, or a tensor with samples first, or (total, count)."""


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


def shown(tree: object) -> str:
    """Tensors by type and shape: 'float32 (22, 3)'."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {tuple(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {shown(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {', '.join(map(shown, tree)) or 'nothing'}"
    return f"a {type(tree).__name__}"


def loss_rows(loss: Loss, batch: Batch) -> Rows:
    """A user's loss of a batch."""
    try:
        found = loss(batch.outputs, batch.targets)
    except Exception as error:
        advice = _advice_for(loss, batch)
        raise TypeError(
            f"loss failed on a batch of validate: {type(error).__name__}: {error}. The {batch.found}{advice}"
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


def _advice_for(loss: Loss, batch: Batch) -> str:
    """What may mend a loss that failed."""
    if isinstance(loss, type):
        return f": {loss.__name__} is a class; pass an instance, loss={loss.__name__}()"
    shapes = [part.shape for part in (batch.outputs, batch.targets) if isinstance(part, Tensor)]
    if len(shapes) == 2 and (shapes[0] == (*shapes[1], 1) or shapes[1] == (*shapes[0], 1)):
        assert isinstance(batch.targets, Tensor)
        return (
            f": pass loss={_as_shaped(getattr(loss, '__name__', 'your_loss'), batch.outputs, batch.targets)}"
        )
    return ""


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
        labels = outputs.ndim > targets.ndim and bool((targets == targets.round()).all())
        classes = ", whole numbers (labels? pass targets.long())" if labels else ""
        raise TypeError(
            f"{batch.found}{classes}; expected float targets shaped as the outputs, or {_say_how}"
        )
    return _of_numbers((_whole(outputs) - _whole(targets)).square(), batch.samples)


def _classes_last(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Outputs with their classes on the last axis, where they are on the last or on axis 1; None if neither fits."""
    last = targets.shape == outputs.shape[:-1]
    second = outputs.ndim > 2 and targets.shape == (outputs.shape[0], *outputs.shape[2:])
    if last and second:
        return None
    return outputs if last else outputs.movedim(1, -1) if second else None


def _of_one_logit(outputs: Tensor, targets: Tensor) -> str:
    """How to write the loss of one logit, for classes 0 and 1."""
    logit = "outputs.squeeze(-1)" if outputs.shape == (*targets.shape, 1) else "outputs"
    return f"lambda outputs, targets: F.binary_cross_entropy_with_logits({logit}, targets.float())"


def _cross_entropy(outputs: Tensor, batch: Batch) -> Rows:
    targets = batch.targets
    assert isinstance(targets, Tensor)
    logits = _classes_last(outputs, targets)
    if logits is None or logits.shape[-1] == 1:
        one = f"; one output for two classes wants loss={_of_one_logit(outputs, targets)}"
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
