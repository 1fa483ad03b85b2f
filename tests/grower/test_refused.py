"""A Grower that is refused leaves model and optimiser as they were: they make a proper one afterwards."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Optimizer

import esper
from esper.grower import Grower
from esper.kasmina import GrowingModel
from grower.loops import Loop, net


def hooks(model: nn.Module, optimizer: Optimizer) -> int:
    """How many there are on modules, gradients and the optimiser's step."""
    on_modules = sum(len(part._forward_hooks) for part in model.modules())
    on_gradients = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    return on_modules + on_gradients + len(optimizer._optimizer_step_pre_hooks)


def unsavable(model: nn.Sequential) -> nn.Sequential:
    """The model with a tensor that no file can hold, which is found out last."""
    model.register_buffer("wide", torch.ones(1).expand(6))
    return model


def make(model: nn.Module, optimizer: Optimizer, **options: object) -> Grower:
    loop = Loop()
    given: dict[str, object] = {"slots": ["0", "1"], "example_input": loop.inputs[:2]}
    given = {} if isinstance(model, GrowingModel) else given
    return Grower(model, optimizer=optimizer, validate=loop.validate, **(given | options))  # type: ignore[arg-type]


def require_usable(model: nn.Module, optimizer: Optimizer) -> None:
    """A Grower over both trains, and grows."""
    grower = make(model, optimizer, controller=esper.rule_policy("schedule", schedule="germinate mlp@0 t=1"))
    for _ in range(2):
        grower.step(train_loss=Loop().train(grower.model, optimizer))
    assert grower.model.slots["0"].seed is not None
    assert len(optimizer._optimizer_step_pre_hooks) == 2


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "attaching": ({"seed_lr_multiplier": 0.0}, "seed_lr_multiplier must be > 0"),
    "budget": ({"parameter_budget": 6}, "budget is 6"),
    "best": ({"keep_best": True}, r"host\.wide is an expanded tensor"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_nothing_is_left_behind(reason: str) -> None:
    options, message = REFUSED[reason]
    model = unsavable(net())
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message) as kept:  # the error holds the Grower, as notebooks do
        make(model, optimizer, **options)
    assert hooks(model, optimizer) == 0
    require_usable(model, optimizer)
    assert kept.value.__traceback__ is not None


def test_a_refused_optimizer_can_be_replaced() -> None:
    model = net()
    refused = LBFGS(model.parameters())
    with pytest.raises(TypeError, match="LBFGS cannot train a network that grows"):
        make(model, refused, layout="flat")
    assert hooks(model, refused) == 0
    require_usable(model, SGD(model.parameters(), lr=0.1))


def test_who_wrapped_a_model_keeps_it_wrapped() -> None:
    model = esper.wrap(unsavable(net()), ["0", "1"], Loop().inputs[:2])
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"host\.wide is an expanded tensor"):
        make(model, optimizer, keep_best=True)
    assert hooks(model, optimizer) == 2  # of the two slots
    require_usable(model, optimizer)


def test_an_optimizer_that_is_attached_stays_attached() -> None:
    model = esper.wrap(net(), ["0", "1"], Loop().inputs[:2])
    optimizer = SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    with pytest.raises(ValueError, match="an optimizer is attached already"):
        make(model, optimizer)
    assert model.care is not None
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_a_copy_keeps_the_seeds_it_came_with() -> None:
    grown = esper.wrap(unsavable(net()), ["0", "1"], Loop().inputs[:2])
    grown.germinate("1", "mlp")
    model = copy.deepcopy(grown.host)
    before = set(model.state_dict())
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"host\.wide is an expanded tensor"):
        make(model, optimizer, keep_best=True)
    assert set(model.state_dict()) == before
    assert len(optimizer._optimizer_step_pre_hooks) == 0
    require_usable(model, optimizer)


def test_no_gradient_is_waited_for_in_several_processes(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        bare = net()
        model = DistributedDataParallel(bare)
        optimizer = SGD(model.parameters(), lr=0.1)
        before = hooks(bare, optimizer)
        with pytest.raises(ValueError, match="budget is 6"):
            make(model, optimizer, parameter_budget=6)
        assert hooks(bare, optimizer) == before
    finally:
        dist.destroy_process_group()
