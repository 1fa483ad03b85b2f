"""One controller, unchanged, on hosts that have nothing in common: slot counts, widths, layouts, blueprints."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.grower import Grower
from esper.kasmina import Site, forget
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import LifecycleOp
from esper.tamiyo.controller import Controller
from tiny_controllers import tiny_controller

EPOCHS = 12


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """As if it had come with Esper: trained elsewhere, on three slots and a handful of blueprints."""
    tiny_controller(1, scale=3.0).save(tmp_path / "elsewhere")
    return Controller.load(tmp_path / "elsewhere")


@pytest.fixture
def strange() -> Iterator[str]:
    @esper.blueprint("strange", layouts=["flat", "image"])
    def strange(site: Site) -> nn.Module:
        if site.layout == "image":
            return nn.Conv2d(site.channels, site.channels, 1, groups=site.channels)
        return nn.Sequential(nn.Linear(site.channels, 2), nn.GELU(), nn.Linear(2, site.channels))

    yield "strange"
    forget("strange")


HOSTS = ("one flat slot", "a deep MLP", "images", "five slots of series", "tokens")


def hosts() -> dict[str, tuple[nn.Module, list[str], Tensor, dict[str, object]]]:
    """Name -> host, slots, inputs, options; the targets are two classes."""
    draw = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    series = ConvNet(2, 2, dims=1, widths=(5, 7, 11, 5, 3), pools=(1, 2, 1, 1, 1))
    return {
        "one flat slot": (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), ["1"], rand(11, 5), {}),
        "a deep MLP": (MLP(5, 2, (13, 7, 17)), ["blocks.*"], rand(11, 5), {}),
        "images": (ConvNet(3, 2, dims=2, widths=(3, 5), pools=(1, 2)), ["blocks.*"], rand(11, 3, 8, 8), {}),
        "five slots of series": (series, ["blocks.*"], rand(11, 2, 16), {}),
        "tokens": (
            GPT(11, 7, heads=3, width=12),
            ["blocks.*"],
            torch.randint(11, (11, 7), generator=draw),
            {"causal": True},
        ),
    }


@pytest.mark.parametrize("name", HOSTS)
def test_it_runs_unchanged_anywhere(name: str, controller: Controller, strange: str) -> None:
    assert strange
    torch.manual_seed(0)
    model, slots, inputs, options = hosts()[name]
    targets = torch.arange(len(inputs)) % 2
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss() -> Tensor:
        logits = grower.model(inputs)
        assert isinstance(logits, Tensor)
        return F.cross_entropy(logits if logits.ndim == 2 else logits.mean(1), targets)

    grower = Grower(
        model,
        slots,
        optimizer=optimizer,
        example_input=inputs[:2],
        controller=controller,
        validate=lambda _: {"val_loss": float(loss())},
        generator=torch.Generator().manual_seed(3),
        epochs=EPOCHS,
        **options,  # type: ignore[arg-type]
    )
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        grower.step(train_loss=value)
    done = [decision.action.op for decision in grower.history]
    assert LifecycleOp.GERMINATE in done
    assert all(decision.probability is not None for decision in grower.history[:-1])
    assert not any(decision.notes for decision in grower.history)  # it asked for nothing illegal
    grower.model.eval()
    plain = grower.finish().eval()
    expected, found = grower.model(inputs), plain(inputs)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(found, expected)
