"""Loss and accuracy over batches, and the one number made of them."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from esper.grower.measuring import EpochMetrics, Mode, Scale
from esper.grower.validating import LoaderValidation

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
    found = LoaderValidation(batches)(Answers())
    assert found["validation_accuracy"] == 0.75
    assert found["validation_loss"] == pytest.approx(SURE / 4, rel=1e-4)


def test_targets_that_do_not_count() -> None:
    batches = [
        (torch.tensor([[0, 1, 1, 1]]), torch.tensor([[0, 2, -100, -100]])),
        (torch.tensor([[0, 1, 1, 1]]), torch.tensor([[0, 1, 1, 1]])),
    ]
    found = LoaderValidation(batches)(Answers())
    assert found["validation_accuracy"] == pytest.approx(5 / 6)
    assert found["validation_loss"] == pytest.approx(SURE / 6, rel=1e-4)  # of targets, not of batches


def test_a_models_own_loss_and_its_classes() -> None:
    batches = [
        {"inputs": torch.tensor([0, 1]), "labels": torch.tensor([0, 2])},
        {"inputs": torch.tensor([2]), "labels": torch.tensor([2])},
    ]
    found = LoaderValidation(batches)(Answers())
    assert found["validation_accuracy"] == pytest.approx(2 / 3)
    assert found["validation_loss"] == pytest.approx((2 * 0.5 + 1 * 2.0) / 3)


def test_a_language_models_accuracy_is_unknown() -> None:
    """It may answer for the next position: comparing position by position would be wrong."""
    tokens = torch.tensor([[0, 1, 2]])
    found = LoaderValidation([{"inputs": tokens, "labels": tokens}])(Answers())
    assert found["validation_accuracy"] is None


def scores(scale: Scale, *epochs: EpochMetrics) -> list[float | None]:
    found = []
    for metrics in epochs:
        scale.observe(metrics)
        found.append(scale.score(metrics))
    return found


def test_a_scale_is_chosen_once() -> None:
    assert scores(
        Scale(),
        EpochMetrics(validation_loss=math.nan),
        EpochMetrics(validation_loss=4.0),
        EpochMetrics(validation_loss=2.0, validation_accuracy=0.9),
        EpochMetrics(validation_accuracy=0.9),
    ) == [None, -1.0, -0.5, None]
    assert scores(
        Scale(),
        EpochMetrics(validation_loss=4.0, validation_accuracy=0.25),
        EpochMetrics(validation_loss=4.0),
    ) == [0.25, None]


@pytest.mark.parametrize(
    ("mode", "values", "expected", "unit"),
    [
        ("min", (5.0, 4.0, 2.0), [-1.0, -0.8, -0.4], "minus validation metric, in units of the first one, 5"),
        (
            "max",
            (10.0, 40.0, 20.0, 60.0),
            [None, None, 0.5, 1.5],
            "validation metric, in units of its span in the first epochs, 40",
        ),
        (
            "max",
            (-1.0, 0.0, 1.0, 0.5),
            [None, None, 0.5, 0.25],
            "validation metric, in units of its span in the first epochs, 2",
        ),
        (
            "min",
            (-1.0, -3.0, -4.0, -5.0),
            [None, None, 1.0, 1.25],
            "minus validation metric, in units of its span in the first epochs, 4",
        ),
        (
            "max",
            (0.0, 0.0, 0.0, 1.0),
            [None, None, None, 1.0],
            "validation metric, in units of its span in the first epochs, 1",
        ),
    ],
)
def test_a_metrics_unit_is_that_of_the_first_epochs(
    mode: Mode, values: tuple[float, ...], expected: list[float | None], unit: str
) -> None:
    scale = Scale(mode)
    assert scores(scale, *(EpochMetrics(validation_metric=value) for value in values)) == expected
    assert unit in str(scale)


def test_a_unit_does_not_depend_on_that_of_the_metric() -> None:
    values = (0.2, -0.3, 0.5, 0.7, 0.4)
    for mode in ("min", "max"):
        one, other = (
            scores(Scale(mode), *(EpochMetrics(validation_metric=factor * value) for value in values))
            for factor in (1.0, 1000.0)
        )
        assert one == pytest.approx(other)


def test_a_unit_that_is_needed_before_the_third_epoch() -> None:
    scale = Scale("max")
    epoch = EpochMetrics(validation_metric=0.5)
    assert scores(scale, epoch) == [None]
    scale.close()
    assert scale.score(epoch) == 1.0
