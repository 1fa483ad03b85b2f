"""Faults: the governor acts on the host that broke, and on nobody else."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from esper.leyline import (
    ActionSpec,
    EpochReport,
    Event,
    HostRolledBack,
    HostsLost,
    LifecycleOp,
    SlotSnapshot,
    Stage,
)
from esper.tolaria.tasks import forget, register
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import advance, germinate, tiny_task
from world_steps import act_on, begin_host, run_epoch

EPOCHS, FAULTY, FAULT_EPOCH = 6, 1, 3
Fault = Callable[[EngineWorld], None]
Told = tuple[EpochReport, tuple[SlotSnapshot, ...]]


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def _live(fault: Fault | None) -> tuple[EngineWorld, list[list[Told]], Recorder]:
    """Three hosts, each with a blended seed; at one epoch's beginning something breaks in the second."""
    recorder = Recorder()
    world = EngineWorld(3, events=lambda _: recorder)
    register(tiny_task("other"))  # data of its own for the one that will break
    try:
        for index in range(3):
            begin_host(world, index, "other" if index == FAULTY else "tiny", index)
    finally:
        forget("other")
    told: list[list[Told]] = [[], [], []]
    for epoch in range(EPOCHS):
        for index in range(3):
            if epoch < 2:
                world.host(index).apply(germinate() if epoch == 0 else advance())
        if epoch == FAULT_EPOCH and fault is not None:
            fault(world)
        run_epoch(world, [0, 1, 2])
        for index in range(3):
            told[index].append((world.host(index).report, world.host(index).snapshots()))
    return world, told, recorder


@cache
def _healthy() -> tuple[EngineWorld, list[list[Told]], Recorder]:
    """The same life with nothing broken, to be looked at only."""
    return _live(None)


def _nan_in_host(world: EngineWorld) -> None:
    with torch.no_grad():
        next(world.host(FAULTY).model.host.parameters())[0] = math.nan


def _nan_in_seed(world: EngineWorld) -> None:
    seed = world.host(FAULTY).slots[1].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale[0] = math.nan


def _inf_from_seed(world: EngineWorld) -> None:
    seed = world.host(FAULTY).slots[1].seed
    assert seed is not None

    def explode(module: object, args: object, output: Tensor) -> Tensor:
        del module, args
        handle.remove()
        return output + math.inf

    handle = seed.body.register_forward_hook(explode)


def _nan_in_gradient(world: EngineWorld) -> None:
    parameter = next(world.host(FAULTY).model.host.parameters())

    def poison(gradient: Tensor) -> Tensor:
        handle.remove()
        return gradient * math.nan

    handle = parameter.register_hook(poison)


def _nan_in_data(world: EngineWorld) -> None:
    """In one epoch's samples: put right again when that epoch has been drawn."""
    data = world.host(FAULTY).data
    good, stream = data.inputs.clone(), world.host(FAULTY).stream
    data.inputs[:] = math.nan
    load = stream.load_state_dict

    def heal(state: dict[str, Tensor]) -> None:
        data.inputs.copy_(good)
        load(state)

    stream.load_state_dict = heal  # type: ignore[method-assign,assignment]


def _huge_learning_rate(world: EngineWorld) -> None:
    for group in world.host(FAULTY).optimizer.param_groups:
        group["lr"] = 1e6


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "NaN in the host": (_nan_in_host, {"not_finite"}),
    "NaN in a seed": (_nan_in_seed, {"seed_not_finite"}),
    "a seed that puts out inf": (_inf_from_seed, {"seed_not_finite"}),
    "NaN in a gradient": (_nan_in_gradient, {"not_finite"}),
    "NaN in the data": (_nan_in_data, {"not_finite"}),
    "learning rate 1e6": (_huge_learning_rate, {"not_finite", "diverged", "seed_not_finite"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_host_is_restored_and_goes_on_and_no_other_is_touched(name: str) -> None:
    fault, verdicts = FAULTS[name]
    healthy_world, healthy, _ = _healthy()
    world, told, recorder = _live(fault)
    rollbacks = [event for event in recorder.events if isinstance(event, HostRolledBack)]
    assert [(event.host, event.epoch, event.rollbacks) for event in rollbacks] == [
        (FAULTY, FAULT_EPOCH + 1, 1)
    ]
    assert rollbacks[0].verdict in verdicts
    for index in (0, 2):
        assert told[index] == healthy[index]
        for ours, theirs in zip(
            world.host(index).model.parameters(), healthy_world.host(index).model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
    assert told[FAULTY][:FAULT_EPOCH] == healthy[FAULTY][:FAULT_EPOCH]
    broken = world.host(FAULTY)
    assert broken.report.rolled_back is None
    assert broken.report.epoch == EPOCHS
    assert all(torch.isfinite(parameter).all() for parameter in broken.model.parameters())
    # one epoch was lost: it stands where the healthy one stood an epoch ago, and the same numbers brought it there
    report, snapshots = healthy[FAULTY][EPOCHS - 2]
    assert broken.report.validation_loss == report.validation_loss
    assert broken.snapshots() == snapshots


def test_a_rollback_undoes_growth_too() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "tiny", 0)
    run_epoch(world)
    groups = len(world.host(0).optimizer.param_groups)
    world.host(0).apply(germinate())
    _break(world)
    run_epoch(world)
    host = world.host(0)
    assert host.report.rolled_back == "not_finite"
    assert _stage(world) is Stage.DORMANT
    assert host.added_parameters == 0
    assert len(host.optimizer.param_groups) == groups
    world.host(0).apply(germinate())
    run_epoch(world)
    assert _stage(world) is Stage.TRAINING
    assert host.report.rolled_back is None


def test_a_rollback_brings_a_pruned_seed_back() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "tiny", 0)
    for action in (germinate(), advance(), None):
        if action is not None:
            world.host(0).apply(action)
        run_epoch(world)
    seed = world.host(0).slots[1].seed
    world.host(0).apply(ActionSpec(LifecycleOp.PRUNE, "blocks.1"))
    _break(world)
    run_epoch(world)
    slot = world.host(0).slots[1]
    assert slot.seed is seed is not None
    assert _stage(world) is Stage.BLENDING
    assert all(parameter.requires_grad for parameter in seed.parameters())
    run_epoch(world)
    assert _stage(world) is Stage.HOLDING
    assert world.host(0).report.rolled_back is None


def _stage(world: EngineWorld) -> Stage:
    return world.host(0).slots[1].stage


def _break(world: EngineWorld) -> None:
    with torch.no_grad():
        next(world.host(0).model.host.parameters()).fill_(math.nan)


def test_a_host_that_breaks_again_and_again_is_given_up_after_the_others_had_their_epoch() -> None:
    register(tiny_task("hopeless"))
    world = EngineWorld(2)
    try:
        begin_host(world, 0, "hopeless", 0)
    finally:
        forget("hopeless")
    begin_host(world, 1, "tiny", 1)
    world.host(0).data.inputs[:] = math.nan
    for _ in range(3):
        run_epoch(world, [0, 1])
        assert world.host(0).report.rolled_back == "not_finite"
    with pytest.raises(HostsLost, match=r"host 0 \(hopeless, seed 0\): not_finite"):
        run_epoch(world, [0, 1])
    assert [world.host(index).report.epoch for index in range(2)] == [3, 4]
    assert world.host(1).report.rolled_back is None


def test_without_a_governor_nothing_is_restored() -> None:
    world = EngineWorld(1, governor=None)
    begin_host(world, 0, "tiny", 0)
    _break(world)
    run_epoch(world)
    assert world.host(0).report.rolled_back is None
    assert math.isnan(world.host(0).report.validation_loss)


def _collapse(world: EngineWorld) -> None:
    """Nothing is finite or large: the host has forgotten everything, and cannot learn."""
    host = world.host(0)
    with torch.no_grad():
        for parameter in host.model.parameters():
            parameter.zero_()
    for group in host.optimizer.param_groups:
        group["lr"] = 0.0


def test_a_host_that_collapsed_goes_back_to_when_it_had_learned() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "tiny", 0)
    for _ in range(5):
        run_epoch(world)
    good = world.host(0).report
    _collapse(world)
    run_epoch(world)
    assert world.host(0).report.rolled_back is None
    run_epoch(world)
    assert world.host(0).report.rolled_back == "collapsed"
    assert world.population.validate().loss.item() == good.validation_loss


@pytest.mark.parametrize("fault", ["growth", "collapse"])
def test_a_host_saved_before_its_rollback_goes_back_to_the_same_host(fault: str) -> None:
    """What is remembered is not always what is there: growth since then, or an epoch at chance."""
    world, twin = EngineWorld(1), EngineWorld(1)
    begin_host(world, 0, "tiny", 0)
    for action in (germinate(0), advance(0), None, None, None):
        if action is not None:
            world.host(0).apply(action)
        run_epoch(world)
    if fault == "growth":
        world.host(0).apply(ActionSpec(LifecycleOp.PRUNE, "blocks.0"))
        world.host(0).apply(germinate(2, "mixer"))
        before = world.host(0).snapshots()
        state = world.snapshot([0])[0]
        assert world.host(0).snapshots() == before
    else:
        _collapse(world)
        run_epoch(world)
        state = world.snapshot([0])[0]
    twin.restore({0: state})
    for each in (world, twin):
        if fault == "growth":
            _break(each)
        run_epoch(each)
        assert each.host(0).report.rolled_back is not None
    for _ in range(3):
        assert twin.host(0).snapshots() == world.host(0).snapshots()
        for ours, theirs in zip(
            world.host(0).model.parameters(), twin.host(0).model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
        for each in (world, twin):
            run_epoch(each)
        assert twin.host(0).report == world.host(0).report


def test_chance_is_that_of_the_data_at_hand() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "shift:change=1,size=500,classes=2", 0)
    governor = world.governor(0)
    assert governor is not None
    assert governor.chance_accuracy == pytest.approx(0.5, abs=0.05)
    for chance in (0.5, 0.1):
        run_epoch(world)
        assert governor.chance_accuracy == pytest.approx(chance, abs=0.05)


def test_a_seed_does_not_learn_from_a_gradient_that_is_not_finite() -> None:
    """Without a governor, who would put back what was spoilt."""
    world = EngineWorld(1, governor=None)
    begin_host(world, 0, "tiny", 0)
    for action in (germinate(), advance(), None):
        if action is not None:
            world.host(0).apply(action)
        run_epoch(world)
    seed = world.host(0).slots[1].seed
    assert seed is not None
    handle = seed.scale.register_hook(lambda gradient: gradient * math.nan)
    before = [parameter.detach().clone() for parameter in seed.parameters()]
    run_epoch(world)
    handle.remove()
    assert all(torch.equal(now, then) for now, then in zip(seed.parameters(), before, strict=True))
    assert world.host(0).snapshots()[1].gradients_finite is False
    assert math.isfinite(world.host(0).report.validation_loss)
    run_epoch(world)
    assert world.host(0).snapshots()[1].gradients_finite is True


def test_a_fading_seed_that_breaks_is_noticed_though_it_has_no_gradient() -> None:
    world = EngineWorld(2)
    for index in range(2):
        begin_host(world, index, "tiny", index)
    for action in (germinate(), advance(), None, ActionSpec(LifecycleOp.PRUNE, "blocks.1", alpha_speed=8)):
        if action is not None:
            world.host(FAULTY).apply(action)
        run_epoch(world, [0, 1])
    _inf_from_seed(world)
    run_epoch(world, [0, 1])
    assert [world.host(index).report.rolled_back for index in range(2)] == [None, "seed_not_finite"]


def test_what_was_reached_on_old_data_is_forgotten_with_them() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "tiny:change=2", 0)
    governor = world.governor(0)
    assert governor is not None
    best = []
    for _ in range(3):
        governor.best_accuracy = 2.0
        run_epoch(world)
        best.append(governor.best_accuracy == 2.0)
    assert best == [True, True, False]


@pytest.mark.parametrize(
    ("fades", "forgotten"), [(0, [False] * 3 + [True, False]), (3, [False] * 3 + [True] * 3 + [False])]
)
def test_what_was_reached_with_a_seed_is_forgotten_when_it_is_given_back(
    fades: int, forgotten: list[bool]
) -> None:
    """The head has to learn without it first, which a small one may take some epochs at chance for."""
    world = EngineWorld(1)
    begin_host(world, 0, "tiny", 0)
    governor = world.governor(0)
    assert governor is not None
    giving_back = ActionSpec(LifecycleOp.PRUNE, "blocks.1", alpha_speed=fades)
    found = []
    for action in (germinate(), advance(), ActionSpec(), giving_back, *[ActionSpec()] * (len(forgotten) - 4)):
        governor.best_accuracy = 2.0
        act_on(world, action)
        found.append(governor.best_accuracy != 2.0)
    assert found == forgotten
