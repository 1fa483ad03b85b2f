import pytest
import torch
from torch import Tensor

from esper.kasmina.seed import compose_delta, drop_non_finite_gradient, finite_mask, isolate
from esper.leyline import Composition, Layout, Stage, Style
from tiny import SLOT, grow_until, tiny_input, tiny_model


def test_compositions_by_hand() -> None:
    h, d, g = torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])
    assert compose_delta(Composition.ADD, h, d, None).item() == 0.5
    assert compose_delta(Composition.MULTIPLY, h, d, None).item() == pytest.approx(2 * 0.46211716)
    assert compose_delta(Composition.GATE, h, d, g).item() == pytest.approx(0.5621765 * 0.5)


@pytest.mark.parametrize("style", Style)
def test_the_slot_composes_what_the_formula_says(style: Style) -> None:
    """y = h + a d, h (1 + a tanh d), h + a sigmoid(g) d, with a trained scale and alpha between 0 and 1."""
    model, x = tiny_model(Layout.FLAT, 8), tiny_input(Layout.FLAT)
    grow_until(model, SLOT, Stage.BLENDING, "mlp", style=style)
    model.tick()
    slot = model.slots[SLOT]
    seed, alpha = slot.seed, slot.alpha
    assert seed is not None
    assert 0 < alpha < 1
    with torch.no_grad():
        seed.scale.copy_(torch.linspace(-1, 1, 8))
        host = model.host
        assert isinstance(host.middle, torch.nn.Sequential)
        h = host.middle[1](host.middle[0](host.first(x)))  # type: ignore[operator]
        d = seed.body(h) * seed.scale
        if style is Style.MULTIPLY:
            y = h * (1 + alpha * torch.tanh(d))
        elif style is Style.GATE:
            assert seed.gate is not None
            y = h + alpha * torch.sigmoid(seed.gate(h)) * d
        else:
            y = h + alpha * d
        assert torch.allclose(host.last(y), _call(model, x), atol=1e-6)  # type: ignore[operator]


def _call(model: torch.nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    assert isinstance(out, Tensor)
    return out


def test_isolation_passes_the_gradient_and_adds_the_penalty() -> None:
    """dL/dh = w; dL/d delta = w + penalty delta / numel."""
    h = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    delta = torch.tensor([[0.5, -1.0], [2.0, 0.0]], requires_grad=True)
    w = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    y = isolate(h, delta, 8.0)
    assert torch.equal(y, h)
    (y * w).sum().backward()
    assert h.grad is not None
    assert torch.equal(h.grad, w)
    assert delta.grad is not None
    assert torch.equal(delta.grad, w + 8.0 * delta.detach() / 4)


def test_isolation_matches_the_formula_through_autograd() -> None:
    h = torch.randn(3, 5, requires_grad=True)
    delta = torch.randn(3, 5, requires_grad=True)

    def gradients(y: Tensor, extra: Tensor | float) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y.sin().sum() + extra, (h, delta))

    ours = gradients(isolate(h, delta, 10.0), 0.0)
    written_out = gradients(h + (delta - delta.detach()), 10.0 / 2 * delta.square().mean())
    for one, other in zip(ours, written_out, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_isolation_survives_in_place_hosts() -> None:
    delta = torch.randn(4, 3)
    leaf = torch.randn(4, 3, requires_grad=True)
    y = isolate(leaf * 1.0, delta.requires_grad_(), 1.0)
    torch.relu_(y).sum().backward()


def test_finite_mask() -> None:
    delta = torch.zeros(4, 3, 2)
    delta[1, 2, 0] = float("nan")
    delta[2, 0, 1] = float("-inf")
    delta[3, 0, 0], delta[3, 0, 1] = float("inf"), float("-inf")
    assert finite_mask(delta, (1, 2)).flatten().tolist() == [True, False, False, False]
    assert finite_mask(delta, (2,)).squeeze(-1).tolist()[1] == [True, True, False]


def test_half_precision_does_not_overflow_the_check() -> None:
    assert finite_mask(torch.full((1, 1000), 60000.0, dtype=torch.float16), (1,)).item()


def test_non_finite_gradients_are_dropped() -> None:
    x = torch.ones(4, requires_grad=True)
    scale = torch.tensor([2.0, float("nan"), float("inf"), float("-inf")])
    (drop_non_finite_gradient(x) * scale).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 0.0, 0.0]
