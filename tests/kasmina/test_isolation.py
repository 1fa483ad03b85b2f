"""SPEC F3: a seed in TRAINING learns from the task's gradient and the host does not notice."""

import copy

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, in_styles, tiny_host, tiny_input, tiny_model


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    out = model(x)
    assert isinstance(out, Tensor)
    return (out - torch.linspace(-1, 1, out.numel()).view_as(out)).square().mean()


def _seed_with_output(model: GrowingModel) -> nn.Module:
    """Give the seed a scale, so that its output is not zero."""
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    return seed


@pytest.mark.parametrize(("layout", "blueprint", "style"), in_styles())
def test_host_forward_and_gradients_are_the_bare_hosts(layout: Layout, blueprint: str, style: Style) -> None:
    bare, x = tiny_host(layout), tiny_input(layout)
    model = tiny_model(layout)
    model.germinate(SLOT, blueprint, style=style)
    seed = _seed_with_output(model)
    expected, loss = _loss(bare, x), _loss(model, x)
    assert torch.equal(loss, expected)
    expected.backward()
    loss.backward()
    for ours, theirs in zip(model.bare_parameters(), bare.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    assert all(p.grad is not None and p.grad.any() for p in seed.parameters())


def test_a_whole_isolated_epoch_leaves_the_host_bit_for_bit() -> None:
    x = tiny_input(Layout.SERIES)
    trained = []
    for grow in (False, True):
        model = tiny_model(Layout.SERIES)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.attach(optimizer)
        if grow:
            model.germinate(SLOT, "conv_heavy")
            model.tick()
        for _ in range(10):
            optimizer.zero_grad()
            _loss(model, x).backward()
            optimizer.step()
        trained.append(copy.deepcopy(model.host.state_dict()))
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_the_isolated_seed_learns_something_useful() -> None:
    """Trained behind a still host, then switched on, the seed lowers the loss; without the penalty's pull it
    would only run away along the gradient."""
    x = tiny_input(Layout.FLAT, batch=64)
    model = esper.wrap(tiny_host(Layout.FLAT, 8), [SLOT], x)
    model.germinate(SLOT, "mlp")
    seed = model.slots[SLOT].seed
    assert seed is not None
    before = _loss(model, x).item()
    optimizer = torch.optim.Adam(seed.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        _loss(model, x).backward()
        optimizer.step()
    with model.override_alpha({SLOT: torch.ones(64)}):
        after = _loss(model, x).item()
    assert after < before - 0.02 * before


def test_the_seed_fits_the_negative_functional_gradient() -> None:
    """With penalty c, the optimum of <g, d> + c/2 mean(d^2) is d = -numel g / c."""
    linear = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.8, -0.3], [0.2, 0.9]]))
    model = esper.wrap(nn.Sequential(linear), ["0"], torch.eye(7, 2), isolation_penalty=4.0)
    model.germinate("0", "lora_large")
    seed = model.slots["0"].seed
    assert seed is not None
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([[0.3, -0.2], [0.1, 0.4]])
    g = (linear(x) @ weights).detach() / 7  # a gradient that is linear in h, which lora_large can fit exactly
    optimizer = torch.optim.Adam(seed.parameters(), lr=0.02)
    for _ in range(1500):
        optimizer.zero_grad()
        out = model(x)
        assert isinstance(out, Tensor)
        (out * g).sum().backward()
        optimizer.step()
    with torch.no_grad():
        fitted, _ = seed(linear(x), (), {})
    assert torch.allclose(fitted, -14 * g / 4.0, atol=1e-3)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_penalty_follows_a_grad_scaler(enabled: bool) -> None:
    """After unscaling, the seed's gradients are those of a run without a scaler."""
    x, gradients = tiny_input(Layout.FLAT), []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=512.0, enabled=enabled)):
        model = tiny_model(Layout.FLAT)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.attach(optimizer, scaler=scaler)
        model.germinate(SLOT, "mlp")
        seed = _seed_with_output(model)
        loss = _loss(model, x)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        gradients.append([p.grad for p in seed.parameters()])
    for plain, unscaled in zip(*gradients, strict=True):
        assert plain is not None
        assert unscaled is not None
        assert torch.allclose(plain, unscaled, rtol=1e-5, atol=1e-8)


def test_the_isolated_seed_is_not_computed_without_gradients() -> None:
    model, x = tiny_model(Layout.FLAT), tiny_input(Layout.FLAT)
    model.germinate(SLOT, "mlp")
    seed = model.slots[SLOT].seed
    assert seed is not None
    calls: list[int] = []
    seed.body.register_forward_hook(lambda *_: calls.append(1))
    with torch.inference_mode():
        model(x)
    assert not calls
    model(x)
    assert calls == [1]
    assert model.slots[SLOT].stage is Stage.TRAINING


def test_maximising_the_negative_loss_is_minimising_the_loss() -> None:
    """The seed's penalty holds it back in both: a sign that is wrong sends it away without an end."""
    x, grown = tiny_input(Layout.FLAT), []
    for sign in (1.0, -1.0):
        model = tiny_model(Layout.FLAT)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=sign < 0.0)
        model.attach(optimizer)
        model.germinate(SLOT, "mlp")
        _seed_with_output(model)
        for _ in range(5):
            optimizer.zero_grad()
            (sign * _loss(model, x)).backward()
            optimizer.step()
        grown.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *grown))
