import math

import pytest
import torch
import torch.nn.functional as F

import esper
from esper.kasmina.hosts import GPT, MLP, ConvNet, ResNet
from esper.kasmina.hosts.resnet import ResidualBlock
from esper.leyline import Layout


def test_the_host_of_the_benchmark_has_1426_parameters() -> None:
    host = ConvNet(1, 10, dims=1, widths=(8, 16, 16), pools=(1, 2, 2))
    assert sum(p.numel() for p in host.parameters()) == 1426
    model = esper.wrap(host, ["blocks.*"], torch.randn(2, 1, 40))
    assert [slot.site.positions for slot in model.slots.values()] == [(40,), (20,), (10,)]


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
@pytest.mark.parametrize("dims", [1, 2])
def test_conv_hosts(dims: int, norm: str) -> None:
    host = ConvNet(3, 7, dims=dims, widths=(5, 6), pools=(2, 1), kernel=5, norm=norm)  # type: ignore[arg-type]
    x = torch.randn(2, 3, *([13] * dims))
    assert host(x).shape == (2, 7)
    model = esper.wrap(host, ["blocks.*"], x)
    layout = Layout.SERIES if dims == 1 else Layout.IMAGE
    assert [(slot.layout, slot.site.channels) for slot in model.slots.values()] == [(layout, 5), (layout, 6)]
    assert model.slots["blocks.0"].site.positions == (6,) * dims


def test_conv_host_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match=r"widths \(4, 4\) and pools \(1,\)"):
        ConvNet(1, 2, dims=1, widths=(4, 4), pools=(1,))
    with pytest.raises(ValueError, match="dims must be 1"):
        ConvNet(1, 2, dims=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="norm must be"):
        ConvNet(1, 2, dims=1, norm="layer")  # type: ignore[arg-type]


def test_the_residual_host_has_175k_parameters_and_a_slot_behind_each_block() -> None:
    host = ResNet(3, 10)
    assert sum(p.numel() for p in host.parameters()) == 175_258
    x = torch.randn(2, 3, 32, 32)
    assert host(x).shape == (2, 10)
    model = esper.wrap(host, ["blocks.*"], x)
    sites = [slot.site for slot in model.slots.values()]
    assert [site.channels for site in sites] == [16, 16, 32, 32, 64, 64]
    assert [site.positions for site in sites] == [(32, 32)] * 2 + [(16, 16)] * 2 + [(8, 8)] * 2


def test_a_residual_block_adds_what_goes_around_it() -> None:
    host = ResNet(2, 3, widths=(5, 7), depth=1).eval()
    first, second = host.blocks
    assert isinstance(first, ResidualBlock)
    assert isinstance(second, ResidualBlock)
    with torch.no_grad():
        for block in (first, second):
            for parameter in block.body[-1].parameters():
                parameter.zero_()
        x = torch.randn(2, 5, 11, 11)
        assert torch.equal(first(x), x.relu())
        assert torch.equal(second(x), second.around(x).relu())
        assert second(x).shape == (2, 7, 6, 6)
    with pytest.raises(ValueError, match=r"widths \(\) and depth 2 must be at least one stage"):
        ResNet(1, 2, widths=())


def test_mlp_host() -> None:
    host = MLP(12, 3, widths=(5, 7))
    assert host(torch.randn(2, 3, 4)).shape == (2, 3)
    model = esper.wrap(host, ["blocks.*"], torch.randn(2, 12))
    assert [slot.site.channels for slot in model.slots.values()] == [5, 7]


def test_gpt_starts_at_the_uniform_loss_and_is_tied() -> None:
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        host = GPT(29, 16, layers=3)
        tokens = torch.randint(29, (8, 16))
    loss = F.cross_entropy(host(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert loss.item() == pytest.approx(math.log(29), abs=0.05)
    assert host.head.weight is host.token_embedding.weight
    project = host.blocks[0].get_parameter("attention.project.weight")
    assert project.std().item() == pytest.approx(0.02 / math.sqrt(6), rel=0.1)
    with pytest.raises(AssertionError, match="tokens do not fit the context of 16"):
        host(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="width 10 must be a multiple of heads 4"):
        GPT(29, 16, width=10)
