"""What can be wrapped, and what is refused with a word on what to do."""

import copy
import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.hosts import MLP
from esper.leyline import Layout, Stage
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


def _leaves(output: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


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
        (["layer.1"], r"no submodule matches slot 'layer.1'; did you mean 'layers.1'\?"),
        (["nothing_like_it"], r"no submodule matches .*; the model has layers, layers.0"),
        (["unused"], r"slot 'unused' never fired"),
        (
            ["layers"],
            r"slot 'layers' never fired.* container, name its members: layers.0, layers.1, layers.2",
        ),
        (["layers.0", "layers.1", "layers.0"], r"slots has 'layers.0' twice: name it once"),
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
            "nested": [("a", (x.long(), y)), x.long()],
            "after an integer": (x.long(), y),
            "empty": (None, ()),
        }[self.kind]


class Holder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = Returns(kind)

    def forward(self, x: Tensor) -> object:
        return self.inner(x)


FORMS = ("tensor", "tuple", "list", "named", "mapping", "later", "nested", "after an integer")


@pytest.mark.parametrize("kind", FORMS)
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
    changed = [
        not torch.equal(ours, theirs) for ours, theirs in zip(_leaves(grown), _leaves(bare), strict=True)
    ]
    assert changed == [leaf.is_floating_point() for leaf in _leaves(bare)]
    plain = model.eval().export()
    assert all(map(torch.equal, _leaves(plain(x)), _leaves(model(x))))
    if isinstance(grown, Pair):
        assert grown.note == "kept"
        assert not torch.equal(grown.value, bare.value)
    if isinstance(grown, OrderedDict):
        assert list(grown) == ["note", "value"]
        assert not torch.equal(grown["value"], bare["value"])


@pytest.mark.parametrize(
    ("kind", "what"), [("string", "str"), ("integer", r"a torch.int64 tensor"), ("empty", "tuple")]
)
def test_outputs_that_cannot_grow(kind: str, what: str) -> None:
    with pytest.raises(WrapError, match=f"slot 'inner' cannot grow: it returns {what}"):
        esper.wrap(Holder(kind), ["inner"], torch.randn(2, 4))


class TwoStreams(nn.Module):
    """Returns two streams, of which the model reads one."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.main = nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.side(x), self.main(x)


class ReadsOne(nn.Module):
    def __init__(self, read: int) -> None:
        super().__init__()
        self.inner, self.read, self.norms = (
            TwoStreams(),
            read,
            nn.ModuleList([nn.LayerNorm(3), nn.LayerNorm(4)]),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norms[self.read](self.inner(x)[self.read])
        return out


@pytest.mark.parametrize(("read", "width"), [(0, 3), (1, 4)])
def test_of_several_tensors_the_first_that_is_read_grows(read: int, width: int) -> None:
    x = torch.randn(3, 4)
    model = esper.wrap(ReadsOne(read), ["inner"], x)
    assert model.slots["inner"].channels == width
    _grown_differs(model, x, "inner", "widen")
    assert torch.equal(model.eval().export()(x), _tensor(model(x)))


def test_an_output_that_changes_its_form_is_refused() -> None:
    x = torch.randn(3, 4)
    host = Holder("tuple")
    model = esper.wrap(host, ["inner"], x)
    model.germinate("inner", "lora")
    host.inner.kind = "mapping"
    with pytest.raises(RuntimeError, match=r"slot 'inner' returned a OrderedDict, in the example .*tuple"):
        model(x)


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
    with pytest.raises(
        WrapError, match=r"example_input is a tuple without a tensor.* expected a tensor such as"
    ):
        esper.wrap(MLP(4, 2), ["blocks.0"], ())


def test_a_failing_example_says_where() -> None:
    with pytest.raises(
        WrapError, match=r"example_input \(shape \(2, 5\)\) does not go through the model: RuntimeError"
    ) as error:
        esper.wrap(MLP(4, 2), ["blocks.0"], torch.randn(2, 5))
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_pattern_that_meets_an_alias_takes_it_once() -> None:
    net = Net()
    net.layers.append(net.layers[0])
    assert list(esper.wrap(net, ["layers.*"], torch.randn(2, 4)).slots) == [
        "layers.0",
        "layers.2",
        "layers.1",
    ]


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
    with pytest.raises(WrapError, match=r"'middle' is one of another Grower or GrowingModel.*unwrap"):
        esper.wrap(host, [SLOT], x)
    assert model.unwrap() is host
    assert not host.middle._forward_hooks
    esper.wrap(host, [SLOT], x)


def test_modules_that_would_ignore_hooks_are_refused() -> None:
    x = tiny_input(Layout.FLAT)
    advice = r"give the plain model.*torch.compile\(esper.wrap"
    compiled = torch.compile(tiny_host(Layout.FLAT), backend="eager")
    assert isinstance(compiled, nn.Module)
    for name in ("_orig_mod.middle", "middle"):
        with pytest.raises(WrapError, match=advice):
            esper.wrap(compiled, [name], x)
    in_place = tiny_host(Layout.FLAT)
    in_place.compile(backend="eager")
    with pytest.raises(WrapError, match=advice):
        esper.wrap(in_place, [SLOT], x)
    with pytest.raises(WrapError, match=r"the model is a DataParallel, which copies the network anew"):
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


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "x", None])
def test_isolation_penalty_is_validated(value: Any) -> None:
    with pytest.raises(WrapError, match=r"isolation_penalty is .*; expected a number >= 0"):
        tiny_model(Layout.FLAT, isolation_penalty=value)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_causal_is_true_or_false(value: Any) -> None:
    with pytest.raises(WrapError, match=f"causal is {value!r}; expected True or False"):
        tiny_model(Layout.FLAT, causal=value)
