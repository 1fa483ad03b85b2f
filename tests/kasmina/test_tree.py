"""A seed is part of the user's own module tree while it is there: nothing is lost silently."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

import esper
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.tree import bare_modules, bare_parameters, is_frozen
from esper.leyline import Layout, Stage
from tiny import SLOT, TinyHost, grow_until, tiny_host, tiny_input

X = tiny_input(Layout.FLAT)
SEED = "middle.1.esper_seed"
"""The last leaf of the slot is its Tanh."""


def _grown(stage: Stage = Stage.HOLDING) -> tuple[TinyHost, GrowingModel]:
    """The user's own object, and the growing model around it."""
    net = tiny_host(Layout.FLAT, 7)
    model = esper.wrap(net, [SLOT], X)
    grow_until(model, SLOT, stage, "mlp")
    _speak_up(model)
    return net, model


def _speak_up(model: GrowingModel) -> None:
    """A newborn seed adds nothing: give it something to say."""
    with torch.no_grad():
        for slot in model.slots.values():
            if slot.seed is not None:
                slot.seed.scale.fill_(0.5)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED])
def test_a_plain_instance_refuses_the_state_of_a_grown_one(stage: Stage) -> None:
    net, _ = _grown(stage)
    state = net.state_dict()
    grown = {key for key in state if key.startswith(SEED)}
    assert {f"{SEED}.scale", f"{SEED}.alpha"} < grown
    assert set(state) - grown == set(tiny_host(Layout.FLAT, 7).state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*middle\.1\.esper_seed\.scale"):
        tiny_host(Layout.FLAT, 7).load_state_dict(state)


def test_a_seed_that_left_leaves_no_key() -> None:
    net, model = _grown()
    model.prune(SLOT)
    assert list(net.state_dict()) == list(tiny_host(Layout.FLAT, 7).state_dict())
    tiny_host(Layout.FLAT, 7).load_state_dict(net.state_dict())
    _, model = _grown()
    host = model.unwrap()
    assert list(host.state_dict()) == list(tiny_host(Layout.FLAT, 7).state_dict())


def test_each_tensor_comes_once() -> None:
    net, model = _grown()
    seed = model.slots[SLOT].seed
    assert seed is not None
    bare = tiny_host(Layout.FLAT, 7)
    assert [p.shape for p in model.bare_parameters()] == [p.shape for p in bare.parameters()]
    assert {id(p) for p in net.parameters()} == {
        *(id(p) for p in model.bare_parameters()),
        *(id(p) for p in seed.parameters()),
    }
    assert [id(p) for p in model.parameters()] == [id(p) for p in net.parameters()]
    tensors = list(model.state_dict(keep_vars=True).values())
    assert len({id(tensor) for tensor in tensors}) == len(tensors)
    assert model.host_parameters == sum(p.numel() for p in bare.parameters())
    assert model.added_parameters == sum(p.numel() for p in seed.parameters())
    assert esper.wrap(copy.deepcopy(net), [SLOT], X).host_parameters == model.host_parameters


def test_an_optimiser_made_from_a_grown_model_holds_each_parameter_once() -> None:
    net, model = _grown()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model.attach(optimizer)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in net.parameters())
    assert len(optimizer.param_groups) == 2


def test_the_users_object_moves_its_seeds() -> None:
    net, model = _grown()
    seed = model.slots[SLOT].seed
    assert seed is not None
    net.double().train()
    assert {p.dtype for p in seed.parameters()} == {torch.float64}
    assert not seed.body.training  # a seed draws no dropout masks
    assert net(X.double()).dtype is torch.float64
    assert model.export()(X.double()).dtype is torch.float64
    model.prune(SLOT)
    for _ in range(3):
        model.tick()
    model.germinate(SLOT, "mlp")
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    net.zero_grad()
    net(X.double()).sum().backward()
    assert all(p.grad is not None for p in net.middle.parameters())


def test_a_slot_without_parameters_follows_what_is_around_it() -> None:
    net = tiny_host(Layout.FLAT, 7)
    model = esper.wrap(net, ["middle.1"], X)
    net.double()
    model.germinate("middle.1", "mlp")
    assert {p.dtype for p in net.parameters()} == {torch.float64}


def test_a_state_at_another_alpha_is_refused() -> None:
    net, model = _grown(Stage.BLENDING)
    state = copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    model.tick()
    with pytest.raises(RuntimeError, match=r"esper_seed is at alpha 0 in the state and at 0\.333"):
        net.load_state_dict(state)
    assert float(net.state_dict()[f"{SEED}.alpha"]) == pytest.approx(1 / 3)


# Copies


def test_a_copy_computes_trains_grows_and_exports_on_its_own() -> None:
    net, model = _grown(Stage.BLENDING)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    twin = copy.deepcopy(net)
    assert torch.equal(twin(X), net(X))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    again = esper.wrap(twin, [SLOT], X)
    again.attach(optimizer)
    twin(X).square().sum().backward()
    optimizer.step()
    again.tick()
    assert again.slots[SLOT].alpha > model.slots[SLOT].alpha
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.allclose(again.export()(X), twin(X))
    assert not torch.allclose(twin(X), net(X))
    again.remove(SLOT)
    assert SEED not in dict(twin.named_modules())
    assert SEED in dict(net.named_modules())


def test_a_copys_seed_that_breaks_is_kept_from_its_host() -> None:
    net, model = _grown()
    twin = copy.deepcopy(net)
    again = esper.wrap(twin, [SLOT], X)
    seed = again.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale[0] = float("inf")
    twin(X).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in twin.parameters() if p.grad is not None)
    assert again.slots[SLOT].broken()
    assert not model.slots[SLOT].broken()


def test_only_a_copy_is_wrapped_again_and_at_its_own_slots() -> None:
    net, _model = _grown()
    with pytest.raises(WrapError, match="is one of another Grower or GrowingModel"):
        esper.wrap(net, [SLOT], X)
    with pytest.raises(
        WrapError, match="copy of one that was wrapped at middle: name these slots, not first"
    ):
        esper.wrap(copy.deepcopy(net), ["first"], X)
    with pytest.raises(WrapError, match="leave both out"):
        esper.wrap(copy.deepcopy(net), [SLOT], X, blueprints=["mlp"])


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_of_a_grown_model_holds_its_seeds(use_buffers: bool) -> None:
    net, _ = _grown()
    average = AveragedModel(net, use_buffers=use_buffers)
    average.update_parameters(net)
    assert torch.equal(average(X), net(X))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    average.update_parameters(net)
    scale = average.module.get_parameter(f"{SEED}.scale")
    assert torch.allclose(scale, torch.full_like(scale, 1.0))  # the mean of 0.5 and 1.5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_users_object_compiled_sees_growth() -> None:
    torch._dynamo.reset()
    net = tiny_host(Layout.FLAT, 7)
    model = esper.wrap(net, [SLOT], X)
    compiled = torch.compile(net, backend="eager")
    bare = compiled(X).detach()
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    _speak_up(model)
    assert torch.equal(compiled(X), net(X))
    assert not torch.allclose(compiled(X), bare)
    model.prune(SLOT)
    assert torch.equal(compiled(X), bare)
    torch._dynamo.reset()


# Where seeds sit


class Counting(nn.Module):
    """Runs whatever children it has, as some classes do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


def _shared_activation() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(nn.Sequential(nn.Linear(3, 3), act), nn.Sequential(nn.Linear(3, 3), act))


def _parametrized() -> nn.Module:
    return nn.Sequential(nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3))), nn.Linear(3, 3))


def _shortcut() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Sequential()))


@pytest.mark.parametrize(
    ("make", "slots", "seats"),
    [
        (Counting, ["one", "two"], ["one.esper_seed", "two.esper_seed"]),
        (lambda: nn.Sequential(Counting()), ["0"], ["0.two.esper_seed"]),
        (
            lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh())),
            ["0", "0.1"],
            ["0.1.esper_seed", "0.1.esper_seed_2"],
        ),
        (_shared_activation, ["0", "1"], ["0.0.esper_seed", "1.0.esper_seed"]),
        (_parametrized, ["0"], ["0.0.esper_seed"]),
        (_shortcut, ["0.1"], ["0.0.esper_seed"]),
    ],
)
def test_the_host_does_not_run_or_count_a_seed(
    make: Callable[[], nn.Module], slots: list[str], seats: list[str]
) -> None:
    net, x = make(), torch.randn(5, 3)
    before, sizes = net(x).detach(), [len(m) for m in net.modules() if isinstance(m, nn.Sequential)]
    model = esper.wrap(net, slots, x)
    for slot in slots:
        model.germinate(slot, "mlp")
    assert sorted(slot.prefix for slot in model.slots.values()) == sorted(f"host.{seat}" for seat in seats)
    assert torch.equal(net(x), before)
    assert [len(m) for m in bare_modules(net) if isinstance(m, nn.Sequential)] == sizes
    assert sum(p.numel() for p in bare_parameters(net)) == model.host_parameters
    assert sum(p.numel() for p in net.parameters()) == model.host_parameters + model.added_parameters


def test_a_host_with_the_reserved_name_is_refused() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].esper_seed = torch.ones(1)
    with pytest.raises(WrapError, match=r"slot '0' has no place for a seed.*has a 0\.esper_seed of its own"):
        esper.wrap(net, ["0"], torch.randn(2, 3))


def test_a_copied_submodule_leaves_the_seeds_inside_it_out() -> None:
    """`widen` copies what it stands behind, and another slot's seed may be in there."""
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    model = esper.wrap(net, ["0.0", "0"], torch.randn(5, 3))
    cost = next(card.parameters for card in model.slots["0"].cards if card.name == "widen")
    model.germinate("0.0", "mlp")
    model.germinate("0", "widen")
    assert model.slots["0"].parameter_count == cost


class Rearranged(nn.Module):
    """Copies and pickles as what it was made from alone, as the layers of einops do."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)

    def __getstate__(self) -> dict[str, object]:
        return {"shape": self.shape}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__init__()
        self.__dict__.update(state)


def test_a_seed_does_not_sit_where_a_copy_would_not_hold_it() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(6, 6), Rearranged((6,))), nn.Tanh())
    x = torch.randn(5, 6)
    model = esper.wrap(net, ["0"], x)
    grow_until(model, "0", Stage.HOLDING, "mlp")
    _speak_up(model)
    assert {key.partition(".esper_seed")[0] for key in net.state_dict() if "esper_seed" in key} == {"0.0"}
    model.eval()
    assert torch.equal(copy.deepcopy(net)(x), model(x))
    assert torch.equal(model.export()(x), model(x))


class _Recompute(torch.autograd.Function):
    """Keeps the input alone, computes again in the backward pass, and asks there for every parameter's gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, part: nn.Module, *parameters: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(x)
        ctx.part = part  # type: ignore[attr-defined]
        return part(x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        part = ctx.part  # type: ignore[attr-defined]
        x = ctx.saved_tensors[0].detach().requires_grad_()  # type: ignore[attr-defined]
        with torch.enable_grad():
            again = part(x)
        found = torch.autograd.grad(again, (x, *part.parameters()), grad)
        return found[0], None, *found[1:]


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(7, 7), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Recompute.apply(x, self.part, *self.part.parameters())  # type: ignore[no-untyped-call]
        return y


@pytest.mark.parametrize(
    ("slot", "seat"), [("1", "2.esper_seed"), ("1.part", "1.part.1.esper_seed"), ("0", "0.esper_seed")]
)
def test_a_backward_pass_by_hand_asks_for_no_seed_that_it_does_not_run(slot: str, seat: str) -> None:
    net, x = nn.Sequential(nn.Linear(6, 7), Recomputed(), nn.Linear(7, 2)), torch.randn(5, 6)
    twin = copy.deepcopy(net)
    model = esper.wrap(net, [slot], x)
    grow_until(model, slot, Stage.TRAINING, "mlp")
    seed = model.slots[slot].seed
    assert seed is not None
    assert model.slots[slot].prefix == f"host.{seat}"
    for bare in (twin, model):
        bare(x).square().sum().backward()
    assert seed.scale.grad is not None
    assert seed.scale.grad.any()
    for ours, theirs in zip(model.bare_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_nor_does_it_of_an_exported_one() -> None:
    net, x = nn.Sequential(nn.Sequential(Recomputed(), nn.Linear(7, 2))), torch.randn(5, 7)
    model = esper.wrap(net, ["0"], x)
    grow_until(model, "0", Stage.HOLDING, "mlp")
    _speak_up(model)
    plain = model.export()
    plain(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in plain.parameters())


def test_a_slot_whose_copies_would_lose_its_seed_is_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 6), Rearranged((6,)))
    with pytest.raises(WrapError, match=r"slot '1' is a Rearranged.*would lose the seed"):
        esper.wrap(net, ["1"], torch.randn(5, 6))


@pytest.mark.parametrize(
    ("freeze", "slots", "frozen"),
    [
        ([], ["1", "3"], False),  # modules without parameters say nothing: what comes before them does
        (["0", "2"], ["1", "3"], True),
        (["2"], ["1", "3"], False),  # its input still changes
        (["0"], ["1", "3"], False),
        (["0"], ["1"], False),  # frozen up to the slot, but most of the network learns
        (["0", "2", "4"], ["1", "3"], True),
        (["0", "2"], ["4"], False),  # the head itself would grow
    ],
)
def test_what_counts_as_frozen(freeze: list[str], slots: list[str], frozen: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
    for name in freeze:
        model.get_submodule(name).requires_grad_(False)
    assert is_frozen(model, slots) == frozen
