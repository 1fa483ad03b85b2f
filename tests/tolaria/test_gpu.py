"""The engine on CUDA: captured steps give the CPU's numbers, wait for nothing, and leave no memory behind."""

import gc
from collections.abc import Iterator

import pytest
import torch

from cuda_waits import waits
from esper.leyline import ActionSpec, HostStep, LifecycleOp
from esper.tolaria.engine.population import OutOfDeviceMemory, Population
from esper.tolaria.engine.step import CapturedStep
from esper.tolaria.tasks import OptimiserSpec, forget, register
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import STEPS_ON_GPU, advance, germinate, tiny_task
from world_steps import begin_host, run_epoch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCRIPT: dict[int, ActionSpec] = {
    1: germinate(0),
    2: advance(0),
    3: germinate(2, "mixer"),
    6: ActionSpec(LifecycleOp.PRUNE, "blocks.2"),
    7: ActionSpec(LifecycleOp.FOSSILIZE, "blocks.0"),
}


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """No TF32, so that the devices can agree."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _play(world: EngineWorld, epochs: int, hosts: int = 2) -> list[list[float]]:
    told = []
    for epoch in range(epochs):
        if epoch in SCRIPT:
            world.host(0).apply(SCRIPT[epoch])
        run_epoch(world, range(hosts))
        told.append(
            [
                number
                for index in range(hosts)
                for number in (
                    world.host(index).report.train_loss or 0.0,
                    world.host(index).report.validation_loss,
                    world.host(index).report.gradient_norm or 0.0,
                )
            ]
        )
    return told


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_growing_life_has_the_numbers_of_the_cpu(kind: str) -> None:
    register(tiny_task("same", steps_per_epoch=STEPS_ON_GPU, optimiser=OptimiserSpec(kind=kind, lr=3e-3)))  # type: ignore[arg-type]
    try:
        told = []
        for device in ("cpu", "cuda"):
            world = EngineWorld(2, device)
            for index in range(2):
                begin_host(world, index, "same:change=4", index)
            told.append(torch.tensor(_play(world, 9)))
    finally:
        forget("same")
    assert torch.allclose(told[0], told[1], rtol=1e-2, atol=1e-3)
    assert torch.allclose(told[0][:2], told[1][:2], rtol=1e-4, atol=1e-5)


def test_contributions_and_probes_have_the_numbers_of_the_cpu() -> None:
    readings = []
    for device in ("cpu", "cuda"):
        world = EngineWorld(1, device)
        begin_host(world, 0, "tiny", 0)
        for epoch in range(4):
            if epoch in (1, 2, 3):
                world.host(0).apply(SCRIPT[epoch])
            run_epoch(world)
        first, _, last = world.host(0).readings()
        readings.append((first.contribution, last.probe, last.gradient_norm, last.gradient_health))
    assert readings[0] == pytest.approx(readings[1], abs=0.05)


RETIRED: dict[int, ActionSpec] = {
    0: germinate(0),
    1: advance(0),
    5: ActionSpec(LifecycleOp.FOSSILIZE, "blocks.0"),
    9: ActionSpec(LifecycleOp.RETIRE, "blocks.0", alpha_speed=3),
}


def test_a_retirement_has_the_numbers_of_the_cpu() -> None:
    """The step is captured anew when a fossil begins to fade and when it is gone; weighed fossils are stacked."""
    lives, contributions = [], []
    for device in ("cpu", "cuda"):
        world = EngineWorld(1, device)
        begin_host(world, 0, "tiny", 0)
        losses, weighed = [], []
        for epoch in range(15):
            world.step_many([HostStep(0, RETIRED.get(epoch, ActionSpec()), weigh_fossils=True)])
            losses.append([world.host(0).report.train_loss or 0.0, world.host(0).report.validation_loss])
            if 6 <= epoch < 9:
                weighed.append(world.host(0).readings()[0].contribution)
        assert world.host(0).added_parameters == 0
        lives.append(torch.tensor(losses))
        contributions.append(weighed)
    assert torch.allclose(lives[0], lives[1], rtol=2e-2, atol=1e-2)
    assert contributions[0] == pytest.approx(contributions[1], abs=0.05)


def test_the_hot_path_waits_for_nothing() -> None:
    world = EngineWorld(3, "cuda")
    for index in range(3):
        begin_host(world, index, "tiny", index)
        world.host(index).apply(germinate())
        world.host(index).apply(germinate(2, "mixer"))
    run_epoch(world, range(3))
    for index in range(3):
        world.host(index).apply(advance())
    run_epoch(world, range(3))
    population = world.population
    with waits("error"):
        for index in range(3):
            world.host(index).model.tick()
        population.train_epoch()
        population.validate()
    torch.cuda.synchronize()


def test_an_epoch_waits_once_however_many_hosts() -> None:
    """Reading the numbers is the one wait; governor and snapshots add none."""
    world = EngineWorld(3, "cuda")
    for index in range(3):
        begin_host(world, index, "tiny", index)
        world.host(index).apply(germinate())
    run_epoch(world, range(3))
    run_epoch(world, range(3))
    with waits("warn"), pytest.warns(UserWarning, match="synchronizing") as told:
        run_epoch(world, range(3))
    assert len([warning for warning in told if "synchronizing" in str(warning.message)]) == 1


def test_captured_again_when_the_topology_changes_and_not_when_alpha_does() -> None:
    population = Population(1, "cuda")
    host = population.begin(0, "tiny", 0)
    steps: list[object] = []
    alphas = []
    for epoch in range(6):
        if epoch in (1, 2):
            host.apply(SCRIPT[epoch])
        host.model.tick()
        population.train_epoch()
        host.model.report("blocks.0", gradients_finite=True) if epoch else None
        steps.append(population._steps[0])
        alphas.append(host.slots[0].alpha)
    assert all(isinstance(step, CapturedStep) for step in steps)
    assert [steps[i] is steps[i + 1] for i in range(5)] == [False, False, True, True, True]
    assert len(set(alphas)) > 3


def test_alpha_reaches_the_captured_step() -> None:
    """Two hosts, the same but for an alpha that moves between replays."""
    losses = []
    for moved in (False, True):
        population = Population(1, "cuda")
        host = population.begin(0, "tiny", 0)
        host.apply(germinate(0))
        host.model.tick()
        population.train_epoch()
        host.model.report("blocks.0", gradients_finite=True)
        host.apply(advance(0))
        host.model.tick()
        population.train_epoch()
        seed = host.slots[0].seed
        assert seed is not None
        if moved:
            seed.alpha.fill_(1.0)
        losses.append(population.train_epoch().loss.item())
    assert losses[0] != losses[1]


def test_only_the_broken_host_is_touched() -> None:
    told = []
    for broken in (False, True):
        world = EngineWorld(3, "cuda")
        for index in range(3):
            begin_host(world, index, "tiny", index)
            world.host(index).apply(germinate())
        for epoch in range(4):
            if epoch == 2 and broken:
                with torch.no_grad():
                    next(world.host(1).model.host.parameters()).fill_(float("nan"))
            run_epoch(world, range(3))
            if epoch == 2 and broken:
                assert world.host(1).report.rolled_back == "not_finite"
        told.append([world.host(index).report for index in range(3)])
    assert told[0][0] == told[1][0]
    assert told[0][2] == told[1][2]
    assert told[1][1].rolled_back is None


def test_memory_is_steady_over_topology_changes() -> None:
    population = Population(2, "cuda")
    for index in range(2):
        population.begin(index, "tiny", index)
    sizes = []
    for change in range(60):
        host = population.host(change % 2)
        slot = host.slots[1]
        if slot.stage.is_live:
            host.model.remove(slot.name)
        elif slot.stage.name == "DORMANT":
            host.apply(germinate(1, ("norm", "conv_small", "mixer")[change % 3]))
        host.model.tick()
        population.train_epoch()
        sizes.append(torch.cuda.memory_reserved())
    assert sizes[-1] <= sizes[19]


def test_fifty_worlds_leave_nothing_behind() -> None:
    """Of cuBLAS's workspaces too, which belong to streams and stay."""
    left = []
    for life in range(50):
        _live(hosts=1 + life % 4)
        gc.collect()
        torch.cuda.empty_cache()
        left.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert left[3:] == [left[3]] * 47


def _live(hosts: int) -> None:
    world = EngineWorld(hosts, "cuda")
    for index in range(hosts):
        begin_host(world, index, "synthetic:samples=512", index)
        world.host(index).apply(germinate(0))
    for _ in range(2):
        run_epoch(world, range(hosts))


def test_a_host_saved_on_cuda_goes_on_there() -> None:
    world = EngineWorld(2, "cuda")
    for index in range(2):
        begin_host(world, index, "tiny", index)
    _play(world, 4)
    state = world.snapshot([0])[0]
    rest = [_step(world), _step(world)]
    twin = EngineWorld(1, "cuda")
    twin.restore({0: state})
    assert [_step(twin), _step(twin)] == pytest.approx(rest, rel=1e-5)


def _step(world: EngineWorld) -> float:
    run_epoch(world)
    return world.host(0).report.validation_loss


def test_too_many_hosts_are_told_how_many_fit() -> None:
    register(tiny_task("large", batch=4096, steps_per_epoch=STEPS_ON_GPU))
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 400e6
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        population = Population(64, "cuda")
        for index in range(64):
            population.begin(index, "large:samples=5000", index)
        with pytest.raises(OutOfDeviceMemory, match=r"64 hosts .* about \d+ would fit"):
            population.train_epoch()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        forget("large")
