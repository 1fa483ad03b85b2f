import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.kasmina import BlueprintError, Site, WrapError, all_blueprints, forget
from esper.kasmina.blueprints.catalogue import ChannelNorm, widen
from esper.leyline import BlueprintKind, Layout, Style
from tiny import SLOT, offered, tiny_model

NAMES = (
    "norm", "attention", "depthwise", "bottleneck", "conv_small", "conv_light", "conv_heavy", "mixer", "lora",
    "lora_large", "mlp_small", "mlp", "widen",
)  # fmt: skip


def test_all_blueprints_are_there() -> None:
    assert {blueprint.name for blueprint in all_blueprints()} == set(NAMES)


_CONVOLUTIONS = ("depthwise", "bottleneck", "conv_small", "conv_light", "conv_heavy")
_POINTWISE = ("norm", "lora", "lora_large")


@pytest.mark.parametrize(
    ("layout", "menu"),
    [
        (Layout.IMAGE, ("attention", *_CONVOLUTIONS, "mixer", *_POINTWISE, "widen")),
        (Layout.SERIES, ("attention", *_CONVOLUTIONS, "mixer", *_POINTWISE, "widen")),
        (Layout.TOKENS, ("attention", "depthwise", *_POINTWISE, "mlp_small", "mlp", "widen")),
        (Layout.FLAT, (*_POINTWISE, "mlp_small", "mlp", "widen")),
    ],
)
def test_menus_are_those_that_shipped_controllers_chose_from(layout: Layout, menu: tuple[str, ...]) -> None:
    assert tuple(tiny_model(layout).slots[SLOT].blueprints) == menu


def test_every_layout_has_several_kinds() -> None:
    for layout in Layout:
        kinds = {b.kind for b in all_blueprints() if layout in b.layouts}
        assert len(kinds) >= 3, layout


COUNTED = ((Style.LINEAR_ADD, 1), (Style.LINEAR_ADD, 3), (Style.GATE, 8))
"""What the fast tests count: a gate's cost is all that a style adds, whatever the width."""


@pytest.mark.parametrize(
    ("style", "width"),
    [
        pytest.param(style, width, marks=[] if (style, width) in COUNTED else pytest.mark.slow)
        for style in Style
        for width in (1, 3, 8)
    ],
)
@pytest.mark.parametrize("layout", Layout)
def test_the_cost_on_the_card_is_the_cost(layout: Layout, width: int, style: Style) -> None:
    for card in tiny_model(layout, width).slots[SLOT].cards:
        model = tiny_model(layout, width)
        bare = sum(p.numel() for p in model.parameters())
        model.germinate(SLOT, card.name, style=style)
        gate = width + 1 if style is Style.GATE else 0
        added = sum(p.numel() for p in model.parameters()) - bare
        assert added == card.parameters + gate == model.added_parameters, card.name


def test_known_costs() -> None:
    """By hand, for a series of 8 channels and 11 positions; every seed has a scale of 8."""
    costs = {card.name: card.parameters - 8 for card in tiny_model(Layout.SERIES, 8).slots[SLOT].cards}
    assert costs == {
        "norm": 0,
        "attention": (8 * 2 + 2) + (2 * 8 + 8),
        "depthwise": (8 * 3 + 8) + (8 * 8 + 8),
        "bottleneck": (8 * 2 + 2) + (2 * 2 * 3 + 2) + (2 * 8 + 8),
        "conv_small": (8 * 4 * 3 + 4) + (4 * 8 + 8),
        "conv_light": 8 * 8 * 3 + 8,
        "conv_heavy": 2 * (8 * 8 * 3 + 8),
        "mixer": 11 * 11 + 11,
        "lora": 2 * 8 * 4,
        "lora_large": 2 * 8 * 8,
        "widen": 8 * 8 * 3 + 8,
    }


def test_a_blueprint_of_ones_own() -> None:
    @esper.blueprint("shift", layouts=["flat"])
    def shift(site: Site) -> nn.Module:
        return nn.Linear(site.channels, site.channels)

    try:
        model = tiny_model(Layout.FLAT)
        assert "shift" in model.slots[SLOT].blueprints
        assert "shift" not in tiny_model(Layout.IMAGE).slots[SLOT].blueprints
        model.germinate(SLOT, "shift")
        assert model.added_parameters == 3 * 3 + 3 + 3
    finally:
        forget("shift")


def test_the_same_definition_again_replaces_and_another_is_refused() -> None:
    def register(kind: BlueprintKind) -> None:
        @esper.blueprint("twice", layouts=["flat"], kind=kind)
        def twice(site: Site) -> nn.Module:
            return nn.Linear(site.channels, site.channels)

    try:
        register(BlueprintKind.OTHER)
        register(BlueprintKind.NORM)
        assert [b.kind for b in all_blueprints() if b.name == "twice"] == [BlueprintKind.NORM]
        with pytest.raises(BlueprintError, match="'twice' is registered already by"):
            esper.blueprint("twice", layouts=["flat"])(lambda site: nn.Linear(site.channels, site.channels))
    finally:
        forget("twice")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda width: nn.Linear(width, width + 1),
            r"gave shape \(2, 4\) for an activation of shape \(2, 3\)",
        ),
        (
            lambda width: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, width)),
            "changes its input in place",
        ),
        (lambda width: width, "must return an nn.Module, not int"),
        (lambda width: nn.Sequential(nn.Linear(width, width), nn.Dropout()), "contains Dropout"),
        (lambda width: nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)), "contains BatchNorm1d"),
    ],
)
def test_badly_made_blueprints_are_refused_at_germination(make: object, complaint: str) -> None:
    esper.blueprint("bad", layouts=["flat"])(lambda site: make(site.channels))  # type: ignore[operator]
    try:
        model = tiny_model(Layout.FLAT)
        with pytest.raises(BlueprintError, match=f"blueprint 'bad' {complaint}"):
            model.germinate(SLOT, "bad")
        assert model.added_parameters == 0
        assert model.slots[SLOT].stage is esper.Stage.DORMANT
    finally:
        forget("bad")


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(BlueprintError, match=r"'x': 'picture' .* image, series, tokens, flat"):
        esper.blueprint("x", layouts=["picture"])
    with pytest.raises(BlueprintError, match=r"must be a list, write layouts=\['flat'\]"):
        esper.blueprint("x", layouts="flat")
    with pytest.raises(BlueprintError, match=r"'x': layouts is empty"):
        esper.blueprint("x", layouts=[])


def test_a_blueprint_for_another_layout_is_refused_with_those_that_serve() -> None:
    model = tiny_model(Layout.FLAT)
    with pytest.raises(BlueprintError, match=r"'conv_heavy' .* 'middle' \(layout flat\); offered: .*mlp"):
        model.germinate(SLOT, "conv_heavy")


def test_the_offer_can_be_narrowed() -> None:
    model = tiny_model(Layout.SERIES, blueprints=["conv_*", "norm"])
    assert set(model.slots[SLOT].blueprints) == {"conv_small", "conv_light", "conv_heavy", "norm"}
    with pytest.raises(BlueprintError, match=r"write blueprints=\['norm'\]"):
        tiny_model(Layout.SERIES, blueprints="norm")
    with pytest.raises(WrapError, match=r"no blueprint serves slot 'middle' \(layout flat\)"):
        tiny_model(Layout.FLAT, blueprints=["mixer"])
    with pytest.raises(BlueprintError, match="no blueprint matches 'konv'; registered: "):
        tiny_model(Layout.SERIES, blueprints=["konv"])


def test_a_mixer_says_what_to_do_about_another_length() -> None:
    model = tiny_model(Layout.SERIES)
    model.germinate(SLOT, "mixer")
    with pytest.raises(AssertionError, match=r"born for positions \(11,\) and met others: .* blueprints="):
        model(torch.randn(2, 3, 13))


def test_attention_is_not_offered_over_a_single_token() -> None:
    model = esper.wrap(nn.Sequential(nn.Linear(3, 3)), ["0"], torch.randn(2, 1, 3))
    assert "attention" not in model.slots["0"].blueprints


def test_channel_norm() -> None:
    h = torch.tensor([[3.0, 4.0]])
    assert torch.allclose(ChannelNorm(1)(h), h / 12.5**0.5, atol=1e-5)
    assert torch.allclose(ChannelNorm(1)(torch.tensor([[-7.0]])), torch.tensor([[-1.0]]), atol=1e-5)


def _site(module: nn.Module) -> Site:
    return Site(Layout.IMAGE, 4, (5, 5), module=module, copyable=True)


def test_widen_draws_new_weights_and_drops_batch_statistics_and_hooks() -> None:
    block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU())
    block.register_forward_hook(lambda *_: pytest.fail("the copy must not run the host's hooks"))
    block.requires_grad_(False)
    twin = widen(_site(block))
    assert isinstance(twin, nn.Sequential)
    assert [type(part) for part in twin] == [nn.Conv2d, ChannelNorm, nn.Identity, nn.ReLU]
    assert all(p.requires_grad for p in twin.parameters())
    twin_conv, conv = twin[0], block[0]
    assert isinstance(twin_conv, nn.Conv2d)
    assert isinstance(conv, nn.Conv2d)
    assert not torch.equal(twin_conv.weight, conv.weight)
    out: Tensor = twin(torch.randn(2, 3, 7, 7))
    assert out.shape == (2, 4, 5, 5)


class Dropping(nn.Module):
    """Dropout that is no module, and a gate that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.gate = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, self.training) * (1 + self.gate) + self.gate


class Gated(Dropping):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.gate


@pytest.mark.parametrize("make", [Dropping, lambda: nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)])
def test_a_widened_copy_draws_no_dropout_masks(make: object) -> None:
    block: nn.Module = make()  # type: ignore[operator]
    host = nn.Sequential(block, nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(5, 4) if isinstance(block, Dropping) else torch.randn(5, 7, 8)
    model = esper.wrap(host, ["0"], x).train()
    outputs = []
    for grow in (False, True):
        if grow:
            model.germinate("0", "widen")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])


def test_a_widened_copy_of_a_zero_gate_learns() -> None:
    x = torch.randn(5, 4)
    model = esper.wrap(nn.Sequential(Gated(), nn.Linear(8, 3)), ["0"], x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    model.germinate("0", "widen")
    seed = model.slots["0"].seed
    assert seed is not None
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.any() for p in seed.parameters())


def test_a_widened_embedding_has_dense_gradients() -> None:
    x = torch.randint(11, (3, 5))
    model = esper.wrap(
        nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Linear(4, 2)), ["0"], x, layout="tokens"
    )
    model.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    model.germinate("0", "widen")
    model.tick()
    out = model(x)
    assert isinstance(out, torch.Tensor)
    out.square().sum().backward()
    gradient = model.host.get_parameter("0.weight").grad
    assert gradient is not None
    assert gradient.is_sparse  # the host's is as it was
    model.advance("0")  # which looks at the seed's gradients


def test_widen_leaves_blocks_that_work_in_place_alone() -> None:
    """A block that changes its own input cannot be fed that input again; later in-place work is undone."""

    class Residual(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(4, 8), block

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.block(h) + h

    x = torch.randn(5, 4)
    first = Residual(nn.Sequential(nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 8)))
    assert "widen" not in esper.wrap(first, ["block"], x).slots["block"].blueprints
    later = Residual(nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2, inplace=True)))
    model = esper.wrap(later, ["block"], x)
    bare = model(x)
    model.germinate("block", "widen")
    grown = model(x)
    assert torch.equal(grown, bare)
    grown.square().mean().backward()


def test_widen_is_not_offered_where_there_is_nothing_to_copy() -> None:
    host = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model = esper.wrap(host, ["0", "1"], torch.randn(2, 3))
    assert "widen" in model.slots["0"].blueprints
    assert "widen" not in model.slots["1"].blueprints


@pytest.mark.parametrize(("layout", "blueprint"), offered())
def test_bodies_start_away_from_zero(layout: Layout, blueprint: str) -> None:
    """The scale is the only zero in the chain."""
    model = tiny_model(layout, 8)
    model.germinate(SLOT, blueprint)
    seed = model.slots[SLOT].seed
    assert seed is not None
    assert not seed.scale.any()
    assert all(p.any() for p in seed.body.parameters())
