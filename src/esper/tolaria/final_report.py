"""The one place where a test split is opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from esper.kasmina.model import untouched
from esper.tolaria.data.splits import ReportKey, SealedTest, TaskData
from esper.tolaria.engine.step import explained, loss_and_hits


@dataclass(frozen=True, slots=True)
class TestScore:
    """How a finished model does on samples that nothing was chosen by."""

    __test__: ClassVar[bool] = False  # pytest would take the name for a class of tests

    accuracy: float
    """Of quantities the share of their variance that is explained, at least 0."""
    loss: float
    """Mean cross-entropy, or mean squared error."""
    samples: int


def test_score(model: nn.Module, data: TaskData, *, batch: int = 1000) -> TestScore:  # noqa: PT028
    """Score a model on the test split, in eval mode, where its parameters are. Its modes are put back after."""
    return _score(model, data.test, batch)


def phase_scores(models: Sequence[nn.Module], data: TaskData, *, batch: int = 1000) -> tuple[TestScore, ...]:
    """Score one model for each of the first phases on that phase's own test split.

    models  as they stood when each phase that was lived ended, in the order of time; or one model, again and again
    """
    tests = [data.test] if len(data.phases) == 1 else [phase.test for phase in data.phases]
    sealed = [test for test in tests if test is not None]
    if not 1 <= len(models) <= len(tests) or len(sealed) < len(tests):
        raise ValueError(
            f"{len(models)} models for {len(tests)} phases, of which {len(tests) - len(sealed)} have no test split; "
            "expected a model for each phase that was lived, and a task whose phases are tested, such as stream"
        )
    return tuple(_score(model, test, batch) for model, test in zip(models, sealed, strict=False))


def _score(model: nn.Module, test: SealedTest, batch: int) -> TestScore:
    split = test.open(ReportKey())
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64)
    with untouched(model), torch.inference_mode():
        for inputs, targets in zip(split.inputs.split(batch), split.targets.split(batch), strict=True):
            outputs = model(inputs.to(device))
            if not isinstance(outputs, Tensor):
                raise TypeError(f"the model must put out logits or quantities, not {type(outputs).__name__}")
            outputs = outputs.view(1, len(inputs), -1, outputs.shape[-1]).float()
            sums += loss_and_hits(outputs, targets.to(device)).double().sum((0, 1)).cpu()
    loss, hits = sums / len(split)
    score = explained(loss, split.variance) if split.regression else hits
    return TestScore(accuracy=score.item(), loss=loss.item(), samples=len(split))
