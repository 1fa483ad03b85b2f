"""Whatever sets the host's learning rates: a seed's follows, and the host's schedule does not notice."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as lrs

import esper
from esper.kasmina import GrowingModel
from esper.leyline import Layout, Stage
from tiny import SLOT, grow_until, tiny_host, tiny_model


class OneRateAGroup(lrs.LRScheduler):
    """A schedule of somebody's own: a list with an entry per group, and one that is as long by chance."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.goals = [0.5 for _ in optimizer.param_groups]
        self.milestones = [7]
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        pairs = zip(self.base_lrs, self.goals, strict=True)
        return [(rate + (goal - rate) * self._share) for rate, goal in pairs]

    @property
    def _share(self) -> float:
        return min(self.last_epoch / sum(self.milestones), 1.0)


class WarmedUp:
    """No LRScheduler at all: it warms up, then lets another one go on."""

    def __init__(self, optimizer: Optimizer, after: lrs.LRScheduler) -> None:
        self.optimizer, self.after, self.steps = optimizer, after, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > 5:
            self.after.step()
            return
        rates = [0.02 * self.steps] * len(self.optimizer.param_groups)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _hugging_face(name: str, optimizer: Optimizer, **options: object) -> lrs.LRScheduler:
    optimization = pytest.importorskip("transformers.optimization")
    made: lrs.LRScheduler = getattr(optimization, f"get_{name}")(
        optimizer, num_warmup_steps=4, num_training_steps=24, **options
    )
    return made


SCHEDULERS: dict[str, Callable[[Optimizer], lrs.LRScheduler | WarmedUp]] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lrs.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [2, 5], 0.5),
    "ConstantLR": lambda o: lrs.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: lrs.LinearLR(o, 0.1, 1.0, 6),
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lrs.PolynomialLR(o, 20, 2.0),
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 0.01, 0.1, 3),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 0.1, total_steps=30),
    "ReduceLROnPlateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1, factor=0.5, min_lr=[1e-3]),
    "SequentialLR": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, 1.0, 4), lrs.CosineAnnealingLR(o, 10)], milestones=[5]
    ),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler(
        [lrs.LinearLR(o, 0.1, 1.0, 4), lrs.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=5),
    "linear of Hugging Face": partial(_hugging_face, "linear_schedule_with_warmup"),
    "cosine of Hugging Face": partial(_hugging_face, "cosine_schedule_with_warmup"),
    "restarts of Hugging Face": partial(
        _hugging_face, "cosine_with_hard_restarts_schedule_with_warmup", num_cycles=2
    ),
    "wsd of Hugging Face": partial(_hugging_face, "wsd_schedule", num_decay_steps=6),
    "of one's own": OneRateAGroup,
    "no LRScheduler": lambda o: WarmedUp(o, lrs.ExponentialLR(o, 0.9)),
}


def _step(scheduler: lrs.LRScheduler | WarmedUp) -> None:
    scheduler.step(1.0) if isinstance(scheduler, lrs.ReduceLROnPlateau) else scheduler.step()


def _rates_at_steps(optimizer: Optimizer) -> list[list[float]]:
    """Filled with the rates of all groups each time the optimiser steps, as the step sees them."""
    rates: list[list[float]] = []

    def look(*_: object) -> None:
        rates.append([float(group["lr"]) for group in optimizer.param_groups])

    optimizer.register_step_pre_hook(look)
    return rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_seed_has_three_times_its_parts_rate_at_every_step(name: str) -> None:
    """Whatever the schedule and whenever the seed is born, and the host's rate is as without it."""
    model = tiny_model(Layout.FLAT, 8)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    model.attach(optimizer, scheduler)  # type: ignore[arg-type]
    twin = SGD(tiny_host(Layout.FLAT, 8).parameters(), lr=0.1, momentum=0.9)
    alone = SCHEDULERS[name](twin)
    rates, expected = _rates_at_steps(optimizer), _rates_at_steps(twin)
    groups = []
    for epoch in range(24):
        if epoch in (3, 15):
            model.germinate(SLOT, "mlp")
        if epoch == 12:
            model.prune(SLOT)
        for one, its in ((optimizer, scheduler), (twin, alone)):
            one.step()
            _step(its)
        model.tick()
        groups.append(len(optimizer.param_groups))
        assert optimizer.param_groups[0]["lr"] == twin.param_groups[0]["lr"]
        if isinstance(scheduler, lrs.LRScheduler) and isinstance(alone, lrs.LRScheduler):
            assert scheduler.get_last_lr() == alone.get_last_lr()
    assert groups == [1] * 3 + [2] * 9 + [1] * 3 + [2] * 9
    for at_step, of_twin in zip(rates, expected, strict=True):
        assert at_step == of_twin + [3.0 * of_twin[0]] * (len(at_step) - 1)


def test_rates_set_by_hand_are_followed_too() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.attach(optimizer)
    rates = _rates_at_steps(optimizer)
    model.germinate(SLOT, "mlp")
    for group in optimizer.param_groups:
        group["lr"], group["momentum"] = 0.01, 0.5
    optimizer.step()
    assert rates == [[0.01, 0.03]]
    assert optimizer.param_groups[1]["momentum"] == 0.5


def test_momentum_that_a_schedule_moves_is_followed() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lrs.OneCycleLR(optimizer, 0.1, total_steps=30)
    model.attach(optimizer, scheduler)
    model.germinate(SLOT, "mlp")
    seen = set()
    for _ in range(10):
        optimizer.step()
        host, seed = optimizer.param_groups
        assert seed["momentum"] == host["momentum"]
        seen.add(host["momentum"])
        scheduler.step()
    assert len(seen) == 10


def test_a_tensor_rate_is_followed_in_place() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    model.attach(optimizer)
    model.germinate(SLOT, "mlp")
    home, own = optimizer.param_groups
    rate = own["lr"]
    assert rate.item() == pytest.approx(0.03)
    home["lr"].fill_(1.0)
    assert rate.item() == pytest.approx(0.03)
    optimizer.step()
    assert own["lr"] is rate
    assert rate.item() == 3.0


def _two_parts() -> tuple[GrowingModel, Optimizer]:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    model = esper.wrap(nn.Sequential(first, second), ["0", "1"], torch.randn(2, 3))
    return model, SGD([{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters(), "lr": 0.4}])


def test_each_seed_follows_its_own_part() -> None:
    model, optimizer = _two_parts()
    scheduler = lrs.LambdaLR(optimizer, [lambda epoch: 0.5**epoch, lambda epoch: 0.9**epoch])
    model.attach(optimizer, scheduler, seed_lr_multiplier=2.0)
    rates = _rates_at_steps(optimizer)
    model.germinate("0", "mlp")
    model.germinate("1", "mlp")
    for _ in range(4):
        model.tick()
        optimizer.step()
        scheduler.step()
    assert rates[3] == pytest.approx([0.1 / 8, 0.4 * 0.9**3, 0.2 / 8, 0.8 * 0.9**3])
    model.prune("0")
    optimizer.step()
    assert rates[4] == pytest.approx([0.1 / 16, 0.4 * 0.9**4, 0.8 * 0.9**4])


def test_the_state_of_a_schedule_does_not_depend_on_seeds() -> None:
    """So it is loaded beside any number of them."""
    model, optimizer = _two_parts()
    scheduler = lrs.CosineAnnealingLR(optimizer, 20)
    model.attach(optimizer, scheduler)
    before = scheduler.state_dict()
    model.germinate("0", "mlp")
    assert scheduler.state_dict() == before
    scheduler.load_state_dict(before)
    optimizer.step()
    scheduler.step()


def test_a_schedule_goes_on_when_it_is_attached_again() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = lrs.StepLR(optimizer, 1, 0.5)
    model.attach(optimizer, scheduler)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    model.detach()
    model.attach(optimizer, scheduler)
    rates = _rates_at_steps(optimizer)
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    assert rates == [pytest.approx([0.1, 0.3]), pytest.approx([0.05, 0.15])]


def test_a_schedule_that_drives_nothing_here_is_refused() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer, other = Adam(model.parameters()), Adam(model.parameters())
    ours = lrs.StepLR(optimizer, 1)
    with pytest.raises(ValueError, match="pass it too, as scheduler="):
        model.attach(optimizer)
    with pytest.raises(ValueError, match="StepLR drives another optimizer"):
        model.attach(optimizer, [ours, lrs.StepLR(other, 1)])
    assert ours.optimizer is optimizer  # as it was
    with pytest.raises(TypeError, match="scheduler int has no attribute 'optimizer'"):
        model.attach(optimizer, 3)  # type: ignore[arg-type]
    model.attach(optimizer, ours)
