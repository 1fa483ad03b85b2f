"""A compiled wrapped model honours growth."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, tiny_host, tiny_input

# torch warns about its own internals while it compiles
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _live_through(backend: str, blueprint: str, style: Style) -> None:
    """Outputs and gradients agree with the plain model at every stage of a life."""
    x = tiny_input(Layout.FLAT)
    plain = esper.wrap(tiny_host(Layout.FLAT, 8), [SLOT], x)
    twin = esper.wrap(tiny_host(Layout.FLAT, 8), [SLOT], x)
    compiled = torch.compile(twin, backend=backend)

    def check() -> Tensor:
        outputs = []
        for model, call in ((plain, plain), (twin, compiled)):
            model.zero_grad()
            out = call(x)
            assert isinstance(out, Tensor)
            (out - 1).square().mean().backward()
            outputs.append(out.detach())
        assert torch.allclose(outputs[0], outputs[1], atol=1e-6)
        for ours, theirs in zip(plain.parameters(), twin.parameters(), strict=True):
            if ours.grad is None:
                assert theirs.grad is None
            else:
                assert theirs.grad is not None
                assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
        return outputs[1]

    bare = check()
    for model in (plain, twin):
        model.germinate(SLOT, blueprint, style=style)
        _give_it_a_voice(model)
        model.tick()
    assert torch.equal(check(), bare)
    grown = [bare]
    for model in (plain, twin):
        model.advance(SLOT)
    for _ in range(3):
        plain.tick()
        twin.tick()
        grown.append(check())
        assert not torch.allclose(grown[-1], grown[-2])
    for model in (plain, twin):
        model.fossilize(SLOT)
    assert torch.allclose(check(), grown[-1], atol=1e-6)
    assert twin.slots[SLOT].stage is Stage.FOSSILIZED


def _give_it_a_voice(model: GrowingModel) -> None:
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)


@pytest.mark.parametrize(
    "style",
    [
        Style.LINEAR_ADD,
        Style.GATE,
        *(pytest.param(style, marks=pytest.mark.slow) for style in (Style.MULTIPLY, Style.SIGMOID_ADD)),
    ],
)
def test_growth_after_compiling(style: Style) -> None:
    _live_through("aot_eager", "mlp", style)


@pytest.mark.slow
@pytest.mark.parametrize("blueprint", ["mlp", "widen"])
def test_growth_after_compiling_with_inductor(blueprint: str) -> None:
    _live_through("inductor", blueprint, Style.GATE)


def test_alpha_moves_without_recompiling() -> None:
    x = tiny_input(Layout.FLAT)
    model = esper.wrap(tiny_host(Layout.FLAT, 8), [SLOT], x)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, backend=counter)
    assert isinstance(compiled, nn.Module)
    model.germinate(SLOT, "mlp", tempo=8)
    model.tick()
    model.report(SLOT, gradients_finite=True)
    model.advance(SLOT)
    model.tick()
    compiled(x)
    graphs = counter.frame_count
    for _ in range(5):
        model.tick()
        compiled(x)
    assert graphs > 0
    assert counter.frame_count == graphs


def test_a_compiled_model_can_be_asked_through_its_wrapper() -> None:
    model = esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT))
    compiled = torch.compile(model, backend="eager")
    getattr(compiled, "germinate")(SLOT, "mlp")  # noqa: B009
    assert model.slots[SLOT].stage is Stage.TRAINING
