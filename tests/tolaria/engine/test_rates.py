"""Learning rates from step to step: known factors, a loop by hand, seeds that follow, and states that go on."""

import math
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, OneCycleLR, SequentialLR

from esper.leyline import HostStep
from esper.tolaria.engine.host import ShuffledStream, rate_factor, rate_factors
from esper.tolaria.engine.population import Population
from esper.tolaria.tasks import OptimiserSpec, forget, register, task
from esper.tolaria.tasks.task import RateSchedule
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import BATCH, STEPS, advance, germinate, tiny_task
from world_steps import begin_host, run_epoch

EPOCHS = 4


@pytest.fixture(params=["cosine", "one_cycle", "warm_up_cosine"])
def schedule(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    for kind in ("sgd", "adam"):
        optimiser = OptimiserSpec(kind=kind, lr=0.02)
        register(tiny_task(f"by_{kind}", schedule=name, optimiser=optimiser, epochs=EPOCHS))
    yield name
    for kind in ("sgd", "adam"):
        forget(f"by_{kind}")


def test_known_factors() -> None:
    assert rate_factors("constant", 3, 5, 20) is None
    assert rate_factors("cosine", 0, 2, 2) == pytest.approx([1.0, (1 + math.cos(math.pi / 4)) / 2])
    assert rate_factors("cosine", 1, 2, 2) == pytest.approx([0.5, (1 - math.cos(math.pi / 4)) / 2])
    shares = (0.0, 0.125, 0.25, 0.625, 1.0)
    expected = [0.04, 0.52, 1.0, 0.5, 0.0]
    assert [rate_factor("one_cycle", share) for share in shares] == pytest.approx(expected)
    assert rate_factor("constant", 0.7) == 1.0


def _torch_rates(make: Callable[[Optimizer], LRScheduler], steps: int) -> list[float]:
    """What a scheduler of torch sets before each of so many steps, for a learning rate of 1."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def _our_rates(schedule: RateSchedule, epochs: int, steps: int) -> list[float]:
    return [
        factor for epoch in range(epochs) for factor in rate_factors(schedule, epoch, steps, epochs) or ()
    ]


@pytest.mark.parametrize(("schedule", "peak"), [("cosine", 0), ("one_cycle", 35), ("warm_up_cosine", 7)])
def test_every_step_has_the_rate_that_torch_gives_it(schedule: RateSchedule, peak: int) -> None:
    epochs, steps = 20, 7

    def chained(optimizer: Optimizer) -> LRScheduler:
        fall = CosineAnnealingLR(optimizer, epochs * steps - peak)
        if not peak:
            return fall
        return SequentialLR(optimizer, [LinearLR(optimizer, 0.04, 1.0, peak), fall], milestones=[peak])

    theirs = _torch_rates(chained, epochs * steps)
    assert _our_rates(schedule, epochs, steps) == pytest.approx(theirs, abs=1e-12)


def test_one_cycle_is_that_of_torch_rising_in_a_line_and_falling_as_a_cosine() -> None:
    """Of torch's one cycle the last step is at 0, and of ours the one after the last."""
    epochs, steps, peak = 20, 7, 35
    whole = epochs * steps + 1

    def one_cycle(anneal: Literal["linear", "cos"]) -> list[float]:
        share = (peak + 1) / whole
        return _torch_rates(
            lambda optimizer: OneCycleLR(
                optimizer, 1.0, whole, pct_start=share, anneal_strategy=anneal, final_div_factor=1e30
            ),
            whole - 1,
        )

    theirs = one_cycle("linear")[:peak] + one_cycle("cos")[peak:]
    assert _our_rates("one_cycle", epochs, steps) == pytest.approx(theirs, abs=1e-9)


def test_after_the_tasks_epochs_the_last_factor_stays() -> None:
    within, beyond = rate_factors("cosine", 3, 5, 4), rate_factors("cosine", 9, 5, 4)
    assert within is not None
    assert beyond == [within[-1]] * 5
    assert within[-1] > 0.0


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_life_is_what_a_loop_by_hand_does(kind: str, schedule: str) -> None:
    population = Population(1)
    host = population.begin(0, f"by_{kind}", seed=3)
    for _ in range(EPOCHS):
        population.train_epoch()
    row, data = task(f"by_{kind}"), host.data.source
    bare = row.grow(data, seed=3).host
    optimizer: Optimizer = (
        SGD(bare.parameters(), 0.02, momentum=0.9) if kind == "sgd" else Adam(bare.parameters(), 0.02)
    )
    train, stream = data.phases[0].train, ShuffledStream(3)
    for epoch in range(EPOCHS):
        for step, indices in enumerate(stream.draw(range(len(train)), STEPS, BATCH)):
            share = (epoch * STEPS + step) / (EPOCHS * STEPS)
            optimizer.param_groups[0]["lr"] = 0.02 * rate_factor(schedule, share)  # type: ignore[arg-type]
            optimizer.zero_grad()
            F.cross_entropy(bare(train.inputs[indices]), train.targets[indices]).backward()
            torch.nn.utils.clip_grad_norm_(bare.parameters(), row.clip_host)
            optimizer.step()
    for ours, theirs in zip(host.model.parameters(), bare.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_seeds_follow_times_their_multiplier(schedule: str) -> None:
    population = Population(1)
    host = population.begin(0, "by_adam", seed=0)
    host.apply(germinate())
    for epoch in range(EPOCHS):
        host.model.tick()
        population.train_epoch()
        factors = rate_factors(schedule, epoch, STEPS, EPOCHS)  # type: ignore[arg-type]
        assert factors is not None
        own, seeds = (group["lr"] for group in host.optimizer.param_groups)
        assert own == pytest.approx(0.02 * factors[-1], rel=1e-5)
        assert seeds == pytest.approx(3 * own)


@pytest.mark.usefixtures("schedule")
def test_a_host_goes_on_from_a_snapshot_at_the_rate_it_had_reached() -> None:
    lives = [EngineWorld(1), EngineWorld(1)]
    begin_host(lives[0], 0, "by_sgd")
    for action in (germinate(), advance()):
        lives[0].step_many([HostStep(0, action)])
    lives[1].restore(lives[0].snapshot([0]))
    for world in lives:
        for _ in range(2):
            run_epoch(world)
    assert lives[0].host(0).report == lives[1].host(0).report
    assert lives[0].host(0).report.epoch == EPOCHS


def test_a_constant_rate_is_no_part_of_the_settings() -> None:
    constant, cosine = tiny_task(), tiny_task(schedule="cosine")
    assert "schedule" not in constant.settings()
    assert cosine.settings() == constant.settings() | {"schedule": "'cosine'"}
    with pytest.raises(
        ValueError, match=r"schedule must be one of constant, cosine, one_cycle, warm_up_cosine, not 'linear'"
    ):
        tiny_task(schedule="linear")
