"""Going back to a remembered model: the same outputs, the same life and the same training from there on."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, StepLR

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.hosts import ConvNet
from esper.kasmina.snapshots import ModelSnapshot
from esper.leyline import SlotSnapshot, Stage
from tiny import grow_until

X = torch.linspace(-1, 1, 5 * 13).view(5, 1, 13)
Told = tuple[Tensor, list[SlotSnapshot]]
OPTIMISERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False),
    "named": lambda model: SGD(model.named_parameters(), lr=0.05, momentum=0.9),
}


def _model(kind: str = "adam") -> GrowingModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host = ConvNet(1, 3, dims=1, widths=(3, 5, 7), pools=(1, 1, 1), norm="batch")
    model = esper.wrap(host, ["blocks.*"], X)
    model.attach(OPTIMISERS[kind](model))
    return model


def _epoch(model: GrowingModel) -> Told:
    assert model.care is not None
    model.tick()
    for _ in range(2):
        model.care.optimizer.zero_grad()
        out = model(X)
        assert isinstance(out, Tensor)
        out.square().mean().backward()
        model.care.optimizer.step()
    for name, slot in model.slots.items():
        if slot.stage.is_live:
            model.report(
                name,
                contribution=0.25,
                probe=0.5,
                gradient_norm=2.0,
                gradient_health=0.75,
                gradients_finite=True,
            )
    return out.detach(), [slot.snapshot() for slot in model.slots.values()]


def _live(model: GrowingModel, epochs: int, start: int = 0) -> list[Told]:
    """Epochs 0 to 5 end with a fossil, a seed in HOLDING and none in the third slot."""
    told = []
    for epoch in range(start, start + epochs):
        if epoch == 0:
            model.germinate("blocks.0", "conv_small")
        if epoch == 1:
            model.advance("blocks.0")
        if epoch == 2:
            model.germinate("blocks.1", "mixer")
        if epoch == 3:
            model.advance("blocks.1")
        if epoch == 5:
            model.fossilize("blocks.0")
        told.append(_epoch(model))
    return told


def _same(one: list[Told], other: list[Told]) -> bool:
    return all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in zip(one, other, strict=True))


def _wait(model: GrowingModel) -> None:
    del model


def _germinate(model: GrowingModel) -> None:
    model.germinate("blocks.2", "norm")


def _prune(model: GrowingModel) -> None:
    model.prune("blocks.1")


def _fade(model: GrowingModel) -> None:
    model.prune("blocks.1", alpha_speed=3)


def _fossilize(model: GrowingModel) -> None:
    model.fossilize("blocks.1")


def _retarget(model: GrowingModel) -> None:
    model.set_alpha_target("blocks.1", 0.5)


def _retire(model: GrowingModel) -> None:
    model.tick()
    model.tick()
    model.tick()
    model.retire("blocks.0")


def _retire_slowly(model: GrowingModel) -> None:
    model.tick()
    model.tick()
    model.tick()
    model.retire("blocks.0", alpha_speed=3)


def _ruin(model: GrowingModel) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(torch.nan if tensor.is_floating_point() else 1)


CHANGES = (_wait, _germinate, _prune, _fade, _fossilize, _retarget, _retire, _retire_slowly, _ruin)
MOVING = (_germinate, _fossilize, _ruin)
"""Those after which an optimiser has more, fewer or other parameters: in the fast tests, each optimiser has these."""


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(kind, change, marks=[] if kind == "adam" or change in MOVING else pytest.mark.slow)
        for kind in OPTIMISERS
        for change in CHANGES
    ],
)
def test_what_happened_since_is_undone(kind: str, change: Callable[[GrowingModel], None]) -> None:
    model, straight = _model(kind), _model(kind)
    for each in (model, straight):
        seen = _live(each, 6)[-1][1]
    snapshot = ModelSnapshot(model)
    change(model)
    for _ in range(4):  # a fading seed is gone by then
        _epoch(model)
    snapshot.restore()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [slot.snapshot() for slot in model.slots.values()] == seen
    assert _same([_epoch(model) for _ in range(3)], [_epoch(straight) for _ in range(3)])


def test_names_of_parameters_come_back_with_them() -> None:
    model = _model("named")
    _live(model, 6)
    assert model.care is not None
    groups = model.care.optimizer.param_groups
    names = [list(group["param_names"]) for group in groups]
    snapshot = ModelSnapshot(model)
    for change in (
        _fossilize,
        _fossilize,
        _prune,
    ):  # again after the first return, and after what came of that
        change(model)
        assert [group["param_names"] for group in groups] != names
        snapshot.restore()
        assert [group["param_names"] for group in groups] == names
        assert [len(group["params"]) for group in groups] == list(map(len, names))


def test_an_optimiser_that_had_not_begun_has_not_begun() -> None:
    model, straight = _model("sgd"), _model("sgd")
    snapshot = ModelSnapshot(model)
    _epoch(model)
    snapshot.restore()
    assert model.care is not None
    assert not model.care.optimizer.state
    assert _same([_epoch(model)], [_epoch(straight)])


def test_a_fading_seed_comes_back_fading() -> None:
    model = _model()
    _live(model, 6)
    model.prune("blocks.1", alpha_speed=3)
    _epoch(model)
    snapshot, slot = ModelSnapshot(model), model.slots["blocks.1"]
    expected = [_epoch(model) for _ in range(3)]
    assert slot.seed is None
    snapshot.restore()
    assert slot.seed is not None
    assert slot.stage is Stage.BLENDING
    assert not any(parameter.requires_grad for parameter in slot.seed.parameters())
    assert _same([_epoch(model) for _ in range(3)], expected)


def test_it_can_be_gone_back_to_again_and_taken_again() -> None:
    model = _model()
    _live(model, 3)
    snapshot = ModelSnapshot(model)
    first = _live(model, 3, 3)
    for _ in range(2):
        snapshot.restore()
        assert _same(_live(model, 3, 3), first)
    snapshot.take()
    later = [_epoch(model) for _ in range(2)]
    snapshot.restore()
    assert _same([_epoch(model) for _ in range(2)], later)


def test_taking_it_again_reuses_the_memory_while_nothing_grows() -> None:
    model = _model()
    _live(model, 6)
    snapshot = ModelSnapshot(model)
    copies = snapshot._copies
    _epoch(model)
    snapshot.take()
    assert snapshot._copies is copies
    model.germinate("blocks.2", "norm")
    snapshot.take()
    assert snapshot._copies is not copies


class _Centred(nn.Module):
    """Assigns its running mean anew in each forward, as many do."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return x - self.mean


def test_a_buffer_that_is_assigned_anew_comes_back() -> None:
    centred = _Centred()
    model = esper.wrap(nn.Sequential(nn.Flatten(), nn.Linear(13, 7), centred), ["1"], X)
    model(X)
    snapshot, mean = ModelSnapshot(model), centred.mean.clone()
    model(X)
    copies = snapshot._copies
    snapshot.take()
    assert snapshot._copies is copies  # the memory is reused, although the buffer is another tensor
    assert not torch.equal(centred.mean, mean)
    mean = centred.mean.clone()
    model(X * torch.nan)
    assert centred.mean.isnan().all()
    snapshot.restore()
    assert torch.equal(centred.mean, mean)


def test_what_gradients_showed_is_remembered_without_a_report() -> None:
    model = _model()
    _live(model, 1)
    model.slots["blocks.0"].reported_gradients_finite = None
    assert model.slots["blocks.0"].gradients_finite() is True
    snapshot = ModelSnapshot(model)
    _live(model, 1, 1)
    snapshot.restore()
    assert model.slots["blocks.0"].gradients_finite() is True
    model.advance("blocks.0")


def test_schedulers_keep_as_many_entries_as_there_are_groups() -> None:
    with torch.random.fork_rng(devices=[]):
        host = ConvNet(1, 3, dims=1, widths=(3, 5), pools=(1, 1))
    model = esper.wrap(host, ["blocks.*"], X)
    optimizer = SGD(model.parameters(), lr=0.1)
    schedulers = [StepLR(optimizer, 3), LambdaLR(optimizer, lambda epoch: 0.9**epoch)]
    model.attach(optimizer, schedulers)
    snapshot = ModelSnapshot(model)
    model.germinate("blocks.0", "norm")
    snapshot.restore()
    assert len(optimizer.param_groups) == 1
    for scheduler in schedulers:
        assert len(scheduler.base_lrs) == len(scheduler.get_last_lr()) == 1
    model.germinate("blocks.1", "norm")
    _epoch(model)
    for scheduler in schedulers:
        scheduler.step()
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_a_schedule_goes_on_as_if_nobody_had_gone_back(rate: float | Tensor) -> None:
    model = _model()
    model.detach()
    optimizer = Adam(model.parameters(), lr=rate, foreach=False)
    scheduler = StepLR(optimizer, 2, 0.1)
    model.attach(optimizer, scheduler)
    model.germinate("blocks.0", "norm")
    rates, snapshot = [], ModelSnapshot(model)
    for epoch in range(6):
        _epoch(model)
        if epoch in (2, 3):
            snapshot.restore()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])
    assert model.slots["blocks.0"].seed is not None
    _epoch(model)
    assert float(optimizer.param_groups[1]["lr"]) == pytest.approx(3 * 0.0001)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_a_rate_that_is_set_by_hand_stays(rate: float | Tensor) -> None:
    model = _model()
    model.detach()
    optimizer = Adam(model.parameters(), lr=rate, foreach=False)
    model.attach(optimizer)
    model.germinate("blocks.0", "norm")
    _epoch(model)
    snapshot = ModelSnapshot(model)
    lowered = optimizer.param_groups[0]["lr"] = rate * 0.01
    _epoch(model)
    snapshot.restore()
    assert optimizer.param_groups[0]["lr"] == lowered
    _epoch(model)
    assert float(optimizer.param_groups[1]["lr"]) == pytest.approx(3 * 0.001)


def test_a_group_that_was_added_meanwhile_stays() -> None:
    """Layers are unfrozen one after another: what is trained by then is trained on."""
    model = _model()
    model.detach()
    late = model.host.get_submodule("blocks.2")
    frozen = list(late.parameters())
    optimizer = SGD([p for p in model.parameters() if all(p is not q for q in frozen)], lr=0.1, momentum=0.9)
    model.attach(optimizer)
    model.germinate("blocks.0", "norm")
    _epoch(model)
    snapshot = ModelSnapshot(model)
    optimizer.add_param_group({"params": frozen, "lr": 0.01})
    model.germinate("blocks.1", "norm")
    _ruin(model)
    _epoch(model)
    for _ in range(2):
        snapshot.restore()
        assert [len(group["params"]) for group in optimizer.param_groups[2:]] == [len(frozen)]
        assert all(parameter not in optimizer.state for parameter in frozen)
        before = frozen[0].detach().clone()
        _epoch(model)
        assert frozen[0].isfinite().all()
        assert not torch.equal(frozen[0], before)


def test_a_model_without_an_optimiser_is_remembered_too() -> None:
    model = _model()
    model.detach()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    snapshot = ModelSnapshot(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    snapshot.restore()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), before, strict=True))


def test_a_seed_that_was_fossilised_since_is_guarded_again() -> None:
    model = _model()
    _live(model, 6)
    snapshot = ModelSnapshot(model)
    snapshot.take()
    model.fossilize("blocks.1")
    snapshot.restore()
    fossils = {name: slot.seed.part_of_host for name, slot in model.slots.items() if slot.seed is not None}
    assert fossils == {"blocks.0": True, "blocks.1": False}


def test_a_seed_follows_the_group_again_that_it_followed() -> None:
    """Its submodule was frozen when it was born; the seed that takes its place follows the submodule's own group."""
    model = _model()
    model.detach()
    own = list(model.host.get_submodule("blocks.1").parameters())
    optimizer = SGD([p for p in model.parameters() if all(p is not q for q in own)], lr=0.1)
    model.attach(optimizer)
    model.germinate("blocks.1", "norm")
    snapshot = ModelSnapshot(model)
    optimizer.add_param_group({"params": own, "lr": 0.01})
    model.remove("blocks.1")
    for _ in range(3):
        _epoch(model)
    model.germinate("blocks.1", "norm")
    _epoch(model)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01, 0.03])
    snapshot.restore()
    _epoch(model)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.3, 0.01])


def test_a_group_that_a_loop_holds_stays_the_optimisers() -> None:
    model = _model("sgd")
    assert model.care is not None
    groups = model.care.optimizer.param_groups
    model.germinate("blocks.0", "norm")
    held, snapshot = list(groups), ModelSnapshot(model)
    model.remove("blocks.0")
    model.germinate("blocks.1", "norm")
    _epoch(model)
    snapshot.restore()
    assert [id(group) for group in groups] == list(map(id, held))
    held[0]["lr"] = 0.5
    _epoch(model)
    assert groups[1]["lr"] == pytest.approx(3 * 0.5)


def test_a_group_that_was_added_meanwhile_keeps_no_fossil_that_leaves() -> None:
    model = _model("sgd")
    model.detach()
    late = list(model.host.get_submodule("blocks.2").parameters())
    optimizer = SGD([p for p in model.parameters() if all(p is not q for q in late)], lr=0.1)
    model.attach(optimizer)
    snapshot = ModelSnapshot(model)
    optimizer.add_param_group({"params": late, "lr": 0.01})
    grow_until(model, "blocks.2", Stage.FOSSILIZED, "norm")
    assert len(optimizer.param_groups[1]["params"]) > len(late)
    snapshot.restore()
    assert [id(p) for p in optimizer.param_groups[1]["params"]] == list(map(id, late))


def test_two_groups_without_parameters_stay_two() -> None:
    model = _model("sgd")
    model.detach()
    groups: list[dict[str, object]] = [{"params": []}, {"params": list(model.parameters())}, {"params": []}]
    optimizer = SGD(groups, lr=0.1)
    model.attach(optimizer)
    snapshot, held = ModelSnapshot(model), list(optimizer.param_groups)
    held[2]["lr"] = 0.7
    optimizer.add_param_group({"params": []})
    _epoch(model)
    for _ in range(2):
        snapshot.restore()
        assert [id(group) for group in optimizer.param_groups[:3]] == list(map(id, held))
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.7, 0.1]


class _Tables(nn.Module):
    """An expanded mask, and a table that grows with the batch wherever the forward runs."""

    mask: Tensor
    table: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1).expand(7), persistent=False)
        self.register_buffer("table", None, persistent=False)
        self.same = nn.Identity()
        self.same.register_buffer("mask", self.mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = 0.01 * torch.arange(len(x), dtype=x.dtype)[:, None]
        return x * self.mask + self.table[: len(x)]


def test_buffers_that_cannot_be_written_come_back() -> None:
    tables = _Tables()
    model = esper.wrap(nn.Sequential(nn.Flatten(), nn.Linear(13, 7), nn.Tanh(), tables), ["1"], X)
    optimizer = SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    with torch.inference_mode():
        model(torch.cat([X, X]))  # of validation
    assert tables.table is not None
    assert tables.table.is_inference()
    before, expected = {name: buffer.clone() for name, buffer in model.named_buffers()}, model(X)
    snapshot = ModelSnapshot(model)
    assert isinstance(expected, Tensor)
    for _ in range(2):
        _epoch(model)
        tables.mask = tables.same.mask = torch.full((7,), torch.nan)
        tables.table = None
        snapshot.restore()
        assert tables.mask is tables.same.mask
        now = dict(model.named_buffers())
        assert now.keys() == before.keys()
        assert all(torch.equal(buffer, now[name]) for name, buffer in before.items())
        out = model(X)
        assert isinstance(out, Tensor)
        assert torch.equal(out, expected)
    snapshot.take()
    _epoch(model)
    snapshot.restore()
    out = model(X)
    assert isinstance(out, Tensor)
    assert torch.equal(out, expected)
