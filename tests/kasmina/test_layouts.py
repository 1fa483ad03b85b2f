"""Which axis is the batch, which the channels: read from modules and numbers, asked of the host, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, WrapError, forward_coalitions
from esper.kasmina.hosts import GPT, MLP
from esper.leyline import Layout
from tiny import SLOT, tiny_input, tiny_model


@pytest.mark.parametrize("layout", Layout)
def test_layouts_are_read_from_the_module(layout: Layout) -> None:
    slot = tiny_model(layout, 8).slots[SLOT]
    assert (slot.layout, slot.site.channels) == (layout, 8)


class Doubled(nn.Module):
    """Nothing in it shows which axis holds the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, x), 1)


def test_an_untelling_module_needs_a_layout() -> None:
    host, x = nn.Sequential(nn.Identity(), Doubled()), torch.randn(2, 2, 7)
    with pytest.raises(
        WrapError, match=r"slot '1' puts out shape \(2, 4, 7\).*pass layout=\{'1': 'series'\}"
    ):
        esper.wrap(host, ["1"], x)
    for asked, channels in (("series", 4), ("tokens", 7)):
        for given in (asked, {"1": asked}):
            slot = esper.wrap(host, ["1"], x, layout=given).slots["1"]
            assert (slot.layout, slot.site.channels) == (asked, channels)
            slot.hook.remove()


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        ("image", r"layout 'image' does not fit slot '0' .*fitting: series, tokens, time_major, rows"),
        ("grid", r"layout: 'grid' is not a valid Layout; choose from image"),
        ({"2": "series"}, r"layout names 2, not among the slots 0"),
    ],
)
def test_layouts_that_do_not_fit(layout: object, complaint: str) -> None:
    with pytest.raises(WrapError, match=complaint):
        esper.wrap(nn.Sequential(nn.Conv1d(3, 4, 1)), ["0"], torch.randn(2, 3, 7), layout=layout)  # type: ignore[arg-type]


def _layouts(host: nn.Module, slots: list[str], x: object) -> list[str]:
    return [slot.layout for slot in esper.wrap(host, slots, x).slots.values()]  # type: ignore[arg-type]


def test_shapes_that_are_refused() -> None:
    with pytest.raises(WrapError, match=r"puts out shape \(2,\); a slot needs 2 axes or more"):
        esper.wrap(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), ["1"], torch.randn(2, 3))
    with pytest.raises(WrapError, match=r"the axis of its channels \(rows\) grows with the batch"):
        esper.wrap(nn.Sequential(nn.Linear(3, 4), Transposed()), ["1"], torch.randn(2, 3))
    with pytest.raises(WrapError, match=r"puts out \(1, 4, 14\) and its axis 0 is not the batch.*'series'"):
        esper.wrap(nn.Sequential(Joined(), nn.Conv1d(3, 4, 1)), ["1"], torch.randn(2, 3, 7))


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class Joined(nn.Module):
    """(batch, channel, position) -> (1, channel, batch x position)"""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).flatten(1)[None]


# Where the channels are


def test_four_and_five_axes_are_read_by_what_stands_inside() -> None:
    image, volume = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 4, 7)
    assert _layouts(nn.Sequential(nn.Conv2d(3, 4, 1)), ["0"], image) == ["image"]
    assert _layouts(nn.Sequential(nn.Linear(7, 4)), ["0"], image) == ["image_last"]
    assert _layouts(nn.Sequential(nn.Conv3d(3, 4, 1)), ["0"], volume) == ["volume"]
    assert _layouts(nn.Sequential(nn.LayerNorm(7)), ["0"], volume) == ["volume_last"]
    assert _layouts(nn.Sequential(nn.Linear(7, 4)), ["0"], torch.randn(2, 3, 2, 3, 2, 7)) == ["rows"]


class NamedLayerNorm(nn.LayerNorm):
    """Over the second axis, whatever the class is called."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (2, 6, 5, 6), (2, 6, 4, 5, 6), (2, 6, 6)])
@pytest.mark.parametrize("norm", [nn.LayerNorm, NamedLayerNorm])
def test_norms_are_read_by_their_numbers(norm: type[nn.LayerNorm], shape: tuple[int, ...]) -> None:
    """Also in a square, where the width fits both ways, and with a scale and a shift that have learned."""
    first = norm is NamedLayerNorm
    if not first and shape == (2, 6, 5, 7):
        shape = (2, 7, 5, 6)
    layer = norm(6)
    nn.init.uniform_(layer.weight, 0.5, 2.0)
    nn.init.normal_(layer.bias)
    slot = esper.wrap(nn.Sequential(layer), ["0"], torch.randn(shape)).slots["0"]
    assert slot.layout.channel_axis == (1 if first else -1)
    assert slot.channels == 6


def test_the_follower_and_the_forerunner_are_asked() -> None:
    x = torch.randn(2, 3, 7)
    assert _layouts(nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU()), ["1"], x) == ["series"]
    assert _layouts(nn.Sequential(nn.Linear(7, 4), nn.Dropout(), nn.ReLU()), ["2"], x) == ["tokens"]
    assert _layouts(nn.Sequential(Doubled(), nn.ReLU(), nn.Conv1d(6, 4, 1)), ["0", "1"], x) == ["series"] * 2
    assert _layouts(nn.Sequential(Doubled(), nn.Linear(7, 4)), ["0"], x) == ["tokens"]
    square = torch.randn(2, 4, 8)
    assert _layouts(nn.Sequential(Doubled(), nn.Tanh(), nn.Linear(8, 4)), ["0"], square) == ["tokens"]


class Scaled(nn.Module):
    """Learns a vector of its own, and nothing of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_module_of_its_own_kind_is_read_by_its_widths() -> None:
    assert _layouts(nn.Sequential(Scaled()), ["0"], torch.randn(2, 7, 8)) == ["tokens"]
    assert _layouts(nn.Sequential(Scaled()), ["0"], torch.randn(2, 7, 5, 8)) == ["image_last"]
    with pytest.raises(WrapError, match="nothing shows which axis holds the channels"):
        _layouts(nn.Sequential(Scaled()), ["0"], torch.randn(2, 8, 8))


class Folded(nn.Module):
    """Shows nothing of what its axes mean."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.shape)


def test_the_channels_are_not_on_an_axis_of_one_entry() -> None:
    x = torch.randn(2, 7)
    assert _layouts(nn.Sequential(Folded((7, 1))), ["0"], x) == ["series"]
    assert _layouts(nn.Sequential(Folded((1, 7))), ["0"], x) == ["tokens"]
    with pytest.raises(WrapError, match="nothing shows which axis holds the channels"):
        _layouts(nn.Sequential(Folded((1, 1))), ["0"], x[:, :1])


# Where the batch is


class TimeFirst(nn.Module):
    """Takes the batch first and works time first."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.inner: nn.Module = nn.LSTM(16, 16) if recurrent else nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x.transpose(0, 1))
        return self.head((out[0] if isinstance(out, tuple) else out).transpose(0, 1))


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_host_that_transposes_inside_has_time_major_slots(recurrent: bool) -> None:
    """8 positions are a multiple of a batch of 4; one sample more shows which axis is the batch."""
    model = esper.wrap(TimeFirst(recurrent), ["inner", "head"], torch.randn(4, 8, 16))
    assert [slot.layout for slot in model.slots.values()] == ["time_major", "tokens"]
    site = model.slots["inner"].site
    assert (site.positions, site.samples_in_order) == ((8,), True)


def test_an_example_that_is_time_first_has_time_major_slots() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for host, slot in ((encoder, "layers.0.linear2"), (nn.Sequential(nn.LSTM(16, 4)), "0")):
        model = esper.wrap(host, [slot], torch.randn(8, 4, 16))
        site = model.slots[slot].site
        assert (site.layout, site.positions, site.samples_in_order) == ("time_major", (8,), False)


class Rows(nn.Module):
    """A linear layer over rows that are made of a batch as asked."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.linear = make, nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(self.make(x))
        return out


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.transpose(0, 1).flatten(0, 1),
        lambda x: x.flatten(0, 1)[:15],
        lambda x: x.mean(0),
        lambda x: torch.cat((x, x + 1)).mean(1),
        lambda x: x.mean(1) + torch.randn(4, 3)[: len(x)],
        lambda x: x.transpose(0, 1)[None],
    ],
    ids=["time first", "cut", "no batch", "doubled", "random", "batch third"],
)
def test_rows_that_are_not_the_samples(make: Callable[[Tensor], Tensor]) -> None:
    model = esper.wrap(Rows(make), ["linear"], torch.randn(4, 5, 3))
    slot = model.slots["linear"]
    assert slot.layout is Layout.ROWS
    assert "attention" not in slot.blueprints
    model.germinate("linear", "mlp")
    with (
        pytest.raises(ValueError, match="does not keep the samples in order: give one alpha for all"),
        model.override_alpha({"linear": torch.ones(4)}),
    ):
        model(torch.randn(4, 5, 3))


class Graph(nn.Module):
    """The mean over neighbours, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.linear(nodes)
        summed = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return self.head(summed)


def test_nodes_of_a_graph_are_rows() -> None:
    edges = torch.randint(7, (2, 20), generator=torch.Generator().manual_seed(0))
    model = esper.wrap(Graph(), ["linear", "head"], (torch.randn(7, 3), edges))
    assert [slot.layout for slot in model.slots.values()] == ["flat", "rows"]


@pytest.mark.parametrize("noise", [False, True])
def test_images_of_a_doubled_or_random_batch_grow(noise: bool) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(torch.randn_like(x) if noise else torch.cat((x, x.flip(-1))))
            return out

    model = esper.wrap(Views(), ["conv"], torch.randn(2, 3, 5, 7))
    site = model.slots["conv"].site
    assert (site.layout, site.samples_in_order) == ("image", False)
    model.eval().germinate("conv", "conv_light")
    on: frozenset[str] = frozenset({"conv"})
    assert forward_coalitions(model, torch.randn(2, 3, 5, 7), [on, frozenset()]).shape[0] == 2


def test_a_square_activation_does_not_tell() -> None:
    class Transposing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.transpose(1, 2)).transpose(1, 2)

    assert _layouts(nn.Sequential(Transposing()), ["0"], torch.randn(2, 7, 8)) == ["tokens"]
    with pytest.raises(WrapError, match="pass layout="):
        esper.wrap(nn.Sequential(Transposing()), ["0"], torch.randn(2, 8, 8))
    followed = nn.Sequential(Transposing(), nn.Linear(8, 2))
    assert _layouts(followed, ["0"], torch.randn(2, 8, 8)) == ["tokens"]
    assert (
        esper.wrap(nn.Sequential(nn.Conv1d(8, 8, 1)), ["0"], torch.randn(2, 8, 8)).slots["0"].layout
        == "series"
    )


class ImageInside(nn.Module):
    """Tokens that are an image for a while, as in a pyramid transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(16, 16), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        image = self.linear(x).transpose(1, 2).unflatten(-1, (4, 4))
        return self.conv(image).flatten(2).transpose(1, 2)


def test_a_convolution_over_other_axes_does_not_blur_a_square() -> None:
    assert _layouts(nn.Sequential(ImageInside()), ["0"], torch.randn(2, 16, 16)) == ["tokens"]


def test_a_square_transformer_block_is_read_as_tokens() -> None:
    tokens = torch.randint(13, (2, 16))
    slot = esper.wrap(GPT(13, 16, width=16), ["blocks.0"], tokens, causal=True).slots["blocks.0"]
    assert slot.layout is Layout.TOKENS


class Cache:
    pass


class CachedLinear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor, cache: object = None) -> Tensor:
        assert cache is not None
        return super().forward(x)


def test_a_cache_among_the_arguments_rules_out_a_second_call() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = CachedLinear()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x, cache=Cache())

    assert "widen" not in esper.wrap(Caching(), ["block"], torch.randn(2, 4)).slots["block"].blueprints


def test_a_module_that_keeps_its_activation_can_be_widened() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.last: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.linear(x)
            return self.last

    x = torch.randn(2, 4)
    model = esper.wrap(nn.Sequential(Keeping()), ["0"], x)
    model(x)
    model.germinate("0", "widen")


def test_seeds_follow_a_host_that_moved_to_another_dtype() -> None:
    model = esper.wrap(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ["1"], torch.randn(2, 4))
    model.double()
    model.germinate("1", "mlp")
    model(torch.randn(2, 4, dtype=torch.float64)).sum().backward()


def test_nested_tensors_are_refused() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    with pytest.raises(WrapError, match="enable_nested_tensor=False"):
        esper.wrap(encoder, ["layers.0"], torch.randn(3, 5, 16))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"model": 3}, "model must be an nn.Module, not int"),
        ({"slots": [0]}, r"slots must be names, that is strings, not \[0\]"),
        ({"rules": {}}, r"rules must be a GrowthRules, not \{\}"),
        ({"seed": "a"}, "seed must be an integer, not 'a'"),
        ({"example_input": torch.randn(0, 4)}, r"an empty batch, shape \(0, 4\)"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments: dict[str, object], complaint: str) -> None:
    wrap: Callable[..., GrowingModel] = esper.wrap
    with pytest.raises(WrapError, match=complaint):
        wrap(**{"model": MLP(4, 2), "slots": ["blocks.0"], "example_input": torch.randn(2, 4), **arguments})


def test_an_empty_batch_trains_like_the_bare_host() -> None:
    model = tiny_model(Layout.FLAT)
    model.germinate(SLOT, "mlp")
    model(tiny_input(Layout.FLAT)[:0]).sum().backward()


def test_slots_print_what_matters() -> None:
    model = tiny_model(Layout.SERIES, 8)
    assert repr(model.slots[SLOT]) == "Slot('middle', series x 8, DORMANT)"
    model.germinate(SLOT, "mixer")
    assert repr(model.slots[SLOT]) == "Slot('middle', series x 8, TRAINING mixer alpha=0)"


def test_several_rows_a_sample_are_fine() -> None:
    """Windows of an image: the rows are a multiple of the batch."""
    host = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 4))
    x = torch.randn(2, 5, 3)
    assert esper.wrap(host, ["1"], x).slots["1"].layout is Layout.FLAT


def test_one_slot_with_two_shapes() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.AdaptiveAvgPool1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.pool(x).mean() + self.pool(x[:, :2]).mean()

    with pytest.raises(WrapError, match=r"called 2 times .*\(2, 4, 3\), \(2, 2, 3\).* cannot serve them all"):
        esper.wrap(Reused(), ["pool"], torch.randn(2, 4, 9))


def test_tied_weights_stay_tied() -> None:
    tokens = torch.randint(13, (2, 7))
    model = esper.wrap(GPT(13, 7), ["token_embedding", "blocks.*"], tokens, causal=True)
    model.germinate("token_embedding", "lora")
    assert isinstance(model.host, GPT)
    assert model.host.head.weight is model.host.token_embedding.weight
    assert model.host_parameters == sum(p.numel() for p in GPT(13, 7).parameters())
