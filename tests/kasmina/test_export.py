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
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, GrowthRules, export_with_keys
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, grow_until, offered, tiny_input, tiny_model


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


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize(("layout", "blueprint"), offered())
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


@pytest.mark.parametrize("kind", HOSTS)
@torch.no_grad()
def test_our_hosts_export_as_they_stand(kind: str) -> None:
    model, x = _grown_hosts()[kind]
    plain, keys = export_with_keys(model)
    _no_trace_of_esper(plain)
    assert torch.equal(plain(x), model(x))
    kept = [key for key in model.state_dict() if key.startswith("grown.")]
    training = list(model.slots)[3].replace(".", "/")
    assert {key for key in model.state_dict() if key not in keys} == {
        k for k in kept if k.startswith(f"grown.{training}.")
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
    plain = _speak_up(model).export()
    torch.save((plain, x, model(x)), tmp_path / "plain.pt")
    code = (
        f"import sys, torch; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_export\n"
        f"plain, x, y = torch.load({str(tmp_path / 'plain.pt')!r}, weights_only=False)\n"
        "for _ in range(2000): plain.block.register_forward_hook(lambda *_: None)\n"
        "assert torch.equal(plain(x), y)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


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


# Other formats


@pytest.mark.parametrize("kind", HOSTS)
def test_it_unpickles_and_runs_without_esper(kind: str, tmp_path: Path) -> None:
    model, x = _grown_hosts()[kind]
    with torch.no_grad():
        torch.save((model.export(), x, model(x)), tmp_path / "plain.pt")
    code = (
        "import sys; sys.modules['esper'] = None\n"
        f"import torch; plain, x, y = torch.load({str(tmp_path / 'plain.pt')!r}, weights_only=False)\n"
        "assert torch.equal(plain(x), y)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
@pytest.mark.parametrize("kind", HOSTS)
@torch.no_grad()
def test_torch_export_round_trip(kind: str, tmp_path: Path) -> None:
    model, x = _grown_hosts()[kind]
    program = torch.export.export(model.export(), (x,))
    torch.export.save(program, tmp_path / "plain.pt2")
    again = torch.export.load(tmp_path / "plain.pt2").module()
    assert torch.equal(again(x), model(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", HOSTS)
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
