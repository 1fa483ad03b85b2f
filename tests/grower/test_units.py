"""A controller that observes in ratios, in a user's loop: what it is measured against, and where that is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper.grower import Grower
from esper.tamiyo.controller import Controller, layout_fingerprint
from tiny_controllers import tiny_controller

SAMPLES, EPOCHS = 37, 6


class Validation:
    """A loader that counts its passes."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.loader, self.passes = DataLoader(TensorDataset(inputs, targets), batch_size=11), 0

    def __iter__(self) -> object:
        self.passes += 1
        return iter(self.loader)


def controller(units: str) -> Controller:
    layout = layout_fingerprint(units=units)  # type: ignore[arg-type]
    return tiny_controller(1, scale=3.0, observation_units=units, layout=layout)


def loop(units: str, *, loader: bool = True) -> tuple[Grower, Tensor, Tensor, Validation]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 5, generator=generator)
    targets = (inputs.sum(1) > 0).long()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    validation = Validation(inputs, targets)

    def validate(net: nn.Module) -> dict[str, float]:
        outputs = net(inputs)
        right = (outputs.argmax(1) == targets).float().mean()
        return {
            "validation_loss": float(F.cross_entropy(outputs, targets)),
            "validation_accuracy": float(right),
        }

    grower = Grower(
        model,
        ["1"],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
        example_input=inputs[:2],
        controller=controller(units),
        validate=validation if loader else validate,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(3),
        epochs=EPOCHS,
    )
    return grower, inputs, targets, validation


def train(grower: Grower, inputs: Tensor, targets: Tensor, epochs: int) -> None:
    for _ in range(epochs):
        grower._optimizer.zero_grad()
        loss = F.cross_entropy(grower.model(inputs), targets)
        loss.backward()
        grower._optimizer.step()
        grower.step(train_loss=loss)


@pytest.mark.parametrize("loader", [True, False])
def test_ratios_are_to_the_model_before_its_first_epoch(loader: bool) -> None:
    grower, inputs, targets, _ = loop("ratios", loader=loader)
    began = F.cross_entropy(grower.model(inputs), targets).item()
    right = (grower.model(inputs).argmax(1) == targets).float().mean().item()
    origin = grower._deciding.observer._env(0).origin
    assert (origin.loss, origin.accuracy) == pytest.approx((began, right))
    train(grower, inputs, targets, EPOCHS)
    assert (origin.loss, origin.accuracy) == pytest.approx((began, right))
    assert grower._host.report.validation_samples == (SAMPLES if loader else None)
    assert math.isfinite(origin.gradient_norm)
    assert all(decision.probability is not None for decision in grower.history[:-1])


def test_a_controller_of_absolute_units_has_nothing_measured_before() -> None:
    grower, inputs, targets, validation = loop("absolute")
    assert validation.passes == 2  # whether it runs out, and whether it fits
    assert math.isnan(grower._host.report.validation_loss)
    train(grower, inputs, targets, 1)
    assert grower._host.report.validation_samples is None


def test_a_loop_goes_on_with_the_beginning_it_had() -> None:
    first, inputs, targets, _ = loop("ratios")
    train(first, inputs, targets, 2)
    again, _, _, _ = loop("ratios")
    again.load_state_dict(first.state_dict())
    assert again._deciding.observer._env(0).origin == first._deciding.observer._env(0).origin
    train(first, inputs, targets, 1)
    train(again, inputs, targets, 1)
    assert again.history[-1].action == first.history[-1].action
    assert again.history[-1].probability == first.history[-1].probability
