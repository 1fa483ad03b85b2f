"""What a training loop measures: metrics as they enter, and scores under coalitions of seeds."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import SupportsFloat

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from esper.kasmina import GrowingModel
from esper.kasmina.blueprints.registry import main_tensor
from esper.kasmina.coalitions import CoalitionPlan, coalition_alphas, plan_coalitions
from esper.kasmina.model import untouched

ACCURACIES = ("train_accuracy", "validation_accuracy")
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochMetrics:
    """Unknown is None. A loss may be NaN or Inf: that is for the governor to judge."""

    train_loss: float | None = None
    train_accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    @property
    def broken(self) -> tuple[str, ...]:
        """Losses that are no numbers."""
        values = {"train_loss": self.train_loss, "validation_loss": self.validation_loss}
        return tuple(name for name, value in values.items() if value is not None and not math.isfinite(value))

    @property
    def validated(self) -> bool:
        """Whether a validation metric is known."""
        return self.validation_loss is not None or self.validation_accuracy is not None


def read_metrics(**given: SupportsFloat | None) -> tuple[EpochMetrics, tuple[str, ...]]:
    """The metrics, and the names of accuracies that were NaN and count as unknown."""
    values: dict[str, float | None] = {name: _number(name, value) for name, value in given.items()}
    lost: list[str] = []
    for name in ACCURACIES:
        value = values.get(name)
        if value is None:
            continue
        if math.isnan(value):
            values[name] = None
            lost.append(name)
        elif not -_ROUNDING <= value <= 1.0 + _ROUNDING:
            percent = f": is it in percent? Pass {value / 100:g}" if 1.0 < value <= 100.0 else ""
            raise ValueError(f"{name} is {value:g}; expected a share from 0 to 1{percent}")
        else:
            values[name] = min(max(value, 0.0), 1.0)
    return EpochMetrics(**values), tuple(lost)


def _number(name: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        value = value.detach()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of many numbers is a RuntimeError
        raise TypeError(
            f"{name} is a {type(value).__name__} that is no single number; expected a float, or a tensor of one"
        ) from None


ValidateCall = Callable[[nn.Module], Mapping[str, SupportsFloat | None]]
Validate = ValidateCall | Iterable[object]
"""A function of the model that returns validation_loss, validation_accuracy or both; or batches, (inputs, targets)
or dicts."""


IGNORED = -100
"""A target that does not count, as everywhere in torch."""


@dataclass(slots=True)
class Scale:
    """One number for how well validation goes: accuracy, or without it minus the loss over the first one seen.

    Whichever is known first is the scale for good: an epoch that says only the other has no score. The family of the
    reward that a controller learned by does not matter.
    """

    first_loss: float | None = None
    by_accuracy: bool | None = None

    def score(self, metrics: EpochMetrics) -> float | None:
        """The score of an epoch, or None where it is unknown."""
        loss = metrics.validation_loss
        if loss is not None and not math.isfinite(loss):
            loss = None
        if self.by_accuracy is None and (metrics.validation_accuracy is not None or loss is not None):
            self.by_accuracy, self.first_loss = metrics.validation_accuracy is not None, loss
        if self.by_accuracy:
            return metrics.validation_accuracy
        if loss is None or self.first_loss is None:
            return None
        return -loss / self.first_loss if self.first_loss > 0 else -loss


def as_call(validate: Validate) -> ValidateCall:
    """The one form that measuring uses."""
    if callable(validate):
        return validate
    if not hasattr(validate, "__iter__"):
        raise TypeError(
            f"validate is a {type(validate).__name__}; expected a function of the model, or a loader of batches"
        )
    if iter(validate) is validate:
        raise TypeError("validate is an iterator, which runs out: pass the loader or a list of batches")
    return lambda model: loader_metrics(model, validate)


def measure(
    model: GrowingModel, validate: ValidateCall, members: Iterable[str] | None = None
) -> tuple[EpochMetrics, tuple[str, ...]]:
    """Validation metrics of the model as it is, or with just these live seeds on, and which of them were NaN.

    Nothing of the model is changed.
    """
    alphas = {} if members is None else coalition_alphas(model, [members], 1)
    compiling = "torch._dynamo" in sys.modules  # nothing is compiled for this
    eager = torch.compiler.set_stance("force_eager") if compiling else nullcontext()
    # not inference_mode: what the model caches in a forward may meet autograd later
    with untouched(model), torch.no_grad(), eager, model.override_alpha(alphas):
        found: object = validate(model)
    if not isinstance(found, Mapping) or not {"validation_loss", "validation_accuracy"} & set(found):
        raise TypeError(
            f"validate returned {found!r}; expected a mapping with validation_loss, validation_accuracy or both"
        )
    return read_metrics(**{name: found.get(name) for name in ("validation_loss", "validation_accuracy")})


def coalition_scores(
    model: GrowingModel, validate: ValidateCall, scale: Scale, base: EpochMetrics | None = None
) -> tuple[CoalitionPlan, list[float | None]]:
    """The model's coalitions and the score of each, one validation after another; `base` is of the model as it is."""
    plan = plan_coalitions(model, bare=False)
    first = measure(model, validate, plan.coalitions[0])[0] if base is None else base
    rest = (measure(model, validate, members)[0] for members in plan.coalitions[1:])
    return plan, [scale.score(metrics) for metrics in (first, *rest)]


def loader_metrics(model: nn.Module, loader: Iterable[object]) -> dict[str, float | None]:
    """Cross-entropy and accuracy over batches (inputs, class targets); the model's own loss over dicts."""
    device = next(model.parameters()).device
    loss = correct = torch.zeros((), device=device)
    samples = labelled = 0
    for raw in loader:
        batch = tree_map_only(Tensor, lambda tensor: tensor.to(device), raw)
        if isinstance(batch, Mapping):
            output = model(**batch)
            part, logits, targets = _own_loss(output), getattr(output, "logits", None), batch.get("labels")
        else:
            inputs, targets = _pair(batch)
            logits = main_tensor(model(*inputs) if isinstance(inputs, tuple | list) else model(inputs))
            if logits is None:
                raise TypeError("the model returned no tensor to validate: pass validate as a function of it")
            part = _cross_entropy(logits, targets)
        size = len(targets) if isinstance(targets, Tensor) else 1
        loss, samples = loss + part * size, samples + size
        hits = _hits(logits, targets, shifted=isinstance(batch, Mapping))
        if hits is not None:
            correct, labelled = correct + hits.sum(), labelled + hits.numel()
    if not samples:
        raise ValueError("validate has no batches: there is nothing to measure with")
    return {
        "validation_loss": float(loss) / samples,
        "validation_accuracy": float(correct) / labelled if labelled else None,
    }


def _pair(batch: object) -> tuple[object, object]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        f"a batch of validate is a {type(batch).__name__}; expected (inputs, targets) or a dict. For anything else "
        "pass validate as a function of the model"
    )


def _cross_entropy(logits: Tensor, targets: object) -> Tensor:
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.shape != logits.shape[:-1]:
        found = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(
            f"targets are {found} for outputs {tuple(logits.shape)}; expected classes, one for each row of outputs. "
            "For anything else pass validate as a function of the model"
        )
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _own_loss(output: object) -> Tensor:
    loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise TypeError(
            "the model gives no loss for these batches (labels missing?): pass validate as a function of the model"
        )
    return loss.mean()


def _hits(logits: object, targets: object, *, shifted: bool) -> Tensor | None:
    """Where the likeliest class is the target; None where the two cannot be compared.

    shifted  the model may answer for the next position, as language models with a loss of their own do
    """
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    if targets.shape != logits.shape[:-1] or (shifted and logits.ndim > 2):
        return None
    counted = targets != IGNORED
    return (logits.argmax(-1) == targets)[counted]
