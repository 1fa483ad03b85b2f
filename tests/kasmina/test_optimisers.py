"""Optimisers and schedulers stay right while parameters come and go."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import esper
from esper.kasmina import BlueprintError, GrowingModel, forget
from esper.kasmina.blueprints import Site
from esper.leyline import Layout, Stage
from tiny import SLOT, grow_until, tiny_host, tiny_input, tiny_model

MakeOptimiser = Callable[[object], Optimizer]
OPTIMISERS: dict[str, MakeOptimiser] = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),  # type: ignore[arg-type]
    "adam": lambda p: Adam(p, lr=0.01),  # type: ignore[arg-type]
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),  # type: ignore[arg-type]
    "fused adam": lambda p: Adam(p, lr=0.01, fused=True),  # type: ignore[arg-type]
}


def _seed_parameters(model: GrowingModel) -> list[nn.Parameter]:
    seed = model.slots[SLOT].seed
    assert seed is not None
    return list(seed.parameters())


def _train(model: GrowingModel, optimizer: Optimizer, steps: int = 2) -> None:
    x = tiny_input(Layout.FLAT)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        assert isinstance(out, Tensor)
        (out - 1).square().mean().backward()
        optimizer.step()


def _groups_of(optimizer: Optimizer, parameters: list[nn.Parameter]) -> set[int]:
    wanted = {id(p) for p in parameters}
    return {
        index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in wanted
    }


@pytest.fixture(params=OPTIMISERS)
def growing(request: pytest.FixtureRequest) -> tuple[GrowingModel, Optimizer]:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = OPTIMISERS[request.param](model.parameters())
    model.attach(optimizer)
    return model, optimizer


def test_germination_adds_a_group_of_its_own(growing: tuple[GrowingModel, Optimizer]) -> None:
    model, optimizer = growing
    _train(model, optimizer)
    host_state = {p: dict(s) for p, s in optimizer.state.items()}
    model.germinate(SLOT, "mlp")
    assert len(optimizer.param_groups) == 2
    assert _groups_of(optimizer, _seed_parameters(model)) == {1}
    home, own = optimizer.param_groups
    assert own["lr"] == pytest.approx(3 * home["lr"])
    rest = set(home) - {"params", "lr"}
    assert {key: own[key] for key in rest} == {key: home[key] for key in rest}
    for parameter, state in host_state.items():
        assert all(optimizer.state[parameter][key] is value for key, value in state.items())
    _train(model, optimizer)
    assert all(p in optimizer.state for p in _seed_parameters(model))


def test_pruning_removes_group_and_state(growing: tuple[GrowingModel, Optimizer]) -> None:
    model, optimizer = growing
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    _train(model, optimizer)
    leaving, staying = _seed_parameters(model), list(model.bare_parameters())
    model.prune(SLOT)
    assert len(optimizer.param_groups) == 1
    assert _groups_of(optimizer, leaving) == set()
    assert set(optimizer.state) == set(staying)
    _train(model, optimizer)


def test_a_fading_seed_is_frozen(growing: tuple[GrowingModel, Optimizer]) -> None:
    model, optimizer = growing
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    _train(model, optimizer)
    parameters = _seed_parameters(model)
    model.prune(SLOT, alpha_speed=3)
    frozen = [p.detach().clone() for p in parameters]
    before = [p.detach().clone() for p in model.bare_parameters()]
    model.tick()
    _train(model, optimizer, 3)
    assert all(torch.equal(p, was) for p, was in zip(parameters, frozen, strict=True))
    assert not any(torch.equal(p, was) for p, was in zip(model.bare_parameters(), before, strict=True))
    assert len(optimizer.param_groups) == 1


def test_fossilising_moves_without_losing_momentum(growing: tuple[GrowingModel, Optimizer]) -> None:
    model, optimizer = growing
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    _train(model, optimizer)
    parameters = _seed_parameters(model)
    state = {
        p: {k: v.clone() for k, v in optimizer.state[p].items() if isinstance(v, Tensor)} for p in parameters
    }
    assert all(any(v.any() for v in kept.values()) for kept in state.values())
    model.fossilize(SLOT)
    assert len(optimizer.param_groups) == 1
    assert _groups_of(optimizer, parameters) == {0}
    for parameter, kept in state.items():
        assert all(torch.equal(optimizer.state[parameter][key], value) for key, value in kept.items())
    _train(model, optimizer)


def test_a_seed_joins_the_group_of_its_own_submodule() -> None:
    model = tiny_model(Layout.FLAT, 8)
    host = model.host
    optimizer = AdamW(
        [
            {"params": host.first.parameters(), "lr": 0.1, "weight_decay": 0.5},  # type: ignore[union-attr]
            {"params": host.middle.parameters(), "lr": 0.2, "weight_decay": 0.25},  # type: ignore[union-attr]
            {"params": host.last.parameters(), "lr": 0.3},  # type: ignore[union-attr]
        ]
    )
    model.attach(optimizer, seed_lr_multiplier=2.0)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    assert optimizer.param_groups[3]["lr"] == pytest.approx(0.4)
    assert optimizer.param_groups[3]["weight_decay"] == 0.25
    model.fossilize(SLOT)
    assert _groups_of(optimizer, _seed_parameters(model)) == {1}


@pytest.mark.parametrize(("frozen", "rate"), [(("first", "middle"), 0.1), (("first",), 0.3), ((), 0.3)])
def test_a_seed_learns_thrice_as_fast_as_its_part_but_not_in_a_frozen_host(
    frozen: tuple[str, ...], rate: float
) -> None:
    model = tiny_model(Layout.FLAT, 8)
    for part in frozen:
        model.host.get_submodule(part).requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    assert optimizer.param_groups[-1]["lr"] == pytest.approx(rate)
    model.detach()  # and attached again: the seed that learns makes no learner of the host
    model.attach(SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert model.care is not None
    assert model.care.optimizer.param_groups[-1]["lr"] == pytest.approx(rate)


def test_a_seed_joins_the_group_that_holds_most_of_its_submodule() -> None:
    """Biases without decay come first; the seed's matrices belong with the matrices."""
    model = tiny_model(Layout.FLAT, 8)
    biases = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = AdamW([{"params": biases, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.3}])
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    assert optimizer.param_groups[2]["weight_decay"] == 0.3
    model.fossilize(SLOT)
    assert _groups_of(optimizer, _seed_parameters(model)) == {1}


def test_attaching_late_sorts_the_seeds_out() -> None:
    """An optimiser made from model.parameters() after germination already holds the seed's."""
    model = tiny_model(Layout.FLAT, 8)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    optimizer = Adam(model.parameters(), lr=0.01)
    _train(model, optimizer)
    moments = [optimizer.state[p]["exp_avg"].clone() for p in _seed_parameters(model)]
    model.attach(optimizer)
    assert _groups_of(optimizer, _seed_parameters(model)) == {1}
    assert _groups_of(optimizer, list(model.bare_parameters())) == {0}
    for parameter, moment in zip(_seed_parameters(model), moments, strict=True):
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moment)


def test_attaching_late_knows_kept_and_fading_seeds() -> None:
    model = tiny_model(Layout.FLAT, 8)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    parameters = _seed_parameters(model)
    optimizer = Adam(model.parameters(), lr=0.01)
    model.prune(SLOT, alpha_speed=3)
    model.attach(optimizer)
    assert _groups_of(optimizer, parameters) == set()
    kept = tiny_model(Layout.FLAT, 8)
    grow_until(kept, SLOT, Stage.FOSSILIZED, "mlp")
    optimizer = Adam(kept.bare_parameters(), lr=0.01)
    kept.attach(optimizer)
    assert _groups_of(optimizer, _seed_parameters(kept)) == {0}


def test_detaching_leaves_no_hook() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.parameters(), lr=0.01)
    before = len(optimizer._optimizer_step_pre_hooks)
    model.attach(optimizer)
    model.detach()
    assert len(optimizer._optimizer_step_pre_hooks) == before


def test_named_parameters_keep_their_names() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.named_parameters(), lr=0.01)
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "lora")
    parts = ("scale", "body.0.weight", "body.1.weight")
    assert optimizer.param_groups[1]["param_names"] == [
        f"{model.slots[SLOT].prefix}.{part}" for part in parts
    ]
    model.fossilize(SLOT)
    names, params = (optimizer.param_groups[0][key] for key in ("param_names", "params"))
    assert len(names) == len(params) == len(set(names))
    optimizer.load_state_dict(optimizer.state_dict())


def test_after_loading_optimiser_state_growth_goes_on() -> None:
    """load_state_dict makes new group dicts; nothing may hold on to the old ones."""
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    _train(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    model.fossilize(SLOT)
    assert len(optimizer.param_groups) == 1
    assert _groups_of(optimizer, _seed_parameters(model)) == {0}


def test_tensor_learning_rates_are_not_shared() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False, foreach=False)
    model.attach(optimizer)
    model.germinate(SLOT, "mlp")
    home, own = optimizer.param_groups
    own["lr"].fill_(1.0)
    assert home["lr"].item() == pytest.approx(0.01)


def test_what_cannot_be_attached_is_refused() -> None:
    model = tiny_model(Layout.FLAT, 8)
    optimizer = Adam(model.parameters())
    with pytest.raises(TypeError, match=r"optimizer is a list; expected a torch\.optim\.Optimizer"):
        model.attach([optimizer])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds none of the host's parameters"):
        model.attach(Adam(tiny_host(Layout.FLAT).parameters()))
    with pytest.raises(ValueError, match="seed_lr_multiplier must be > 0, not 0"):
        model.attach(optimizer, seed_lr_multiplier=0)
    model.attach(optimizer)
    with pytest.raises(ValueError, match="attached already"):
        model.attach(optimizer)
    model.detach()
    model.attach(optimizer)


def test_a_refused_germination_leaves_the_optimiser_alone() -> None:
    @esper.blueprint("broken", layouts=["flat"])
    def broken(site: Site) -> nn.Module:
        return nn.Linear(site.channels, site.channels + 1)

    try:
        model = tiny_model(Layout.FLAT, 8)
        optimizer = Adam(model.parameters())
        model.attach(optimizer)
        with pytest.raises(BlueprintError):
            model.germinate(SLOT, "broken")
        assert len(optimizer.param_groups) == 1
    finally:
        forget("broken")


def test_unwrapping_takes_the_seeds_out_of_the_optimiser(tmp_path: Path) -> None:
    model = tiny_model(Layout.FLAT, 5)
    optimizer = Adam(model.parameters())
    for _ in range(2):
        model.attach(optimizer)
        model.germinate(SLOT, "mlp")
        model.tick()
        _train(model, optimizer)
        host = model.unwrap()
        assert [len(group["params"]) for group in optimizer.param_groups] == [len(list(host.parameters()))]
        assert len(optimizer.state) == len(list(host.parameters()))
        assert not optimizer._optimizer_step_pre_hooks
        model = esper.wrap(host, [SLOT], tiny_input(Layout.FLAT))
    model.attach(optimizer)
    model.save(tmp_path / "again.safetensors")


def test_a_scaler_that_is_attached_can_be_pickled() -> None:
    model, scaler = tiny_model(Layout.FLAT, 5), torch.amp.GradScaler("cpu", init_scale=8.0)
    model.attach(SGD(model.parameters(), lr=0.1), scaler=scaler)
    assert pickle.loads(pickle.dumps(scaler)).get_scale() == 8.0
