"""Which axis is the batch, which the channels: read from the module, asked of the host, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.hosts import GPT, MLP
from esper.leyline import Layout
from tiny import SLOT, tiny_input, tiny_model


@pytest.mark.parametrize("layout", Layout)
def test_layouts_are_read_from_the_module(layout: Layout) -> None:
    slot = tiny_model(layout, 8).slots[SLOT]
    assert (slot.layout, slot.site.channels) == (layout, 8)


def test_an_untelling_module_needs_a_layout() -> None:
    host, x = nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU()), torch.randn(2, 3, 7)
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
        ("image", r"layout 'image' does not fit slot '0' .*fitting: series, tokens"),
        ("rows", r"layout: 'rows' is not a valid Layout; choose from image"),
        ({"2": "series"}, r"layout names 2, not among the slots 0"),
    ],
)
def test_layouts_that_do_not_fit(layout: object, complaint: str) -> None:
    with pytest.raises(WrapError, match=complaint):
        esper.wrap(nn.Sequential(nn.Conv1d(3, 4, 1)), ["0"], torch.randn(2, 3, 7), layout=layout)  # type: ignore[arg-type]


def test_shapes_that_are_refused() -> None:
    with pytest.raises(WrapError, match=r"puts out shape \(2, 3, 1, 1, 1\); a slot needs 2 axes"):
        esper.wrap(nn.Sequential(nn.Conv3d(1, 3, 1)), ["0"], torch.randn(2, 1, 1, 1, 1))
    with pytest.raises(WrapError, match=r"channels last \(a Linear\)"):
        esper.wrap(nn.Sequential(nn.Linear(3, 4)), ["0"], torch.randn(2, 5, 5, 3))
    with pytest.raises(WrapError, match=r"first axis of example_input is time.*batch_first=True"):
        esper.wrap(nn.Sequential(nn.LSTM(3, 4)), ["0"], torch.randn(7, 2, 3))
    with pytest.raises(
        WrapError, match=r"puts out \(15, 4\) for a batch of 2: its first axis is not the batch"
    ):
        _not_batch_first()


def test_time_first_is_noticed_whatever_the_lengths() -> None:
    """8 positions are a multiple of a batch of 4; one sample more shows which axis is the batch."""

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.transpose(0, 1)).transpose(0, 1)

    with pytest.raises(WrapError, match=r"\(8, 4, 16\) for a batch of 4: its first axis is not the batch"):
        esper.wrap(TimeFirst(), ["linear"], torch.randn(4, 8, 16))
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(WrapError, match="first axis of example_input is time"):
        esper.wrap(encoder, ["layers.0.linear2"], torch.randn(8, 4, 16))


def test_a_host_that_transposes_inside_is_fine_where_the_batch_is_first() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x.transpose(0, 1))[0].transpose(0, 1))

    assert list(esper.wrap(Inside(), ["head"], torch.randn(4, 8, 3)).slots) == ["head"]
    with pytest.raises(WrapError, match="its first axis is not the batch"):
        esper.wrap(Inside(), ["lstm"], torch.randn(4, 8, 3))


def test_rows_that_lie_time_first_are_noticed() -> None:
    """As many rows as samples allow, but not in the samples' order."""

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.transpose(0, 1).flatten(0, 1))

    with pytest.raises(WrapError, match="its first axis is not the batch"):
        esper.wrap(Flattened(), ["linear"], torch.randn(4, 5, 3))


def test_a_square_activation_does_not_tell() -> None:
    class Transposing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x.transpose(1, 2)).transpose(1, 2)

    for length in (7, 8):
        with pytest.raises(WrapError, match="pass layout="):
            esper.wrap(nn.Sequential(Transposing()), ["0"], torch.randn(2, length, 8))
    assert (
        esper.wrap(nn.Sequential(nn.Conv1d(8, 8, 1)), ["0"], torch.randn(2, 8, 8)).slots["0"].layout
        == "series"
    )


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


def _not_batch_first() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.flatten(0, 1)[:15])

    esper.wrap(Odd(), ["linear"], torch.randn(2, 10, 3))


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
