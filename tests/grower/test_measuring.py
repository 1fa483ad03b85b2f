"""Loss and accuracy over batches, and the one number made of them."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from esper.grower.measuring import EpochMetrics, Scale, loader_metrics

SURE = 20.0


class Answers(nn.Module):
    """Says what its input says, and with labels also a loss, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> object:
        logits = SURE * nn.functional.one_hot(inputs, 3).float()
        return logits if labels is None else SimpleNamespace(loss=inputs.float().mean(), logits=logits)


def test_samples_weigh_the_same_in_batches_of_any_size() -> None:
    batches = [(torch.tensor([0]), torch.tensor([1])), (torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]))]
    found = loader_metrics(Answers(), batches)
    assert found["validation_accuracy"] == 0.75
    assert found["validation_loss"] == pytest.approx(SURE / 4, rel=1e-4)


def test_targets_that_do_not_count() -> None:
    found = loader_metrics(Answers(), [(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 2, -100]]))])
    assert found["validation_accuracy"] == 0.5


def test_a_models_own_loss_and_its_classes() -> None:
    batches = [
        {"inputs": torch.tensor([0, 1]), "labels": torch.tensor([0, 2])},
        {"inputs": torch.tensor([2]), "labels": torch.tensor([2])},
    ]
    found = loader_metrics(Answers(), batches)
    assert found["validation_accuracy"] == pytest.approx(2 / 3)
    assert found["validation_loss"] == pytest.approx((2 * 0.5 + 1 * 2.0) / 3)


def test_a_language_models_accuracy_is_unknown() -> None:
    """It may answer for the next position: comparing position by position would be wrong."""
    tokens = torch.tensor([[0, 1, 2]])
    assert loader_metrics(Answers(), [{"inputs": tokens, "labels": tokens}])["validation_accuracy"] is None


def test_a_scale_is_chosen_once() -> None:
    scale = Scale()
    assert scale.score(EpochMetrics(validation_loss=math.nan)) is None
    assert scale.score(EpochMetrics(validation_loss=4.0)) == -1.0
    assert scale.score(EpochMetrics(validation_loss=2.0, validation_accuracy=0.9)) == -0.5
    assert scale.score(EpochMetrics(validation_accuracy=0.9)) is None
    scale = Scale()
    assert scale.score(EpochMetrics(validation_loss=4.0, validation_accuracy=0.25)) == 0.25
    assert scale.score(EpochMetrics(validation_loss=4.0)) is None
