"""The one place where a test split is opened."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.kasmina.model import untouched
from esper.tolaria.data.splits import ReportKey, TaskData


@dataclass(frozen=True, slots=True)
class TestScore:
    """How a finished model does on samples that nothing was chosen by."""

    __test__: ClassVar[bool] = False  # pytest would take the name for a class of tests

    accuracy: float
    loss: float
    """Mean cross-entropy."""
    samples: int


def test_score(model: nn.Module, data: TaskData, *, batch: int = 1000) -> TestScore:  # noqa: PT028
    """Score a model on the test split, in eval mode, where its parameters are. Its modes are put back after."""
    split = data.test.open(ReportKey())
    device = next(model.parameters()).device
    loss_sum = correct = 0.0
    with untouched(model), torch.inference_mode():
        for inputs, targets in zip(split.inputs.split(batch), split.targets.split(batch), strict=True):
            logits = model(inputs.to(device))
            if not isinstance(logits, Tensor):
                raise TypeError(f"the model must put out logits, not {type(logits).__name__}")
            flat, wanted = logits.flatten(0, -2).float(), targets.to(device).flatten()
            loss_sum += F.cross_entropy(flat, wanted, reduction="sum").item()
            correct += (flat.argmax(1) == wanted).sum().item()
    count = split.targets.numel()
    return TestScore(accuracy=correct / count, loss=loss_sum / count, samples=len(split))
