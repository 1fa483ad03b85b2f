"""Which rule a Grower takes by itself, and what it shows a rule of the learning rate."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from esper.grower import Grower, GrowthWarning
from esper.leyline import ActionSpec, Situation
from grower.loops import CLASSES, FEATURES, Loop, net


def grower(model: nn.Module, slots: list[str], **options: Any) -> Grower:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(learning, lr=0.1)
    loop = Loop()
    return Grower(
        model, slots, optimizer=optimizer, example_input=loop.inputs[:2], validate=loop.validate, **options
    )


def frozen_net() -> nn.Sequential:
    model = net()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    return model


def test_a_host_that_trains_and_one_that_is_frozen_but_for_its_head() -> None:
    assert grower(net(), ["0", "1"]).controller == "by_layout"
    assert grower(frozen_net(), ["0", "1"]).controller == "frozen_spread"
    assert grower(frozen_net(), ["0", "1"], controller="probe_and_keep").controller == "probe_and_keep"


def with_activations() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, CLASSES)
    )


class Aliased(nn.Module):
    """A block under two names, of which the second is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh())
        self.again = self.first
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.again(x))
        return out


def test_a_frozen_slot_may_have_the_second_name_of_a_shared_module() -> None:
    model = Aliased()
    model.first.requires_grad_(False)
    assert grower(model, ["again"]).controller == "frozen_spread"


def test_slots_that_nothing_suits_are_named() -> None:
    with pytest.warns(
        GrowthWarning, match=r"by_layout has nothing that suits 1, 3, .*name blocks with weights"
    ):
        grower(with_activations(), ["1", "3"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrowthWarning)
        grower(net(), ["0", "1"])
        grower(with_activations(), ["1", "3"], controller="probe_and_keep")


def test_a_frozen_network_gets_its_residuals_and_gives_back_a_plain_module() -> None:
    loop, model = Loop(), frozen_net()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-2)
    made = grower(model, ["0", "1"], optimizer=optimizer, epochs=12)
    before = {name: parameter.clone() for name, parameter in model[0].named_parameters()}
    for _ in range(12):
        made.step(train_loss=loop.train(made.model, optimizer))
    done = [(d.action.op.name, d.action.blueprint) for d in made.history if d.action.slot == "0"]
    assert done == [("GERMINATE", "mlp_small"), ("ADVANCE", None)]
    for name, parameter in before.items():
        assert torch.equal(parameter, model[0].get_parameter(name))
    made.finish()(loop.inputs)


class Listener:
    """Does nothing, and remembers the share of the learning rate that it was shown."""

    def __init__(self) -> None:
        self.shares: list[float | None] = []

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        self.shares.append(situation.signals.learning_rate_share)
        return ActionSpec()

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: object) -> None:
        pass


Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def shares_shown(schedule: Schedule, *, restart: int | None = None) -> list[float | None]:
    """In 8 epochs; with `restart`, by a second Grower that goes on after so many."""

    def made() -> tuple[Grower, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, Listener]:
        model, listener = net(), Listener()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = schedule(optimizer)
        options = {"optimizer": optimizer, "scheduler": scheduler, "controller": listener}
        return grower(model, ["0"], **options), optimizer, scheduler, listener

    loop, shown = Loop(), []
    growing, optimizer, scheduler, listener = made()
    for epoch in range(8):
        if epoch == restart:
            states = growing.state_dict(), scheduler.state_dict()
            growing, optimizer, scheduler, listener = made()
            growing.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        loss = loop.train(growing.model, optimizer)
        scheduler.step()
        growing.step(train_loss=loss)
        shown.append(listener.shares[-1])
    return shown


def test_the_learning_rate_is_shown_as_a_share_of_its_highest() -> None:
    cosine = shares_shown(lambda optimizer: CosineAnnealingLR(optimizer, 8))
    assert cosine == pytest.approx([(1 + math.cos(math.pi * epoch / 8)) / 2 for epoch in range(1, 9)])
    cycle = shares_shown(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9))
    assert cycle[:2] == [1.0, 1.0]  # it rises: nothing has been lost yet
    assert cycle[-1] is not None
    assert cycle[-1] < 0.05


def test_the_highest_learning_rate_outlives_a_checkpoint() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> CosineAnnealingLR:
        return CosineAnnealingLR(optimizer, 8)

    assert shares_shown(schedule, restart=5) == shares_shown(schedule)
