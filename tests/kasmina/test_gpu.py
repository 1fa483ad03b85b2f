"""What only a CUDA device can show. Run with `pytest -m gpu` where there is one."""

import pytest
import torch
from torch import Tensor

import esper
from cuda_waits import waits
from esper.kasmina import GrowingModel
from esper.kasmina.hosts import ConvNet
from esper.leyline import Layout, NonFiniteSeedOutput, Stage, Style
from tiny import SLOT, Recorder, grow_until, offered, tiny_input, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _call(model: GrowingModel, x: Tensor) -> Tensor:
    out = model(x)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE])
@pytest.mark.parametrize(("layout", "blueprint"), offered())
def test_identity_at_birth_and_the_same_seed_as_on_the_cpu(
    layout: Layout, blueprint: str, style: Style
) -> None:
    model, x = tiny_model(layout, 8).cuda(), tiny_input(layout).cuda()
    on_cpu = tiny_model(layout, 8)
    bare = {bf16: _autocast(model, x, bf16) for bf16 in (False, True)}
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    model.germinate(SLOT, blueprint, style=style)
    on_cpu.germinate(SLOT, blueprint, style=style)
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], torch.cuda.get_rng_state())
    each = 1.0 if layout is Layout.ROWS else torch.ones(len(x), device="cuda")  # rows are nobody's
    for bf16, expected in bare.items():
        assert torch.equal(_autocast(model, x, bf16), expected)
        with model.override_alpha({SLOT: each}):
            assert torch.equal(_autocast(model, x, bf16), expected)
    for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
        assert ours.is_cuda
        assert torch.equal(ours.cpu(), theirs)


def _autocast(model: GrowingModel, x: Tensor, bf16: bool) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        return _call(model, x)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_training_a_seed_never_waits_for_the_device() -> None:
    """Forward, backward and the guarded optimiser step in every stage, with hidden syncs made errors."""
    x = torch.randn(8, 3, 16, 16, device="cuda")
    model = esper.wrap(ConvNet(3, 10, dims=2).cuda(), ["blocks.*"], x)
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    model.attach(optimizer)
    for slot, stage in (("blocks.0", Stage.TRAINING), ("blocks.1", Stage.HOLDING)):
        grow_until(model, slot, stage, "conv_light", style=Style.GATE)
    for mode in ("default", "error"):  # the first round creates optimiser state
        with waits(mode):
            optimizer.zero_grad()
            _call(model, x).square().mean().backward()
            optimizer.step()


def test_a_captured_forward_follows_alpha() -> None:
    x = torch.randn(8, 3, 16, 16, device="cuda")
    model = esper.wrap(ConvNet(3, 10, dims=2).cuda(), ["blocks.*"], x)
    grow_until(model, "blocks.1", Stage.BLENDING, "conv_light", tempo=5)
    model.tick()
    seed = model.slots["blocks.1"].seed
    assert seed is not None
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        seed.scale.fill_(0.5)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _call(model, x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            captured = _call(model, x)
        for _ in range(4):
            graph.replay()
            assert torch.allclose(captured, _call(model, x), atol=1e-6)
            before = captured.clone()
            model.tick()
            graph.replay()
            assert not torch.equal(captured, before)


def test_a_non_finite_seed_is_skipped_without_a_sync() -> None:
    sink, x = Recorder(), tiny_input(Layout.FLAT).cuda()
    model = tiny_model(Layout.FLAT, 8, events=sink).cuda()
    bare = _call(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(float("inf"))
    body = [p.detach().clone() for p in seed.body.parameters()]
    out = _call(model, x)
    assert torch.equal(out, bare)
    out.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.bare_parameters())
    optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(seed.body.parameters(), body, strict=True))
    model.tick()
    assert NonFiniteSeedOutput(SLOT, Stage.HOLDING) in sink.events


def test_the_penalty_follows_a_grad_scaler_on_the_device() -> None:
    x, gradients = tiny_input(Layout.FLAT).cuda(), []
    for scaler in (None, torch.amp.GradScaler("cuda", init_scale=1024.0)):
        model = tiny_model(Layout.FLAT, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.attach(optimizer, scaler=scaler)
        model.germinate(SLOT, "mlp")
        seed = model.slots[SLOT].seed
        assert seed is not None
        with torch.no_grad():
            seed.scale.fill_(0.5)
        loss = _call(model, x).square().mean()
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        gradients.append([p.grad for p in seed.parameters()])
    for plain, unscaled in zip(*gradients, strict=True):
        assert plain is not None
        assert unscaled is not None
        assert torch.allclose(plain, unscaled, rtol=1e-4, atol=1e-7)
