"""Gradient norms that are read many steps at once are those of reading each step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import gradients
from esper.kasmina.gradients import GradientWatch, SeedGradientCollector
from esper.kasmina.hosts import ConvNet

STEPS = 11


def step_by_step(host: list[Tensor], seeds: dict[str, list[Tensor]]) -> tuple[Tensor, dict[str, Tensor]]:
    """What one step adds to the sums, with operations of its own for each number."""
    norm = torch.nn.utils.get_total_norm(host)
    usable = torch.isfinite(norm)
    found = {}
    for name, theirs in seeds.items():
        norms = torch.stack([torch.linalg.vector_norm(each) for each in theirs])
        vanished, exploded = norms < gradients.VANISHING_NORM, ~(norms <= gradients.EXPLODING_NORM)
        seen = torch.stack(
            (torch.linalg.vector_norm(norms), vanished.float().mean(), exploded.float().mean())
        )
        found[name] = torch.cat((torch.where(usable, seen, 0.0), usable.float().view(1)))
    return torch.stack((torch.where(usable, norm, 0.0), usable.float())), found


@pytest.mark.parametrize("together", [1, 3, 64])
def test_as_each_step_read_by_itself(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(gradients, "STEPS_TOGETHER", together)
    generator = torch.Generator().manual_seed(0)
    host: nn.Module = ConvNet(2, 3, dims=1, widths=(4, 6), pools=(2, 2))
    model = esper.wrap(host, ["blocks.*"], torch.randn(2, 2, 8, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.attach(optimizer)
    model.germinate("blocks.0", "conv_small", style="gate")
    watch = GradientWatch(model, optimizer, before_first=lambda: None)
    host_sum, seed_sums = torch.zeros(2), dict[str, Tensor]()
    for step in range(STEPS):
        if step == 4:
            model.germinate("blocks.1", "norm")
        slots = {name: slot.seed for name, slot in model.slots.items() if slot.seed is not None}
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for index, seed in enumerate(slots.values()):
            seed.scale.grad = seed.scale.new_full(seed.scale.shape, (0.0, 1e3)[index])
        if step == 6:
            next(model.bare_parameters()).grad = torch.tensor(float("inf")).expand_as(
                next(model.bare_parameters())
            )
        if step == 8:
            slots["blocks.0"].scale.grad = None
        theirs = {
            name: [p.grad for p in seed.parameters() if p.grad is not None] for name, seed in slots.items()
        }
        expected, seeds = step_by_step(
            [p.grad for p in model.bare_parameters() if p.grad is not None], theirs
        )
        host_sum = host_sum + expected
        seed_sums = {name: seed_sums.get(name, 0.0) + sums for name, sums in seeds.items()}
        optimizer.step()
        if step == 5:  # a checkpoint in between changes nothing
            watch.load_state_dict(watch.state_dict())
    norm, found = watch.take()
    assert norm == pytest.approx(float(host_sum[0] / host_sum[1]), rel=1e-6)
    assert host_sum[1] == STEPS - 1
    assert set(found) == {"blocks.0", "blocks.1"}
    for name, (total, vanished, exploded, steps) in ((n, sums.tolist()) for n, sums in seed_sums.items()):
        assert found[name].norm == pytest.approx(total / steps, rel=1e-6)
        assert found[name].health == pytest.approx(1.0 - (vanished + exploded) / steps, rel=1e-6)
        assert found[name].health < 1.0
    assert watch.take() == (None, {})


@pytest.mark.parametrize("saved_after", [None, 4])
def test_while_no_seed_lives_one_step_of_three_is_looked_at(saved_after: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    model = esper.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), ["0"], torch.randn(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.attach(optimizer)
    watch = GradientWatch(model, optimizer, before_first=lambda: None)
    norms = []
    for step in range(STEPS):
        made = [torch.randn(parameter.shape, generator=generator) for parameter in model.parameters()]
        for parameter, gradient in zip(model.parameters(), made, strict=True):
            parameter.grad = gradient
        norms.append(float(torch.nn.utils.get_total_norm(made)))
        optimizer.step()
        if step == saved_after:
            watch.load_state_dict(watch.state_dict())
    assert watch.steps == STEPS
    norm, found = watch.take()
    assert norm == pytest.approx(sum(norms[::3]) / 4, rel=1e-6)
    assert found == {}


def test_readings_do_not_depend_on_how_many_are_read_together() -> None:
    norms = torch.rand(37, 23, generator=torch.Generator().manual_seed(0))
    collector = SeedGradientCollector()
    assert torch.equal(collector.readings(norms), torch.stack([collector.readings(each) for each in norms]))
    together = torch.linalg.vector_norm(norms, dim=1)
    assert torch.equal(together, torch.cat([torch.linalg.vector_norm(each[None], dim=1) for each in norms]))


def test_a_seed_that_comes_between_two_steps_is_watched_from_then_on() -> None:
    x = torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(0))
    model = esper.wrap(ConvNet(2, 3, dims=1, widths=(4, 6), pools=(2, 2)), ["blocks.*"], x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.attach(optimizer)
    watch = GradientWatch(model, optimizer, before_first=lambda: None)
    model.germinate("blocks.0", "norm")

    def step() -> None:
        optimizer.zero_grad()
        out = model(x)
        assert isinstance(out, Tensor)
        out.square().mean().backward()
        optimizer.step()

    step()
    model.germinate("blocks.1", "norm")
    step()
    seed = model.slots["blocks.1"].seed
    assert seed is not None
    expected = torch.nn.utils.get_total_norm([p.grad for p in seed.parameters() if p.grad is not None])
    _, found = watch.take()
    assert set(found) == {"blocks.0", "blocks.1"}
    assert found["blocks.1"].norm == pytest.approx(float(expected), rel=1e-5)


def test_a_seed_that_comes_at_a_step_that_would_be_passed_over_is_watched() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    model = esper.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), ["0"], x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.attach(optimizer)
    watch = GradientWatch(model, optimizer, before_first=lambda: None)
    expected = []
    for step in range(3):
        if step == 1:
            model.germinate("0", "mlp_small")
        optimizer.zero_grad()
        out = model(x)
        assert isinstance(out, Tensor)
        out.square().mean().backward()
        optimizer.step()
        seed = model.slots["0"].seed
        if seed is not None:
            theirs = [p.grad for p in seed.parameters() if p.grad is not None]
            expected.append(float(torch.nn.utils.get_total_norm(theirs)))
    _, found = watch.take()
    assert found["0"].norm == pytest.approx(sum(expected) / 2, rel=1e-5)


class CallsTwice(torch.optim.Optimizer):
    """Plain descent that evaluates its closure once more than it needs to."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        for _ in range(2 if closure is not None else 0):
            closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad * group["lr"])


@pytest.mark.parametrize("kind", [torch.optim.SGD, CallsTwice])
def test_a_step_with_a_closure_is_looked_at_when_its_gradients_are_there(kind: Any) -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    seen = []
    for with_closure in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = esper.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), ["0"], x)
        optimizer = (kind if with_closure else torch.optim.SGD)(model.parameters(), lr=0.1)
        model.attach(optimizer)
        model.germinate("0", "mlp_small")
        watch = GradientWatch(model, optimizer, before_first=lambda: None)

        def closure() -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            out = model(x)  # noqa: B023
            assert isinstance(out, Tensor)
            loss = out.square().mean()
            loss.backward()
            return loss

        for epoch in range(2):
            for _ in range(1 + epoch):
                if with_closure:
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
            assert watch.unreached == []
            seen.append((watch.steps, watch.take()))
    assert seen[:2] == seen[2:]
    assert seen[0][0] == 1
    assert seen[0][1][0] is not None


def test_a_seed_that_is_not_reached_is_told_after_a_checkpoint_within_the_epoch_too() -> None:
    model = esper.wrap(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), ["0"], torch.randn(2, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    model.germinate("0", "mlp_small")
    watch = GradientWatch(model, optimizer, before_first=lambda: None)
    for step in range(3):
        for parameter in model.bare_parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if step == 1:
            state = watch.state_dict()
            watch.take()
            watch.load_state_dict(state)
    assert watch.unreached == ["0"]
