"""A host may do more with a part than call it: index it, slice it, count or read it. The export of it still can."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, GrowthRules, export_with_keys
from esper.kasmina.blueprints.catalogue import ChannelNorm
from esper.leyline import Stage
from tiny import grow_until

WIDTH = 7


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class Indexing(nn.Module):
    """Runs its body, then parts of it by index and by slice, then its members one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(linear(), nn.Tanh(), linear(), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        h = h + self.body[-1](h - h.mean(1, keepdim=True)) + self.body[1:-1](h)
        for layer in self.body:
            h = layer(h) * len(self.body)
        return h


class Gained(nn.Sequential):
    gain = 2.0


class Reading(nn.Module):
    """Reads what its body is called and what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Gained(linear(), nn.Tanh(), linear())

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x) * self.body.gain
        return h + self.body[-1].weight.mean()  # type: ignore[operator]


class Chain(nn.ModuleList):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        for layer in self:
            x = layer(x).tanh()
        return x, len(self)


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Chain([linear(), linear()])

    def forward(self, x: Tensor) -> Tensor:
        h, count = self.body(x)
        out: Tensor = h * count + self.body[-1](x)
        return out


class AllChildren(nn.Module):
    """Calls whatever is a child of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = linear(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = AllChildren()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


HOSTS = (Indexing, Reading, Listing, Calling)


def grown(host: nn.Module, blueprint: str, slots: tuple[str, ...] = ("body",)) -> tuple[GrowingModel, Tensor]:
    """Every slot with a seed that says something; and an input."""
    x = torch.randn(3, WIDTH)
    model = esper.wrap(host, slots, x, rules=GrowthRules(max_live_seeds=len(slots)))
    bare = model(x)
    for slot in model.slots.values():
        grow_until(model, slot.name, Stage.HOLDING, blueprint)
        assert slot.seed is not None
        with torch.no_grad():
            slot.seed.scale.normal_()
    assert not torch.equal(model(x), bare)
    return model.eval(), x


@pytest.mark.parametrize("blueprint", ["mlp", "widen"])
@pytest.mark.parametrize("host", HOSTS)
@torch.no_grad()
def test_it_computes_the_same_as_it_stands_copied_and_as_a_file(
    host: type[nn.Module], blueprint: str, tmp_path: Path
) -> None:
    model, x = grown(host(), blueprint)
    expected, plain = model(x), model.export()
    assert torch.equal(plain(x), expected)
    torch.save(copy.deepcopy(plain), tmp_path / "plain.pt")
    again = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(again(x), expected)
    assert list(again.state_dict()) == list(plain.state_dict())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("blueprint", ["mlp", "widen"])
@torch.no_grad()
def test_programs_of_it_compute_the_same(blueprint: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = grown(Indexing(), blueprint)
    expected, plain = model(x), model.export()
    assert isinstance(expected, Tensor)
    assert torch.equal(torch.export.export(plain, (x,)).module()(x), expected)
    path = tmp_path / "plain.onnx"
    torch.onnx.export(plain, (x,), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(path))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert (torch.from_numpy(found) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_seeds_inside_seeded_parts_learn_on_in_a_process_without_esper(tmp_path: Path) -> None:
    host = nn.Sequential(nn.Sequential(nn.Sequential(linear(), nn.Tanh()), linear(), nn.Tanh()), linear())
    model, x = grown(host, "mlp", ("0", "0.0", "0.0.0"))
    body = model.host.get_submodule("0")
    assert isinstance(body, nn.Sequential)
    torch.save((model.export(), x, model(x).detach(), body[:2](x).detach()), tmp_path / "plain.pt")
    code = (
        "import sys; sys.modules['esper'] = None\n"
        "import torch; torch.set_num_threads(1)\n"
        "plain, x, y, inner = torch.load(sys.argv[1], weights_only=False)\n"
        "assert torch.equal(plain(x), y) and torch.equal(plain[0][:2](x), inner)\n"
        "plain.train()(x).square().sum().backward()\n"
        "torch.optim.SGD(plain.parameters(), lr=0.01).step()\n"
        "print(not torch.equal(plain(x), y), all(p.grad is not None for p in plain.parameters()))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "plain.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


class Sharing(nn.Module):
    """Holds the one layer of its body under a name of its own, which comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.body = nn.Sequential(self.layer)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.layer(x)
        return out


def test_a_seed_that_is_met_before_the_part_that_calls_it_is_pickled_once(tmp_path: Path) -> None:
    model, x = grown(Sharing(), "mlp")
    torch.save(model.export(), tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(plain(x), model(x))
    (seed,) = plain.body._forward_hooks.values()
    assert seed is plain.layer.seed


def test_the_hosts_own_keys_stay_and_those_of_a_seed_are_where_it_grew() -> None:
    model, _ = grown(Indexing(), "mlp")
    plain, keys = export_with_keys(model)
    assert isinstance(plain.body, nn.Sequential)
    assert [type(part) for part in plain.body] == [nn.Linear, nn.Tanh] * 2
    assert keys["host.body.2.weight"] == "body.2.weight"
    assert keys["host.body.3.esper_seed.scale"] == "body.3.seed.blend.scale"


def test_attributes_of_the_hosts_own_stay() -> None:
    host = Indexing()
    host.body.__dict__["seed_handle"] = host.body[3].__dict__["seed"] = "mine"
    model, x = grown(host, "mlp")
    plain = model.export()
    assert isinstance(plain, Indexing)
    assert vars(plain.body)["seed_handle"] == vars(plain.body[3])["seed"] == "mine"
    assert torch.equal(plain(x), model(x))


def test_hooks_of_a_container_go_with_it() -> None:
    host = Indexing()
    host.body.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    host.body.register_forward_hook(lambda _m, _a, out: out * 3)
    model, x = grown(host, "mlp")
    assert torch.equal(model.export()(x), model(x))


def quantised(plain: nn.Module) -> nn.Module:
    """With its linear layers replaced, hooks carried over and children left behind."""
    if torch.backends.quantized.engine == "none":
        pytest.skip("torch cannot quantise on this machine")
    return torch.ao.quantization.quantize_dynamic(plain.eval(), {nn.Linear})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@torch.no_grad()
def test_a_seed_behind_a_linear_layer_goes_on_being_called_where_a_tool_replaces_the_layer() -> None:
    model, x = grown(nn.Sequential(linear(), nn.Tanh()), "mlp", ("0",))
    assert torch.allclose(quantised(model.export())(x), model(x), atol=0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("blueprint", ["norm", "mlp", "widen"])
@torch.no_grad()
def test_a_seed_stays_in_the_tree_where_a_tool_replaces_layers_around_it(blueprint: str) -> None:
    """It grew at the last of these layers, and is held by what has no weights."""
    host = nn.Sequential(nn.Sequential(linear(), nn.Tanh(), linear()), linear())
    model, x = grown(host, blueprint, ("0",))
    plain, keys = export_with_keys(model)
    assert keys["host.0.2.esper_seed.scale"] == "0.1.seed.blend.scale"
    smaller = quantised(plain)
    expected = smaller(x)
    assert torch.allclose(expected, model(x), atol=0.1)
    again = copy.deepcopy(smaller)
    again.get_parameter("0.1.seed.blend.scale").zero_()
    assert not torch.equal(again(x), expected)
    again.load_state_dict(smaller.state_dict())
    assert torch.equal(again(x), expected)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ([linear(), ChannelNorm(-1)], "0.0.seed.blend.scale"),
        ([ChannelNorm(-1)], "0.blend.scale"),
    ],
    ids=["another", "none"],
)
def test_where_a_seed_grew_at_a_module_of_espers_own_another_holds_it(
    part: list[nn.Module], key: str, tmp_path: Path
) -> None:
    """Such a module becomes an fx graph, whose pickles have no children but those that the graph names."""
    model, x = grown(nn.Sequential(nn.Sequential(*part)), "mlp", ("0",))
    plain, keys = export_with_keys(model)
    torch.save(plain, tmp_path / "plain.pt")
    again = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(again(x), model(x))
    assert key in again.state_dict()
    assert set(keys.values()) == set(again.state_dict())
