"""What can be wrapped, and what is refused with a word on what to do."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.hosts import GPT, MLP
from esper.leyline import GrowingModelProtocol, Layout, Stage
from tiny import SLOT, Recorder, grow_until, tiny_host, tiny_input, tiny_model


def _grown_differs(model: GrowingModel, x: Tensor, slot: str, blueprint: str = "lora") -> None:
    """A seed at `slot` reaches the output."""
    bare = _tensor(model(x))
    grow_until(model, slot, Stage.HOLDING, blueprint)
    assert torch.equal(_tensor(model(x)), bare)
    seed = model.slots[slot].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    assert not torch.equal(_tensor(model(x)), bare)


def _tensor(output: object) -> Tensor:
    if isinstance(output, dict):
        output = next(iter(output.values()))
    elif isinstance(output, tuple | list):
        output = output[0]
    assert isinstance(output, Tensor)
    return output


class Net(nn.Module):
    """layers.* in a ModuleList, towers.* in a ModuleDict, one module used twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.towers = nn.ModuleDict({"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)})
        self.shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.unused = nn.Linear(4, 4)
        self.count = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        x = self.towers["left"](x) + self.towers["right"](x)
        return self.shared(self.shared(x))


def test_names_patterns_and_firing_order() -> None:
    def slots(*patterns: str) -> list[str]:
        return list(esper.wrap(Net(), list(patterns), torch.randn(2, 4)).slots)

    assert slots("layers.*") == ["layers.2", "layers.1", "layers.0"]
    assert slots("towers.?ight", "layers.0") == ["layers.0", "towers.right"]
    assert slots("layers.[01]") == ["layers.1", "layers.0"]
    assert slots("shared") == ["shared"]
    assert slots("shared.**") == ["shared.0", "shared.1", "shared"]
    assert slots("**.left") == ["towers.left"]
    with pytest.raises(WrapError, match=r"no submodule matches slot 'share\*d.x'"):
        slots("share*d.x")


def test_a_star_does_not_cross_dots() -> None:
    host = nn.ModuleDict({"layer1": nn.Sequential(nn.Linear(4, 4)), "layer2": nn.Linear(4, 4)})

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = host

        def forward(self, x: Tensor) -> Tensor:
            return self.parts["layer2"](self.parts["layer1"](x))

    assert list(esper.wrap(Chain(), ["parts.layer*"], torch.randn(2, 4)).slots) == [
        "parts.layer1",
        "parts.layer2",
    ]


@pytest.mark.parametrize("slot", ["layers.1", "towers.left", "shared", "shared.0"])
def test_members_of_containers_and_modules_called_twice(slot: str) -> None:
    x = torch.randn(3, 4)
    _grown_differs(esper.wrap(Net(), [slot], x), x, slot)


def test_a_seed_of_a_module_called_twice_is_applied_twice() -> None:
    x = torch.randn(3, 4)
    model = esper.wrap(Net(), ["shared"], x)
    grow_until(model, "shared", Stage.HOLDING, "lora")
    seed = model.slots["shared"].seed
    assert seed is not None
    calls: list[int] = []
    seed.register_forward_hook(lambda *_: calls.append(1))
    model(x)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("slots", "complaint"),
    [
        (["layer.1"], r"no submodule matches slot 'layer.1'; near matches: layers.1"),
        (["nothing_like_it"], r"no submodule matches .*; the model has layers, layers.0"),
        (["unused"], r"slot 'unused' never fired"),
        (
            ["layers"],
            r"slot 'layers' never fired.* container, name its members: layers.0, layers.1, layers.2",
        ),
        ([], r"slots is empty: name at least one submodule"),
        ("layers.*", r"slots must be a list of names.* slots=\['layers.\*'\]"),
    ],
)
def test_slots_that_cannot_be(slots: list[str], complaint: str) -> None:
    with pytest.raises(WrapError, match=complaint):
        esper.wrap(Net(), slots, torch.randn(2, 4))


def test_one_module_under_two_names() -> None:
    net = Net()
    net.alias = net.shared
    with pytest.raises(WrapError, match="'shared' and 'alias' are one and the same"):
        esper.wrap(net, ["shared", "alias"], torch.randn(2, 4))


class Pair(NamedTuple):
    value: Tensor
    note: str


class Returns(nn.Module):
    """Wraps what it returns as asked."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> object:
        y = self.linear(x)
        return {
            "tensor": y,
            "tuple": (y, None),
            "list": [y, 1],
            "named": Pair(y, "kept"),
            "mapping": OrderedDict(note="kept", value=y),
            "string": "nothing",
            "integer": y.long(),
            "later": (None, y),
        }[self.kind]


class Holder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = Returns(kind)

    def forward(self, x: Tensor) -> object:
        return self.inner(x)


@pytest.mark.parametrize("kind", ["tensor", "tuple", "list", "named", "mapping"])
def test_outputs_of_many_kinds_grow(kind: str) -> None:
    x = torch.randn(3, 4)
    model = esper.wrap(Holder(kind), ["inner"], x)
    bare = model(x)
    grow_until(model, "inner", Stage.HOLDING, "lora")
    seed = model.slots["inner"].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    grown = model(x)
    assert type(grown) is type(bare)
    if isinstance(grown, Pair):
        assert grown.note == "kept"
        assert not torch.equal(grown.value, bare.value)
    if isinstance(grown, OrderedDict):
        assert list(grown) == ["note", "value"]
        assert not torch.equal(grown["value"], bare["value"])


@pytest.mark.parametrize(
    ("kind", "what"), [("string", "str"), ("integer", r"a torch.int64 tensor"), ("later", "tuple")]
)
def test_outputs_that_cannot_grow(kind: str, what: str) -> None:
    with pytest.raises(WrapError, match=f"slot 'inner' cannot grow: it returns {what}"):
        esper.wrap(Holder(kind), ["inner"], torch.randn(2, 4))


def test_keyword_and_tuple_examples() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return self.linear(x) * scale

    x, scale = torch.randn(2, 4), torch.ones(2, 1)
    for example in ((x, scale), {"x": x, "scale": scale}):
        assert list(esper.wrap(TwoInputs(), ["linear"], example).slots) == ["linear"]
    with pytest.raises(WrapError, match="example_input holds no tensor"):
        esper.wrap(MLP(4, 2), ["blocks.0"], ())


def test_a_failing_example_says_where() -> None:
    with pytest.raises(RuntimeError) as error:
        esper.wrap(MLP(4, 2), ["blocks.0"], torch.randn(2, 5))
    assert "while running example_input" in error.value.__notes__[0]


# Layouts


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
            slot.remove_hook()


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


def test_a_pattern_that_meets_an_alias_takes_it_once() -> None:
    net = Net()
    net.layers.append(net.layers[0])
    assert list(esper.wrap(net, ["layers.*"], torch.randn(2, 4)).slots) == [
        "layers.0",
        "layers.2",
        "layers.1",
    ]


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


def test_a_recurrent_module_grows_its_sequence() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 8, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.lstm(x)[0])
            return out

    x = torch.randn(2, 7, 3)
    model = esper.wrap(Tagger(), ["lstm"], x)
    assert model.slots["lstm"].layout is Layout.TOKENS
    _grown_differs(model, x, "lstm", "widen")


def test_tied_weights_stay_tied() -> None:
    tokens = torch.randint(13, (2, 7))
    model = esper.wrap(GPT(13, 7), ["token_embedding", "blocks.*"], tokens, causal=True)
    model.germinate("token_embedding", "lora")
    assert isinstance(model.host, GPT)
    assert model.host.head.weight is model.host.token_embedding.weight
    assert model.host_parameters == sum(p.numel() for p in GPT(13, 7).parameters())


# Models that bring something along


def test_a_hooked_model_keeps_its_hooks() -> None:
    host, x = tiny_host(Layout.FLAT), tiny_input(Layout.FLAT)
    seen: list[Tensor] = []
    host.middle.register_forward_hook(lambda _m, _a, out: out * 2)
    expected = host(x)
    model = esper.wrap(host, [SLOT], x)
    host.middle.register_forward_hook(lambda _m, _a, out: seen.append(out))
    assert torch.equal(_tensor(model(x)), expected)
    assert len(seen) == 1
    _grown_differs(model, x, SLOT)


def test_wrapping_twice_is_refused() -> None:
    host, x = tiny_host(Layout.FLAT), tiny_input(Layout.FLAT)
    model = esper.wrap(host, [SLOT], x)
    with pytest.raises(WrapError, match="GrowingModel already"):
        esper.wrap(model, [SLOT], x)
    with pytest.raises(WrapError, match=r"'middle' belongs to another GrowingModel.*unwrap"):
        esper.wrap(host, [SLOT], x)
    assert model.unwrap() is host
    assert not host.middle._forward_hooks
    esper.wrap(host, [SLOT], x)


def test_modules_that_would_ignore_hooks_are_refused() -> None:
    x = tiny_input(Layout.FLAT)
    advice = r"wrap the plain model first.*torch.compile\(esper.wrap"
    compiled = torch.compile(tiny_host(Layout.FLAT), backend="eager")
    assert isinstance(compiled, nn.Module)
    for name in ("_orig_mod.middle", "middle"):
        with pytest.raises(WrapError, match=advice):
            esper.wrap(compiled, [name], x)
    in_place = tiny_host(Layout.FLAT)
    in_place.compile(backend="eager")
    with pytest.raises(WrapError, match=advice):
        esper.wrap(in_place, [SLOT], x)
    with pytest.raises(WrapError, match=r"the model is a DataParallel: wrap its .module first"):
        esper.wrap(nn.DataParallel(tiny_host(Layout.FLAT)), ["module.middle"], x)


def test_the_example_leaves_no_trace() -> None:
    host = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.Dropout())
    host[2].eval()
    state = copy.deepcopy(host.state_dict())
    randomness = torch.get_rng_state()
    esper.wrap(host, ["0"], tiny_input(Layout.SERIES))
    assert torch.equal(torch.get_rng_state(), randomness)
    assert all(torch.equal(value, state[name]) for name, value in host.state_dict().items())
    assert [part.training for part in host] == [True, True, False]
    assert [len(part._forward_hooks) for part in host] == [1, 0, 0]


# Copies


def test_copies_grow_on_their_own() -> None:
    sink = Recorder()
    model, x = tiny_model(Layout.FLAT, events=sink), tiny_input(Layout.FLAT)
    model.attach(torch.optim.Adam(model.parameters()), scaler=torch.amp.GradScaler("cpu"))
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    told = len(sink.events)
    twin = copy.deepcopy(model)
    ours, theirs = model.slots[SLOT].seed, twin.slots[SLOT].seed
    assert ours is not None
    assert theirs is not None
    with torch.no_grad():
        theirs.scale.fill_(0.5)
    assert not torch.equal(_tensor(twin(x)), _tensor(model(x)))
    assert not ours.scale.any()
    twin.fossilize(SLOT)
    twin.attach(torch.optim.Adam(twin.parameters()))
    assert model.slots[SLOT].stage is Stage.HOLDING
    assert len(sink.events) == told


def test_a_model_can_be_pickled() -> None:
    model, x = tiny_model(Layout.FLAT), tiny_input(Layout.FLAT)
    grow_until(model, SLOT, Stage.BLENDING, "mlp")
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(_tensor(again(x)), _tensor(model(x)))
    assert again.slots[SLOT].snapshot() == model.slots[SLOT].snapshot()


def test_the_model_keeps_its_protocol() -> None:
    model = tiny_model(Layout.FLAT)
    as_others_see_it: GrowingModelProtocol = model
    assert as_others_see_it.slot_config.slot_ids == (SLOT,)


def test_isolation_penalty_is_validated() -> None:
    for value in (-1.0, float("nan")):
        with pytest.raises(WrapError, match="isolation_penalty must be >= 0"):
            tiny_model(Layout.FLAT, isolation_penalty=value)
