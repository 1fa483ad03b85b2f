"""SPEC F6: the exported module is plain, needs no esper, and computes what the model computed."""

import copy
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn

import esper
from copies import run_in_a_copy
from esper.kasmina import GrowingModel, GrowthRules, export_with_keys
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, grow_until, in_styles, tiny_input, tiny_model


def _speak_up(model: GrowingModel) -> GrowingModel:
    """Give every seed something to say."""
    generator = torch.Generator().manual_seed(5)
    for slot in model.slots.values():
        if slot.seed is not None:
            with torch.no_grad():
                slot.seed.scale.copy_(torch.randn(slot.seed.scale.shape, generator=generator))
    return model.eval()


def _no_trace_of_esper(module: nn.Module) -> None:
    assert not [part for part in module.modules() if type(part).__module__.startswith("esper")]


@pytest.mark.parametrize(("layout", "blueprint", "style"), in_styles())
@torch.no_grad()
def test_every_seed_exports_exactly(layout: Layout, blueprint: str, style: Style) -> None:
    model, x = tiny_model(layout, 8), tiny_input(layout)
    bare = model(x)
    grow_until(model, SLOT, Stage.HOLDING, blueprint, style=style, alpha_target=0.7)
    _speak_up(model)
    plain = model.export()
    _no_trace_of_esper(plain)
    assert torch.equal(plain(x), model(x))
    assert not torch.equal(plain(x), bare)


def _grown_hosts() -> dict[str, tuple[GrowingModel, Tensor]]:
    """Hosts of ours with a fossilised, a holding, a fading and a training seed."""
    flat, series = torch.randn(3, 7), torch.randn(3, 2, 16)
    image, tokens = torch.randn(3, 2, 8, 8), torch.randint(11, (3, 7))
    rules = GrowthRules(max_live_seeds=3)
    widths, pools = (4,) * 5, (1, 2, 1, 2, 1)
    hosts: dict[str, tuple[nn.Module, Tensor, str]] = {
        "mlp": (MLP(7, 3, (8,) * 5), flat, "mlp"),
        "series": (ConvNet(2, 3, dims=1, widths=widths, pools=pools), series, "mixer"),
        "image": (ConvNet(2, 3, dims=2, widths=widths, pools=pools, norm="batch"), image, "widen"),
        "gpt": (GPT(11, 7, layers=5, width=16), tokens, "attention"),
    }
    grown = {}
    for name, (host, x, blueprint) in hosts.items():
        model = esper.wrap(host, ["blocks.*"], x, causal=name == "gpt", rules=rules)
        slots = list(model.slots)
        grow_until(model, slots[0], Stage.FOSSILIZED, blueprint, style=Style.GATE)
        grow_until(model, slots[1], Stage.HOLDING, blueprint, alpha_target=0.5)
        grow_until(model, slots[2], Stage.HOLDING, blueprint, style=Style.MULTIPLY)
        model.prune(slots[2], alpha_speed=5)
        model.tick()
        grow_until(model, slots[3], Stage.TRAINING, blueprint)
        grown[name] = (_speak_up(model), x)
    return grown


HOSTS = ("mlp", "series", "image", "gpt")
FAST_GPT = (*(pytest.param(kind, marks=pytest.mark.slow) for kind in HOSTS[:3]), "gpt")
"""For formats of torch and ONNX: test_export_files.py has them for series and images."""


@pytest.mark.parametrize("kind", HOSTS)
@torch.no_grad()
def test_our_hosts_export_as_they_stand(kind: str) -> None:
    model, x = _grown_hosts()[kind]
    plain, keys = export_with_keys(model)
    _no_trace_of_esper(plain)
    assert torch.equal(plain(x), model(x))
    training = list(model.slots.values())[3]
    assert training.stage is Stage.TRAINING
    assert {key for key in model.state_dict() if key not in keys} == {
        key
        for key in model.state_dict()
        if key.startswith(training.prefix) or key.endswith("esper_seed.alpha")
    }
    theirs = plain.state_dict()
    assert set(keys.values()) == {_first_name(plain, name) for name in theirs}
    assert all(
        torch.equal(theirs[keys[key]], value) for key, value in model.state_dict().items() if key in keys
    )


def _first_name(module: nn.Module, name: str) -> str:
    """The first of the names under which a tied tensor appears."""
    tensors = module.state_dict(keep_vars=True)
    return next(other for other, tensor in tensors.items() if tensor is tensors[name])


def test_the_export_stands_on_its_own() -> None:
    model, x = _grown_hosts()["series"]
    with torch.no_grad():
        plain, expected = model.export(), model(x)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(plain(x), expected)
    plain.train()
    plain(x).sum().backward()
    assert all(p.grad is not None for p in plain.parameters() if p.requires_grad)


def test_dormant_slots_leave_no_trace() -> None:
    host, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3)
    keys = list(host.state_dict())
    plain = esper.wrap(host, ["0", "1"], x).export()
    assert type(plain) is nn.Sequential
    assert [type(part) for part in plain] == [nn.Linear, nn.ReLU]
    assert list(plain.state_dict()) == keys
    assert not any(part._forward_hooks for part in plain.modules())


# Foreign modules: several arguments, keywords, odd outputs, attributes that others read


class Pair(NamedTuple):
    value: Tensor
    note: str


class Block(nn.Module):
    """Called with a keyword, and asked for an attribute by its parent."""

    kind = "special"

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.returns = returns
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, shift: Tensor, *, scale: float) -> object:
        y = torch.tanh(self.linear(x) * scale + shift)
        return {
            "tensor": y,
            "tuple": (y, "second"),
            "list": [y, "second"],
            "named": Pair(y, "second"),
            "mapping": OrderedDict(note="second", value=y),
        }[self.returns]


class Parent(nn.Module):
    def __init__(self, returns: str) -> None:
        super().__init__()
        self.block = Block(returns)
        self.inner = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        assert self.block.kind == "special"
        out = self.block(x, x.mean(), scale=0.5)
        if isinstance(out, OrderedDict):
            assert out["note"] == "second"
            out = out["value"]
        elif not isinstance(out, Tensor):
            assert out[1] == "second"
            out = out[0]
        return self.inner(self.inner(out))


@pytest.mark.parametrize("blueprint", ["mlp", "widen"])
@pytest.mark.parametrize("returns", ["tensor", "tuple", "list", "named", "mapping"])
@torch.no_grad()
def test_foreign_modules(returns: str, blueprint: str, tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    rules = GrowthRules(max_live_seeds=4)
    model = esper.wrap(Parent(returns), ["block", "inner", "inner.0", "inner.0.0"], x, rules=rules)
    for slot in model.slots:
        grow_until(model, slot, Stage.HOLDING, blueprint)
    plain = _speak_up(model).export()
    _no_trace_of_esper(plain)
    expected = model(x)
    assert isinstance(expected, Tensor)
    assert torch.equal(plain(x), expected)
    assert torch.equal(copy.deepcopy(plain)(x), expected)
    torch.save(plain, tmp_path / "plain.pt")
    assert torch.equal(torch.load(tmp_path / "plain.pt", weights_only=False)(x), expected)


def test_a_hook_of_ones_own_on_an_exported_module_does_not_displace_the_seed(tmp_path: Path) -> None:
    """Hook ids begin at 0 in every process; the exported seed's must not be given away there."""
    x = torch.randn(3, 6)
    model = esper.wrap(Parent("tensor"), ["block"], x)
    grow_until(model, "block", Stage.HOLDING, "mlp")
    plain = copy.deepcopy(_speak_up(model).export())
    torch.save((plain, x, model(x)), tmp_path / "plain.pt")
    code = (
        f"import sys, torch; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "torch.utils.hooks.RemovableHandle.next_id = 0\n"
        f"plain, x, y = torch.load({str(tmp_path / 'plain.pt')!r}, weights_only=False)\n"
        "for _ in range(1 + max(plain.block._forward_hooks)): plain.block.register_forward_hook(lambda *_: None)\n"
        "assert torch.equal(plain(x), y)"
    )
    run_in_a_copy(code)


@pytest.mark.parametrize("traced", [True, False])
def test_what_was_exported_grows_and_exports_again(traced: bool) -> None:
    """A part that is an fx graph is inside of another then, and copies of those come without hooks."""
    x = torch.randn(3, 6)
    part = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    host = nn.Sequential(fx.symbolic_trace(part) if traced else part, nn.Linear(6, 2))
    model = esper.wrap(host, ["0"], x)
    grow_until(model, "0", Stage.HOLDING, "mlp")
    again = esper.wrap(_speak_up(model).export(), ["0"], x)
    once = again(x)
    grow_until(again, "0", Stage.HOLDING, "mlp")
    plain = _speak_up(again).export()
    assert torch.equal(plain(x), again(x))
    assert not torch.equal(plain(x), once)
    assert torch.equal(copy.deepcopy(again)(x), again(x))


def test_hooks_of_the_host_are_kept_or_refused() -> None:
    x = torch.randn(3, 6)
    host = Parent("tensor")
    host.block.register_forward_hook(lambda _m, _a, out: out * 2)
    model = esper.wrap(host, ["block"], x)
    grow_until(model, "block", Stage.HOLDING, "mlp")
    _speak_up(model)
    assert torch.equal(model.export()(x), model(x))
    ours = MLP(3, 2)
    ours.register_forward_hook(lambda _m, _a, out: out * 2)
    with pytest.raises(ValueError, match="MLP has hooks, which an exported copy would lose"):
        esper.wrap(ours, ["blocks.0"], torch.randn(2, 3)).export()
    graph = fx.symbolic_trace(nn.Sequential(nn.Linear(6, 6)))
    traced = esper.wrap(nn.Sequential(nn.Linear(6, 6), graph), ["0", "1"], x)
    grow_until(traced, "1", Stage.HOLDING, "mlp")
    assert torch.equal(_speak_up(traced).export()(x), traced(x))
    graph.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    with pytest.raises(ValueError, match="the fx graph at '1' has hooks, which an exported copy would lose"):
        traced.export()


class MaybeMasked(nn.Module):
    """Calls its attention with a mask only when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        more = {} if mask is None else {"key_padding_mask": mask}
        out: Tensor = self.attention(x, x, x, **more)[0]
        return out


@torch.no_grad()
def test_calls_that_the_example_did_not_have() -> None:
    """A seed that reads the output does not mind; one that reads the input refuses, never computes something else."""
    x, mask = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    for blueprint in ("mlp", "widen"):
        model = esper.wrap(MaybeMasked(), ["attention"], x)
        grow_until(model, "attention", Stage.HOLDING, blueprint)
        plain = _speak_up(model).export()
        assert torch.equal(plain(x), model(x))
        if blueprint == "mlp":
            assert torch.equal(plain(x, mask), model(x, mask))
        else:
            with pytest.raises(AssertionError, match="knows only calls like the example's"):
                plain(x, mask)


def test_a_module_called_in_two_ways_is_not_widened() -> None:
    class TwoWays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Shifting()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.block(x), x.mean())

    assert "widen" not in esper.wrap(TwoWays(), ["block"], torch.randn(3, 6)).slots["block"].blueprints


class Shifting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)

    def forward(self, x: Tensor, shift: Tensor | float = 0.0) -> Tensor:
        return super().forward(x) + shift


def test_a_hook_that_would_change_its_place_is_refused() -> None:
    x = torch.randn(3, 6)
    host = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    model = esper.wrap(host, ["0.0"], x)
    grow_until(model, "0.0", Stage.HOLDING, "mlp")
    inner = host.get_submodule("0.0")
    late = inner.register_forward_hook(lambda _m, _a, out: out * 2)
    with pytest.raises(ValueError, match=r"'0.0' has a hook registered after wrapping"):
        model.export()
    late.remove()
    model.export()


def test_a_seed_that_is_not_finite_is_refused() -> None:
    model = tiny_model(Layout.FLAT, 8)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale[0] = float("inf")
    with pytest.raises(ValueError, match="the seed at 'middle' is not finite"):
        model.export()


class Bf16Island(nn.Linear):
    """Computes in one precision and answers in another."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(torch.bfloat16)


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE])
@pytest.mark.parametrize("blueprint", ["norm", "mlp"])
@torch.no_grad()
def test_activations_of_another_dtype_than_their_seed(blueprint: str, style: Style) -> None:
    x = torch.randn(3, 6)
    model = esper.wrap(nn.Sequential(Bf16Island(6, 6)), ["0"], x)
    grow_until(model, "0", Stage.HOLDING, blueprint, style=style)
    assert torch.equal(_speak_up(model).export()(x), model(x))


def test_an_export_in_training_mode_draws_no_dropout_in_its_seeds() -> None:
    x = torch.randn(2, 5, 8)
    host = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True))
    attention = host.get_submodule("0.self_attn")
    assert isinstance(attention, nn.MultiheadAttention)
    model = esper.wrap(host, ["0.self_attn"], x)
    attention.dropout = 0.5
    grow_until(model, "0.self_attn", Stage.HOLDING, "widen")
    _speak_up(model)
    attention.dropout = 0.0
    plain = model.export().train()
    model.train()
    assert torch.allclose(plain(x), model(x), atol=1e-6)


class Keeping(nn.Module):
    """Remembers the mapping it returned, and looks at it again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.kept = {"value": self.linear(x)}
        return self.kept


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keeping = Keeping()

    def forward(self, x: Tensor) -> Tensor:
        return self.keeping(x)["value"] + self.keeping.kept["value"]


@torch.no_grad()
def test_the_hosts_own_mapping_is_left_alone_even_after_a_pickle(tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    model = esper.wrap(Looking(), ["keeping"], x)
    grow_until(model, "keeping", Stage.HOLDING, "mlp")
    torch.save(_speak_up(model).export(), tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(plain(x), model(x))


def test_outputs_that_change_their_form_are_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.mood = "tensor"

        def forward(self, x: Tensor) -> object:
            y = self.linear(x)
            return y if self.mood == "tensor" else (y,)

    model = esper.wrap(nn.Sequential(Moody()), ["0"], torch.randn(3, 6))
    model.germinate("0", "mlp")
    moody = model.host.get_submodule("0")
    assert isinstance(moody, Moody)
    moody.mood = "tuple"
    with pytest.raises(RuntimeError, match="it must not vary"):
        model(torch.randn(3, 6))


# Other formats


@torch.no_grad()
def test_they_unpickle_and_run_without_esper(tmp_path: Path) -> None:
    for kind, (model, x) in _grown_hosts().items():
        torch.save((model.export(), x, model(x)), tmp_path / f"{kind}.pt")
    code = (
        "import sys; sys.modules['esper'] = None\n"
        "import torch; torch.set_num_threads(1)\n"  # sums of several threads differ in their last digits
        "for path in sys.argv[1:]:\n"
        "    plain, x, y = torch.load(path, weights_only=False)\n"
        "    assert torch.equal(plain(x), y), path\n"
        "    print(path)"
    )
    paths = [str(tmp_path / f"{kind}.pt") for kind in HOSTS]
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == paths, done.stderr


@pytest.mark.parametrize("kind", HOSTS)
@torch.no_grad()
def test_safetensors_round_trip(kind: str, tmp_path: Path) -> None:
    model, x = _grown_hosts()[kind]
    plain = model.export()
    unique = {id(t): (name, t) for name, t in reversed(plain.state_dict(keep_vars=True).items())}
    save_file({name: t.detach() for name, t in unique.values()}, tmp_path / "plain.safetensors")
    again = copy.deepcopy(plain)
    for parameter in again.parameters():
        parameter.fill_(float("nan"))
    missing, unexpected = again.load_state_dict(load_file(tmp_path / "plain.safetensors"), strict=False)
    assert not unexpected
    assert len(missing) == len(plain.state_dict()) - len(unique)  # tied tensors are stored once
    assert torch.equal(again(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", FAST_GPT)
@torch.no_grad()
def test_torch_export_round_trip(kind: str, tmp_path: Path) -> None:
    model, x = _grown_hosts()[kind]
    program = torch.export.export(model.export(), (x,))
    torch.export.save(program, tmp_path / "plain.pt2")
    again = torch.export.load(tmp_path / "plain.pt2").module()
    assert torch.equal(again(x), model(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FAST_GPT)
@torch.no_grad()
def test_onnx(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = _grown_hosts()[kind]
    path = tmp_path / "plain.onnx"
    torch.onnx.export(model.export(), (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(path))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = model(x)
    assert isinstance(expected, Tensor)
    assert (torch.from_numpy(found) - expected).abs().max() <= 1e-5 * expected.abs().max()


class Forgetful(nn.Sequential):
    """Its copies are in training mode, and compute otherwise, as those of an fx graph with two codes are."""

    def __deepcopy__(self, memo: dict[int, object]) -> "Forgetful":
        return Forgetful(*(copy.deepcopy(part, memo) for part in self))


@torch.no_grad()
def test_an_export_is_in_the_models_mode_where_a_copy_would_not_be() -> None:
    x = torch.randn(5, 3, 7)
    host = nn.Sequential(Forgetful(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)), nn.Conv1d(4, 4, 1))
    model = esper.wrap(host, ["1"], x)
    grow_until(model, "1", Stage.HOLDING, "conv_light")
    _speak_up(model)
    assert torch.equal(model.export()(x), model(x))
    assert not any(part.training for part in model.export()[0].modules())  # type: ignore[index]
