"""A fossil that is given back in a world: the engine, workers, a saved host, the governor, and the toy."""

import io

import pytest
import torch

from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp, Settling, Stage, World
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case
from tiny_tasks import advance, germinate
from worker_worlds import tiny_engine

SCRIPT: dict[int, ActionSpec] = {
    0: germinate(0),
    1: advance(0),
    2: germinate(2, "mixer"),
    3: advance(2),
    5: ActionSpec(LifecycleOp.FOSSILIZE, "blocks.0"),
    7: ActionSpec(LifecycleOp.FOSSILIZE, "blocks.2"),
    9: ActionSpec(LifecycleOp.RETIRE, "blocks.0", alpha_speed=3),
    15: germinate(0, "mixer"),
}
RETIRES, GONE, EPOCHS = 9, 12, 17
TOY = toy_case(17, slots=3, noise=0.01)


def _begun(seed: int = 7) -> EngineWorld:
    world = EngineWorld(1)
    world.begin_many([Beginning(0, "tiny", seed)])
    return world


def _play(world: World, epochs: range, *, weigh: bool = True) -> list[str]:
    told = []
    for epoch in epochs:
        world.step_many([HostStep(0, SCRIPT.get(epoch, ActionSpec()), weigh_fossils=weigh)])
        told.append(f"{world.host(0).report} {world.host(0).readings()} {world.host(0).added_parameters}")
    return told


def test_its_parameters_and_what_training_cares_for_leave() -> None:
    world = _begun()
    host = world.host(0)
    added, stages = [], []
    for epoch in range(EPOCHS):
        _play(world, range(epoch, epoch + 1))
        added.append(host.added_parameters)
        stages.append(host.model.slots["blocks.0"].stage)
        learning = sorted(id(p) for p in host.model.parameters() if p.requires_grad)
        held = sorted(id(p) for group in host.optimizer.param_groups for p in group["params"])
        assert held == learning
    fossil, kept = (host.model.slots[name] for name in ("blocks.0", "blocks.2"))
    assert added[RETIRES - 1 : GONE - 1] == [added[RETIRES - 1]] * 3
    assert added[GONE - 1] == kept.parameter_count
    assert added[-1] == kept.parameter_count + fossil.parameter_count
    assert stages[RETIRES : GONE + 3] == [
        *[Stage.BLENDING] * 2,
        *[Stage.EMBARGOED] * 1,
        *[Stage.DORMANT] * 3,
    ]


def test_a_weighed_fossil_is_measured_as_if_it_were_left_out() -> None:
    world = _begun()
    _play(world, range(RETIRES))
    host = world.host(0)
    first, last = (host.readings()[place].contribution for place in (0, 2))
    model = host.model.eval()
    split, half = host.validation, host.observed_samples
    inputs, targets = split.inputs[:half], split.targets[:half]
    with torch.no_grad():
        right = (model(inputs).argmax(-1) == targets).float().mean().item()
        for name, measured in (("blocks.0", first), ("blocks.2", last)):
            with model.override_alpha({name: 0.0}):
                without = (model(inputs).argmax(-1) == targets).float().mean().item()
            assert measured == pytest.approx(right - without, abs=1e-6), name


def test_weighing_fossils_changes_nothing_but_what_is_known_of_them() -> None:
    weighed, plain = _begun(), _begun()
    _play(weighed, range(EPOCHS))
    _play(plain, range(EPOCHS), weigh=False)
    assert weighed.host(0).report == plain.host(0).report
    for one, other in zip(weighed.host(0).readings(), plain.host(0).readings(), strict=True):
        assert other.stage != Stage.FOSSILIZED or other.contribution != other.contribution
        assert repr(one._replace(contribution=0.0)) == repr(other._replace(contribution=0.0))


@pytest.mark.parametrize("saved_at", [RETIRES, RETIRES + 1, GONE, GONE + 2])
def test_a_host_saved_in_the_middle_goes_on_bit_for_bit(saved_at: int) -> None:
    straight = _begun()
    _play(straight, range(saved_at))
    buffer = io.BytesIO()
    torch.save(straight.snapshot([0]), buffer)
    buffer.seek(0)
    resumed = EngineWorld(1)
    resumed.restore(torch.load(buffer, weights_only=True))
    assert _play(resumed, range(saved_at, EPOCHS)) == _play(straight, range(saved_at, EPOCHS))
    weights = (world.host(0).model.state_dict() for world in (straight, resumed))
    assert all(
        torch.equal(one, other) for one, other in zip(*(each.values() for each in weights), strict=True)
    )


@pytest.mark.parametrize("epochs_after", [1, 3])
def test_the_governor_goes_back_across_a_retirement(epochs_after: int) -> None:
    """What broke since is undone: the fossil is one again, in the optimiser, and trains as it did."""
    world, straight = _begun(), _begun()
    for each in (world, straight):
        _play(each, range(RETIRES))
    host = world.host(0)
    before = host.snapshots()
    host.apply(SCRIPT[RETIRES])
    for _ in range(epochs_after):
        host.model.tick()
    with torch.no_grad():
        next(iter(host.model.bare_parameters())).fill_(torch.nan)
    world.step_many([HostStep(0, weigh_fossils=True)])
    assert host.report.rolled_back == "not_finite"
    assert host.snapshots() == before
    held = sorted(id(p) for group in host.optimizer.param_groups for p in group["params"])
    assert held == sorted(id(p) for p in host.model.parameters())
    host.epoch = straight.host(0).epoch
    assert _play(world, range(RETIRES, EPOCHS)) == _play(straight, range(RETIRES, EPOCHS))


def test_the_same_in_worker_processes() -> None:
    here = tiny_engine(1)
    here.begin_many([Beginning(0, "tiny", 7)])
    expected = _play(here, range(EPOCHS))
    with ProcessWorld(tiny_engine, num_hosts=1, workers=1) as world:
        world.begin_many([Beginning(0, "tiny", 7)])
        assert _play(world, range(EPOCHS)) == expected


def test_what_fades_is_settled_out() -> None:
    world = _begun()
    _play(world, range(RETIRES + 1))
    assert world.host(0).model.slots["blocks.0"].life.fading
    world.step_many([HostStep(0, None, Settling(0.01))])
    assert [slot.stage for slot in world.host(0).slots] == [
        Stage.EMBARGOED,
        Stage.DORMANT,
        Stage.FOSSILIZED,
    ]


def test_the_toy_gives_back_what_a_fossil_brought_and_keeps_a_scar() -> None:
    with_it, without = (ToyWorld(1) for _ in range(2))
    for world in (with_it, without):
        world.begin_many([Beginning(0, TOY, 0)])
    grown = {
        epoch: action for epoch, action in SCRIPT.items() if action.slot == "blocks.0" and epoch < RETIRES
    }
    for epoch in range(RETIRES):
        with_it.step_many([HostStep(0, grown.get(epoch, ActionSpec()), weigh_fossils=True)])
        without.step_many([HostStep(0)])
    one, other = with_it.host(0), without.host(0)
    effect = one.expected_at(RETIRES) - other.expected_at(RETIRES)
    assert one.readings()[0].contribution == pytest.approx(effect, abs=0.05)
    one.apply(ActionSpec(LifecycleOp.RETIRE, "blocks.0"))
    assert one.added_parameters == 0
    assert one.expected_at(RETIRES) == pytest.approx(other.expected_at(RETIRES) - 0.01)
    state = with_it.snapshot([0])
    again = ToyWorld(1)
    again.restore(state)
    for world in (again, with_it):
        world.step_many([HostStep(0, weigh_fossils=True)])
    assert repr(again.host(0).readings()) == repr(with_it.host(0).readings())
