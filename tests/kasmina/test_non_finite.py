"""A seed that puts out NaN or Inf: the host's output and gradients are unaffected, its update is skipped."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, forget
from esper.kasmina.blueprints import Site
from esper.leyline import Layout, LifecycleOp, NonFiniteSeedOutput, Stage
from tiny import BATCH, SLOT, Recorder, grow_until, tiny_host, tiny_input


class Exploding(nn.Module):
    """Inf for the samples that `broken` marks."""

    broken = torch.zeros(BATCH, dtype=torch.bool)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, h: Tensor) -> Tensor:
        blow_up = torch.where(self.broken[: len(h), None], float("inf"), 1.0)
        return h * self.weight * blow_up


@pytest.fixture
def model() -> Iterator[GrowingModel]:
    @esper.blueprint("exploding", layouts=["flat"])
    def exploding(site: Site) -> nn.Module:
        return Exploding(site.channels)

    Exploding.broken = torch.zeros(BATCH, dtype=torch.bool)
    yield esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT), events=Recorder())
    forget("exploding")


def _train(model: GrowingModel, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    out.square().mean().backward()
    optimizer.step()
    return out.detach()


def _bare(model: GrowingModel) -> tuple[Tensor, list[Tensor]]:
    """Output and gradients of the host alone."""
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    gradients = torch.autograd.grad(out.square().mean(), list(model.host.parameters()))
    return out.detach(), list(gradients)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_the_host_is_unaffected_and_an_event_says_so(model: GrowingModel, stage: Stage) -> None:
    output, gradients = _bare(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    grow_until(model, SLOT, stage, "exploding")
    if stage is Stage.BLENDING:
        model.tick()
    slot = model.slots[SLOT]
    assert slot.seed is not None
    Exploding.broken[:] = True
    before = {name: p.detach().clone() for name, p in slot.seed.named_parameters()}
    with torch.no_grad():
        slot.seed.scale.fill_(1.0)
        before["scale"] = slot.seed.scale.clone()
    optimizer.zero_grad()
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    assert torch.equal(out, output)
    out.square().mean().backward()
    for parameter, expected in zip(model.host.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected)
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in slot.seed.named_parameters())
    assert LifecycleOp.ADVANCE not in model.legal_operations()[SLOT].operations
    model.tick()
    sink = model._events
    assert isinstance(sink, Recorder)
    assert sink.events.count(NonFiniteSeedOutput(SLOT, stage)) == 1


def test_only_the_broken_samples_lose_the_seed(model: GrowingModel) -> None:
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        bare = model.host(tiny_input(Layout.FLAT))
        seed.scale.fill_(1.0)
        whole = model(tiny_input(Layout.FLAT))
        Exploding.broken[2] = True
        grown = model(tiny_input(Layout.FLAT))
    assert isinstance(grown, Tensor)
    assert isinstance(whole, Tensor)
    others = [0, 1, 3, 4]
    assert torch.equal(grown[others], whole[others])
    assert torch.equal(grown[2], bare[2])
    assert not torch.equal(whole[2], bare[2])


def test_the_seed_goes_on_once_it_is_finite_again(model: GrowingModel) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    model.germinate(SLOT, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    Exploding.broken[:] = True
    _train(model, optimizer)
    assert not seed.scale.any()
    Exploding.broken[:] = False
    _train(model, optimizer)
    assert seed.scale.all()
    model.tick()
    _train(model, optimizer)
    model.tick()
    sink = model._events
    assert isinstance(sink, Recorder)
    assert sum(isinstance(event, NonFiniteSeedOutput) for event in sink.events) == 1


def test_looking_leaves_no_record(model: GrowingModel) -> None:
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(1.0)
    Exploding.broken[:] = True
    with torch.no_grad(), model.override_alpha({SLOT: torch.ones(BATCH)}):
        out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    assert out.isfinite().all()
    assert not model.slots[SLOT].non_finite.any()
