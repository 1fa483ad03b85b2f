"""What optimisers keep of a grown model comes back from a file: memory formats, and momentum of sparse gradients."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.describing import describe
from esper.kasmina.hosts import ConvNet
from esper.kasmina.persistence import ModelFileError, reinstate
from esper.kasmina.tree import names_a_seed
from esper.leyline import Stage
from tiny import grow_until


def test_fused_optimisers_find_their_state_in_the_weights_memory_format(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 5 * 3 * 16).view(5, 3, 4, 4)
    models = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            host = ConvNet(3, 3, dims=2, widths=(4, 5), pools=(1, 1))
        model = esper.wrap(host.to(memory_format=torch.channels_last), ["blocks.*"], x)  # type: ignore[call-overload]
        model.attach(Adam(model.parameters(), lr=0.01, fused=True))
        models.append(model)
    straight, resumed = models
    _descend(straight, x)
    straight.save(tmp_path / "m.safetensors")
    resumed.load(tmp_path / "m.safetensors")
    for model in models:
        _descend(model, x)
    for ours, theirs in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _descend(model: GrowingModel, x: Tensor) -> None:
    assert model.care is not None
    for _ in range(3):
        model.care.optimizer.zero_grad()
        model(x).square().mean().backward()
        model.care.optimizer.step()


def test_momentum_of_sparse_gradients_is_saved(tmp_path: Path) -> None:
    """It is a sparse tensor, which safetensors does not know; training goes on alike but for the order of sums."""
    x = torch.randint(11, (7, 5), generator=torch.Generator().manual_seed(1))

    def made() -> GrowingModel:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            host = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten(), nn.Linear(20, 3))
        model = esper.wrap(host, ["2"], x)
        model.attach(SGD(model.parameters(), lr=0.1, momentum=0.9))
        return model

    model, other = made(), made()
    model.germinate("2", "mlp")
    _descend(model, x[:3])
    model.save(tmp_path / "grown.safetensors")
    other.load(tmp_path / "grown.safetensors")
    _descend(model, x[3:])
    _descend(other, x[3:])
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def _perceptron() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3))


def _frozen(groups: Callable[[nn.Module], list[dict[str, object]]]) -> tuple[GrowingModel, Optimizer]:
    """A model that may grow at its first, frozen part, and an optimiser of these groups."""
    host = _perceptron()
    host[0].requires_grad_(False)
    model, optimizer = esper.wrap(host, ["0"], X[:2]), AdamW(groups(host[1]), 0.02)
    model.attach(optimizer)
    return model, optimizer


def test_a_group_of_the_host_that_only_fossils_are_in_stays_the_hosts(tmp_path: Path) -> None:
    def groups(head: nn.Module) -> list[dict[str, object]]:
        return [{"params": [], "lr": 0.5}, {"params": list(head.parameters())}]

    model, optimizer = _frozen(groups)
    grow_until(model, "0", Stage.FOSSILIZED, "mlp")
    _descend(model, X)
    assert [len(group["params"]) for group in optimizer.param_groups] == [5, 2]
    model.save(tmp_path / "m.safetensors")
    model.load(tmp_path / "m.safetensors")
    resumed, theirs = _frozen(groups)
    resumed.load(tmp_path / "m.safetensors")
    for each in (model, resumed):
        _descend(each, X)
    _assert_alike(resumed, model)
    for each, its in ((model, optimizer), (resumed, theirs)):
        each.unwrap()
        assert [(len(group["params"]), group["lr"]) for group in its.param_groups] == [(0, 0.5), (2, 0.02)]


def _assert_alike(one: GrowingModel, other: GrowingModel) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def _unfreeze(model: GrowingModel, optimizer: Optimizer) -> None:
    own = [p for name, p in model.host.get_submodule("0").named_parameters() if not names_a_seed(name)]
    for parameter in own:
        parameter.requires_grad_(True)
    optimizer.add_param_group({"params": own, "lr": 0.001})


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.HOLDING, Stage.FOSSILIZED])
def test_a_seed_goes_on_in_the_group_it_was_born_beside(stage: Stage, tmp_path: Path) -> None:
    """Its submodule was unfrozen later, in a group of its own: by then the seed follows the head's, or is in it."""

    def groups(head: nn.Module) -> list[dict[str, object]]:
        return [{"params": list(head.parameters())}]

    (straight, ours), (resumed, theirs) = _frozen(groups), _frozen(groups)
    grow_until(straight, "0", stage, "mlp")
    _descend(straight, X)
    _unfreeze(straight, ours)
    _descend(straight, X)
    straight.save(tmp_path / "m.safetensors")
    _unfreeze(resumed, theirs)
    resumed.load(tmp_path / "m.safetensors")
    for each in (straight, resumed):
        _descend(each, X)
    rates = [group["lr"] for group in ours.param_groups]
    assert rates == [group["lr"] for group in theirs.param_groups]
    assert rates == ([0.02, 0.001] if stage is Stage.FOSSILIZED else [0.02, 0.02, 0.001])
    _assert_alike(resumed, straight)
    straight.load(tmp_path / "m.safetensors")  # also into what has grown


@pytest.mark.parametrize("homes", [{"0": 1}, {"0": 7}, {"0": 0, "1": 0}])
def test_groups_that_are_not_the_hosts_are_followed_by_no_seed(homes: dict[str, int]) -> None:
    model, _ = _frozen(lambda head: [{"params": list(head.parameters())}])
    grow_until(model, "0", Stage.TRAINING, "mlp")
    record, tensors = describe(model)
    assert record.optimizer is not None
    assert record.optimizer.homes == {"0": 0}
    spoilt = record.model_copy(update={"optimizer": record.optimizer.model_copy(update={"homes": homes})})
    with pytest.raises(ModelFileError, match="which are not all of the host"):
        reinstate(model, spoilt, tensors)


@pytest.mark.parametrize("older", [False, True])
def test_names_of_parameters_are_those_of_the_optimiser_that_takes_them(older: bool) -> None:
    """Its order may be another, and older files hold the names in theirs."""

    def made(order: int) -> tuple[GrowingModel, Optimizer]:
        model = esper.wrap(_perceptron(), ["0"], X[:2])
        optimizer = AdamW(list(model.named_parameters())[::order], 0.02)
        model.attach(optimizer)
        return model, optimizer

    (model, ours), (other, theirs) = made(1), made(-1)
    grow_until(model, "0", Stage.FOSSILIZED, "mlp")
    _descend(model, X)
    record, tensors = describe(model)
    assert record.optimizer is not None
    assert all("param_names" not in group.options for group in record.optimizer.groups)
    if older:
        (group,) = record.optimizer.groups
        named = group.model_copy(
            update={"options": group.options | {"param_names": [*ours.param_groups[0]["param_names"]]}}
        )
        saved = record.optimizer.model_copy(update={"groups": [named]})
        record = record.model_copy(update={"optimizer": saved})
    reinstate(other, record, tensors)
    names = {id(parameter): name for name, parameter in other.named_parameters()}
    (group_here,) = theirs.param_groups
    assert group_here["param_names"] == [names[id(parameter)] for parameter in group_here["params"]]
    for each in (model, other):
        _descend(each, X)
    _assert_alike(other, model)
    other.detach()
    other.attach(SGD(other.host.get_submodule("0.0").named_parameters(), 0.1))  # a fossil is in no group yet
    assert other.care is not None
    (bare,) = other.care.optimizer.param_groups
    assert len(bare["param_names"]) == len(bare["params"]) == 7
