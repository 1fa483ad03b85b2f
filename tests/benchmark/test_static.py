"""A wider host of the same parameters, and what a step costs."""

import pytest
import torch
from torch import nn

from esper.benchmark.matching import NotWidenable, require_widenable, shape_of, widened, widened_case
from esper.benchmark.playing import FlopLedger, count_step
from esper.kasmina.hosts import MLP, ConvNet
from esper.tolaria.tasks import Instance, all_tasks, task
from esper.tolaria.worlds.engine import EngineWorld
from tiny_tasks import BATCH, CLASSES, LENGTH, advance, germinate
from world_steps import begin_host, run_epoch


def parameters(host: nn.Module) -> int:
    return sum(parameter.numel() for parameter in host.parameters())


@pytest.mark.parametrize(
    "host",
    [
        ConvNet(1, 10, dims=1),
        ConvNet(3, 7, dims=2, widths=(5, 3), pools=(2, 1), kernel=1, norm="batch"),
        ConvNet(2, 5, dims=2, widths=(3,), pools=(1,), norm="none"),
    ],
)
def test_a_shape_says_what_a_host_is_made_of(host: ConvNet) -> None:
    shape = shape_of(host)
    assert shape.parameters == parameters(host)
    assert str(shape.build()) == str(host)


@pytest.mark.parametrize("wanted", [1426, 1500, 2139, 4000, 20_000])
def test_a_widened_host_has_the_parameters_wanted(wanted: int) -> None:
    shape = widened(shape_of(ConvNet(1, 10, dims=1)), wanted)
    assert parameters(shape.build()) == shape.parameters
    assert shape.parameters == pytest.approx(wanted, rel=0.01)
    assert shape.pools == (1, 2, 2)


def test_only_hosts_that_can_be_widened_are() -> None:
    with pytest.raises(NotWidenable, match="how to widen a MLP is not known"):
        shape_of(MLP(3, 2))


def test_a_widened_case_is_there_while_it_is_needed(tiny: str) -> None:
    before = all_tasks()
    with widened_case(f"{tiny}:samples=31", 500) as case:
        instance = Instance.parse(case)
        data = instance.load()
        assert parameters(task(instance.task).host(data)) == pytest.approx(500, rel=0.05)
        assert len(data.phases[0].train) == 31
        world = EngineWorld(1)
        begin_host(world, 0, case, 0)
        assert world.host(0).host_parameters == pytest.approx(500, rel=0.05)
    assert all_tasks() == before


@pytest.mark.parametrize(
    "case",
    [
        "drawn_series:host=conv,width=6",
        "drawn_tables",
        "drawn_digits:host=attention",
        "drawn_sequences:host=mixer",
    ],
)
def test_a_host_that_its_instance_chooses_is_widened_by_its_parameter(case: str) -> None:
    require_widenable(case)
    narrow = Instance.parse(case)
    size = parameters(narrow.row.host(narrow.load()))
    with widened_case(case, 2 * size) as written:
        wide = Instance.parse(written)
        found = parameters(wide.row.host(wide.load()))
    assert dict(wide.parameters).items() - {("width", dict(wide.parameters)["width"])} <= set(
        narrow.parameters
    )
    assert found == pytest.approx(2 * size, rel=0.1)
    with widened_case(case, size) as written:
        assert Instance.parse(written) == narrow


def test_flops_known_answer(tiny: str) -> None:
    world = EngineWorld(1)
    begin_host(world, 0, tiny, 0)
    convolutions = [(1, 3), (3, 5), (5, 7)]
    forward = sum(2 * BATCH * LENGTH * 3 * size_in * size_out for size_in, size_out in convolutions)
    first = 2 * BATCH * LENGTH * 3 * 1 * 3  # nobody needs the gradient of the data
    head = 2 * BATCH * 7 * CLASSES
    assert count_step(world.host(0)) == 3 * (forward + head) - first
    assert FlopLedger().epoch(world.host(0)) == 3 * count_step(
        world.host(0)
    )  # steps of an epoch of `tiny` here


def test_flops_of_attention_are_counted_on_every_device() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "drawn_functions:depth=1,features=5,host=attention,width=4", 0)
    batch, positions, width = world.host(0).task.batch, 5, 4
    maps = (
        3 * width * width + width * width + 2 * (2 * width * width)
    )  # queries, keys and values; out; two layers
    attending = 2 * positions * width  # with every key, and of every value, in all heads together
    forward = 2 * batch * positions * (maps + attending) + 2 * batch * width
    assert count_step(world.host(0)) == 3 * forward


def test_seeds_cost_by_kind_and_stage(tiny: str) -> None:
    world, ledger = EngineWorld(1), FlopLedger()
    begin_host(world, 0, tiny, 0)
    bare = ledger.epoch(world.host(0))
    world.host(0).apply(germinate(1, "mixer"))
    isolated = ledger.epoch(world.host(0))
    run_epoch(world)
    world.host(0).apply(advance(1))
    run_epoch(world)
    blended = ledger.epoch(world.host(0))
    assert bare < isolated < blended  # blended, its gradient goes on to what is before it
    begin_host(world, 0, tiny, 1)
    assert ledger.epoch(world.host(0)) == bare
    world.host(0).apply(germinate(1, "norm"))
    assert ledger.epoch(world.host(0)) < isolated


def test_counting_leaves_the_host_alone(pictures: str) -> None:
    world = EngineWorld(1)
    begin_host(world, 0, pictures, 0)
    host = world.host(0)
    before = {name: value.clone() for name, value in host.model.state_dict().items()}
    assert any("running_mean" in name for name in before)
    count_step(host)
    assert all(torch.equal(before[name], value) for name, value in host.model.state_dict().items())
    assert all(parameter.grad is None for parameter in host.model.parameters())
