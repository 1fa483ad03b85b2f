"""The engine as a world: reports, settling, and a host saved in the middle of its life."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from esper.kasmina.coalitions import Coalition, forward_coalitions, settle
from esper.leyline import ActionSpec, EpochReport, HostStep, LifecycleOp, Settling, Stage, World
from esper.leyline.utility import Family, utility
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import OptimiserSpec, forget, register
from esper.tolaria.worlds.engine import EngineWorld, read
from tiny_tasks import advance, germinate, picture_task
from world_steps import act_on, begin_host, run_epoch, settle_hosts

SCRIPT: dict[int, ActionSpec] = {
    0: germinate(0),
    1: advance(0),
    2: germinate(2, "mixer"),
    4: ActionSpec(LifecycleOp.PRUNE, "blocks.0", alpha_speed=3),
    5: advance(2),
    9: ActionSpec(LifecycleOp.FOSSILIZE, "blocks.2"),
}
EPOCHS = 12


def _play(world: EngineWorld, epochs: range) -> list[object]:
    told: list[object] = []
    for epoch in epochs:
        if epoch in SCRIPT:
            world.host(0).apply(SCRIPT[epoch])
        run_epoch(world)
        told.append((world.host(0).report, world.host(0).snapshots()))
    return told


def _begun(case: str = "tiny:change=6", seed: int = 7) -> EngineWorld:
    world = EngineWorld(1)
    begin_host(world, 0, case, seed)
    return world


def test_the_engine_is_a_world() -> None:
    world: World = _begun()
    assert world.host(0).report.epoch == 0


def test_the_same_seed_gives_the_same_life() -> None:
    assert _play(_begun(), range(EPOCHS)) == _play(_begun(), range(EPOCHS))
    assert _play(_begun(seed=9), range(EPOCHS)) != _play(_begun(seed=7), range(EPOCHS))


def _halved_life(scrambled: slice | None) -> tuple[list[EpochReport], list[str]]:
    """Reports and readings of a life that is settled at its end; `scrambled` samples have wrong targets."""
    world = _begun("tiny")
    host = world.host(0)
    if scrambled is not None:
        part = host.data.validations[0].targets[scrambled]
        part[:] = part.roll(1)
    reports, readings = list[EpochReport](), list[str]()
    for epoch in range(EPOCHS):
        if epoch in SCRIPT:
            host.apply(SCRIPT[epoch])
        run_epoch(world)
        reports.append(host.report)
        readings.append(repr(host.readings()))
    settle_hosts(world, rent=0.01)
    return [*reports, host.report], [*readings, repr(host.readings())]


def test_nothing_that_is_decided_by_depends_on_the_judged_half() -> None:
    """Observation, governor, contributions and settling read one half; the other rewards and selects."""
    observed = _begun("tiny").host(0).observed_samples
    reports, readings = _halved_life(None)
    other, same_readings = _halved_life(slice(observed, None))
    assert same_readings == readings
    assert [replace(one, judged_loss=0.0, judged_accuracy=0.0) for one in other] == [
        replace(one, judged_loss=0.0, judged_accuracy=0.0) for one in reports
    ]
    assert all(one.judged != two.judged for one, two in zip(reports, other, strict=True))
    assert reports[-1].judged != (reports[-1].validation_loss, reports[-1].validation_accuracy)
    seen, _ = _halved_life(slice(observed))
    assert [one.judged for one in seen[:EPOCHS]] == [one.judged for one in reports[:EPOCHS]]
    assert [one.validation_loss for one in seen] != [one.validation_loss for one in reports]


def test_a_host_learns() -> None:
    world = _begun("tiny")
    untrained = world.host(0).report
    assert untrained.train_loss is None
    for _ in range(EPOCHS):
        run_epoch(world)
    trained = world.host(0).report
    assert trained.epoch == EPOCHS
    assert trained.validation_accuracy is not None
    assert untrained.validation_accuracy is not None
    assert trained.validation_accuracy > untrained.validation_accuracy + 0.3
    assert trained.validation_loss < 0.5 * untrained.validation_loss


def test_what_was_measured_of_a_seed_is_told_to_its_slot() -> None:
    world = _begun("tiny")
    world.host(0).apply(germinate())
    run_epoch(world)
    reading = world.host(0).readings()[1]
    assert reading.probe == reading.probe  # not NaN
    assert reading.contribution != reading.contribution
    assert reading.gradient_norm > 0.0
    assert reading.legal >> LifecycleOp.ADVANCE & 1
    world.host(0).apply(advance())
    run_epoch(world)
    reading = world.host(0).readings()[1]
    assert reading.contribution == reading.contribution
    assert reading.probe != reading.probe


@cache
def _saved_life() -> tuple[EngineWorld, list[object], dict[int, bytes]]:
    """A life that was saved before every epoch: what happened in each, and the files."""
    world, told, files = _begun(), list[object](), dict[int, bytes]()
    for epoch in range(EPOCHS):
        file = io.BytesIO()
        torch.save(world.snapshot([0])[0], file)
        files[epoch] = file.getvalue()
        told += _play(world, range(epoch, epoch + 1))
    return world, told, files


def test_saving_changes_nothing() -> None:
    assert _saved_life()[1] == _play(_begun(), range(EPOCHS))


@pytest.mark.parametrize("saved_at", [1, 2, 3, 5, 6, 7, 10])
def test_a_host_saved_mid_episode_goes_on_bit_for_bit(saved_at: int) -> None:
    world, told, files = _saved_life()
    twin = EngineWorld(1)
    twin.restore({0: torch.load(io.BytesIO(files[saved_at]), weights_only=True)})
    assert _play(twin, range(saved_at, EPOCHS)) == told[saved_at:]
    for ours, theirs in zip(world.host(0).model.parameters(), twin.host(0).model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("saved_at", [1, 4])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_host_whose_channels_come_last_goes_on_bit_for_bit_too(kind: str, saved_at: int) -> None:
    register(picture_task(optimiser=OptimiserSpec(kind=kind, lr=1e-2)))  # type: ignore[arg-type]
    try:
        world, twin = _begun("pictures"), EngineWorld(1)
        _play(world, range(saved_at))
        twin.restore({0: world.snapshot([0])[0]})
    finally:
        forget("pictures")
    for parameter, state in twin.host(0).optimizer.state.items():
        assert all(v.stride() == parameter.stride() for v in state.values() if v.shape == parameter.shape)
    assert _play(twin, range(saved_at, 6)) == _play(world, range(saved_at, 6))


def test_an_action_needs_what_its_operation_needs() -> None:
    host = _begun().host(0)
    with pytest.raises(ValueError, match=r"ADVANCE needs a slot; the slots are blocks.0"):
        host.apply(ActionSpec(LifecycleOp.ADVANCE))
    with pytest.raises(ValueError, match=r"GERMINATE needs a blueprint; offered: conv_small, mixer"):
        host.apply(ActionSpec(LifecycleOp.GERMINATE, "blocks.0"))
    with pytest.raises(ValueError, match=r"unknown slot 'nowhere'; the slots are blocks.0"):
        host.apply(ActionSpec(LifecycleOp.GERMINATE, "nowhere"))


def test_an_operation_may_come_as_its_number() -> None:
    host = _begun().host(0)
    host.apply(ActionSpec(0, "blocks.0"))  # type: ignore[arg-type]
    host.apply(ActionSpec(1, "blocks.0", "norm"))  # type: ignore[arg-type]
    assert host.slots[0].stage is Stage.TRAINING
    with pytest.raises(ValueError, match="9 is not a valid LifecycleOp"):
        host.apply(ActionSpec(9, "blocks.0"))  # type: ignore[arg-type]


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0], [0, 2], []])
def test_hosts_that_cannot_have_their_epoch_do_not_cost_the_others_one(hosts: list[int]) -> None:
    world = EngineWorld(2)
    begin_host(world, 0, "tiny", 0)
    world.host(0).apply(germinate())
    with pytest.raises(ValueError, match=r"has not begun|host_idx"):
        run_epoch(world, hosts)
    assert world.host(0).readings()[1].age == 0


def test_a_host_outlives_a_beginning_that_was_refused() -> None:
    world = _begun("tiny")
    run_epoch(world)
    with pytest.raises(ValueError, match="no task is named"):
        begin_host(world, 0, "nonsense", 0)
    with torch.no_grad():
        next(world.host(0).model.host.parameters()).fill_(float("nan"))
    run_epoch(world)
    assert world.host(0).report.rolled_back == "not_finite"


# Settling


def _three_kinds() -> tuple[EngineWorld, TrainedHost]:
    """A blended seed in slot 0, a seed in TRAINING in slot 2."""
    world = _begun("tiny")
    world.host(0).apply(germinate(0))
    run_epoch(world)
    world.host(0).apply(advance(0))
    run_epoch(world)
    world.host(0).apply(germinate(2, "mixer"))
    run_epoch(world)
    return world, world.host(0)


NONE, FIRST, LAST = frozenset[str](), frozenset({"blocks.0"}), frozenset({"blocks.2"})
Measure = Callable[[Sequence[int]], list[dict[Coalition, float]]]


def _table(values: dict[Coalition, float]) -> Measure:
    return lambda rows: [values for _ in rows]


def test_settling_removes_what_is_unfinished_and_keeps_what_pays() -> None:
    _, host = _three_kinds()
    alpha = host.slots[0].alpha
    assert settle([host.model], 0.01, settle="worth", measure=_table({FIRST: 0.9, NONE: 0.5})) == [0]
    assert [slot.stage.is_live for slot in host.slots] == [True, False, False]
    assert host.slots[0].alpha == alpha


@pytest.mark.parametrize(("without", "kept"), [(0.4999, True), (0.5, False), (0.6, False)])
def test_settling_removes_a_seed_that_does_not_pay_its_rent(without: float, kept: bool) -> None:
    _, host = _three_kinds()
    with_it = 0.5 + 0.01 * host.slots[0].parameter_count / host.host_parameters - 1e-9
    assert utility(with_it, 0.01, host.slots[0].parameter_count, host.host_parameters) < 0.5
    settle([host.model], 0.01, settle="worth", measure=_table({FIRST: with_it, NONE: without}))
    assert host.slots[0].stage.is_live is kept


def test_settling_is_greedy_and_measures_again() -> None:
    world = _begun("tiny")
    for slot in (0, 2):
        world.host(0).apply(germinate(slot, "norm"))
        run_epoch(world)
    for slot in (0, 2):
        world.host(0).apply(advance(slot))
        run_epoch(world)
    host, asked = world.host(0), []

    def measure(rows: Sequence[int]) -> list[dict[Coalition, float]]:
        assert rows == [0]
        asked.append([slot.stage.is_live for slot in host.slots])
        # together they are worse than either alone; alone each is worth having
        return [{FIRST | LAST: 0.5, LAST: 0.8, FIRST: 0.7, NONE: 0.1}]

    settle([host.model], 0.0, settle="worth", measure=measure)
    assert asked == [[True, False, True], [False, False, True]]
    assert [slot.stage.is_live for slot in host.slots] == [False, False, True]


def test_committed_only_keeps_fossils_alone() -> None:
    world = _begun()
    _play(world, range(10))
    world.host(0).apply(germinate(1))
    run_epoch(world)
    settle_hosts(world, 0.01, "committed")
    assert [slot.stage for slot in world.host(0).slots][2] is Stage.FOSSILIZED
    assert not any(slot.stage.is_live for slot in world.host(0).slots)


def test_the_report_after_settling_is_of_the_settled_model() -> None:
    world, host = _three_kinds()
    settle_hosts(world, 100.0)  # no seed can pay such a rent
    assert host.added_parameters == 0
    again = world.population.validate([0])
    assert host.report.validation_loss == pytest.approx(again.loss[0, 0].item())


@pytest.mark.parametrize(("family", "kept"), [("contribution", True), ("loss", False)])
def test_settling_judges_in_the_family_of_the_reward(family: Family, kept: bool) -> None:
    """Where it is observed the blended seed mends one answer and raises the loss; where it is judged, the reverse."""
    world, host = _three_kinds()
    (inputs, targets), half = (host.validation.inputs, host.validation.targets), host.observed_samples
    with torch.no_grad():
        assert host.slots[0].seed is not None
        for parameter in host.slots[0].seed.parameters():
            parameter.mul_(5.0)  # enough to change some answers
        logits = forward_coalitions(host.model.eval(), inputs, [FIRST, NONE])
    (now, bare), rise = logits.argmax(-1), logits.log_softmax(-1).diff(dim=0)[0]  # (sample,), (sample, class)
    changed, alike = (now != bare).int().argmax(), torch.where(now == bare, rise.amax(1), -1.0).argmax()
    rows = alike.repeat(len(inputs))
    rows[0] = rows[half] = changed
    inputs.copy_(inputs[rows])
    targets[:half], targets[half:] = rise[alike].argmax(), rise[alike].argmin()
    targets[0], targets[half] = now[changed], bare[changed]
    (numbers,) = read(None, world.population.validate(), [host.epoch])
    assert numbers.accuracies[FIRST] > numbers.accuracies[NONE]
    assert numbers.losses[FIRST] > numbers.losses[NONE]
    world.step_many([HostStep(0, None, Settling(0.0, family=family))])
    assert host.slots[0].stage.is_live is kept


@pytest.mark.parametrize(("share", "kept"), [(0.999, True), (1.001, False)])
def test_by_loss_a_seed_pays_rent_in_shares_of_the_untrained_loss(share: float, kept: bool) -> None:
    world = _begun("tiny")
    untrained = world.host(0).report.validation_loss
    act_on(world, germinate(0))
    act_on(world, advance(0))
    for _ in range(5):
        run_epoch(world)
    world.restore(world.snapshot([0]))
    host = world.host(0)
    (numbers,) = read(None, world.population.validate(), [host.epoch])
    gain = (numbers.losses[NONE] - numbers.losses[FIRST]) / untrained
    assert gain > 0.0
    rent = share * gain * host.host_parameters / host.added_parameters
    world.step_many([HostStep(0, None, Settling(rent, family="loss"))])
    assert host.slots[0].stage.is_live is kept


@pytest.mark.parametrize("rent", [-0.1, float("nan"), float("inf")])
def test_rent_is_a_number(rent: float) -> None:
    with pytest.raises(ValueError, match=r"rent must be a finite number >= 0, not"):
        settle_hosts(_begun("tiny"), rent)


def test_settling_a_bare_host_changes_nothing() -> None:
    world = _begun("tiny")
    run_epoch(world)
    report = world.host(0).report
    settle_hosts(world, 0.01)
    assert world.host(0).report is report
