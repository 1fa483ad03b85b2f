"""The toy world: its lives are real ones, its numbers agree with its curves, and it repeats itself."""

import math
import random
from collections.abc import Sequence

import pytest

from esper.kasmina import GrowthRules, IllegalOperation
from esper.leyline import ActionSpec, LifecycleOp, Stage, Style, World
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyWorld
from esper.tolaria.worlds.toy.instance import BLUEPRINTS, MAX_DRAW, toy_case, toy_instance
from toy_lives import legal_actions, live_randomly
from world_steps import begin_host, run_epoch, settle_hosts

G, P, F, A = LifecycleOp.GERMINATE, LifecycleOp.PRUNE, LifecycleOp.FOSSILIZE, LifecycleOp.ADVANCE
QUIET = toy_case(17, noise=0.0)


def begun(case: str, seed: int = 0, **rules: int) -> ToyWorld:
    world = ToyWorld(1, GrowthRules(**rules))
    begin_host(world, 0, case, seed)
    return world


def run(world: ToyWorld, actions: Sequence[ActionSpec]) -> None:
    for action in actions:
        world.host(0).apply(action)
        run_epoch(world)


def test_it_is_a_world() -> None:
    world: World = ToyWorld(2)
    with pytest.raises(RuntimeError, match="host 1 has not begun"):
        world.host(1)


def test_the_case_says_everything() -> None:
    assert toy_case(5) == "toy:draw=5"
    assert toy_case(5, slots=2, change=8, noise=0.0) == "toy:change=8,draw=5,noise=0.0,slots=2"
    assert toy_instance(toy_case(MAX_DRAW - 1)).draw == MAX_DRAW - 1
    instance = toy_instance("toy:slots=2,draw=5,change=8")
    assert (instance.slots, [phase.start_epoch for phase in instance.phases]) == (2, [0, 8])
    assert instance.phases[1].structure == pytest.approx(1.0 - instance.phases[0].structure)
    assert toy_instance("toy:draw=6").phases != toy_instance("toy:draw=5").phases


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("digits", "of task 'digits'"),
        ("toy", "task 'toy' needs draw"),
        ("toy:17", "'17' in 'toy:17' must be parameter=value"),
        ("toy:hue=1", "has no parameter 'hue'; it has change, draw, noise, slots"),
        ("toy:slots=2", "needs draw"),
        ("toy:draw=x", "toy.draw must be a whole number from 0 to"),
        ("toy:draw=-1", "toy.draw must be a whole number from 0 to .*, not -1"),
        ("toy:draw=1,slots=9", "toy.slots must be a whole number from 1 to 4, not 9"),
        ("toy:draw=1,noise=nan", "toy.noise must be a number from 0 to 1, not nan"),
    ],
)
def test_an_unknown_case_is_refused(case: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        begin_host(ToyWorld(1), 0, case)


@pytest.mark.parametrize("case", ["toy:draw=3", "toy:change=7,draw=4", "toy:draw=5,slots=1"])
def test_the_control_is_what_waiting_measures_bit_for_bit(case: str) -> None:
    world = begun(case, seed=11)
    curve = ToyBaselines(40).curve(case, 11)
    for epoch in range(41):
        report = world.host(0).report
        assert report.epoch == epoch
        assert report.validation_accuracy == curve.accuracies[epoch]
        assert report.validation_loss == curve.losses[epoch]
        run_epoch(world)


def test_a_seed_in_training_does_not_touch_the_host() -> None:
    waiting, training = begun("toy:draw=9"), begun("toy:draw=9")
    training.host(0).apply(ActionSpec(G, "blocks.1", "mixer"))
    for _ in range(5):
        run_epoch(waiting)
        run_epoch(training)
        assert training.host(0).report == waiting.host(0).report


def test_a_seed_is_probed_at_its_own_target() -> None:
    full, half = begun(QUIET), begun(QUIET)
    for world, target in ((full, 1.0), (half, 0.5)):
        run(world, [ActionSpec(G, "blocks.1", "norm", alpha_target=target)])
    assert half.host(0).readings()[1].probe == pytest.approx(0.5 * full.host(0).readings()[1].probe)


def test_readings_agree_with_the_curves() -> None:
    world = begun(QUIET)
    host = world.host(0)
    gain = host.instance.phases[0].gains[1][BLUEPRINTS.index("norm")]
    tau = host.instance.epochs_to_learn[BLUEPRINTS.index("norm")]
    run(world, [ActionSpec(G, "blocks.1", "norm")])
    reading = host.readings()[1]
    assert reading.probe == pytest.approx(gain * (1 - math.exp(-0.5 / tau)))
    assert math.isnan(reading.contribution)
    run(world, [ActionSpec(A, "blocks.1"), ActionSpec(), ActionSpec(), ActionSpec()])
    reading = host.readings()[1]
    effect = gain * (1 - math.exp(-4.5 / tau))
    assert (reading.alpha, reading.stage) == (1.0, Stage.HOLDING)
    assert reading.contribution == pytest.approx(effect)
    assert math.isnan(reading.probe)
    bare = ToyBaselines(5).curve(QUIET, 0).accuracies[5]
    assert bare is not None
    assert host.report.validation_accuracy == pytest.approx(bare + effect)


def test_the_task_changes_under_the_seeds() -> None:
    world = begun(toy_case(17, change=6, noise=0.0))
    run(world, [ActionSpec()] * 6)
    before = world.host(0).report.validation_accuracy
    run(world, [ActionSpec()])
    after = world.host(0).report.validation_accuracy
    assert before is not None
    assert after is not None
    assert after < before - 0.05


@pytest.mark.parametrize("draw", range(5))
def test_random_lives_keep_to_the_rules(draw: int) -> None:
    world = begun(toy_case(draw, slots=1 + draw % 4), seed=draw)
    rng = random.Random(draw)
    for _ in range(60):
        host = world.host(0)
        legal = host.legal_operations()
        for name, reading, snapshot in zip(legal, host.readings(), host.snapshots(), strict=True):
            assert {op for op in LifecycleOp if reading.legal & (1 << op)} == legal[name].operations
            assert (snapshot.name, snapshot.stage, snapshot.alpha) == (name, reading.stage, reading.alpha)
            assert (snapshot.probe is None) == math.isnan(reading.probe)
        assert sum(reading.parameters for reading in host.readings()) == host.added_parameters
        world.host(0).apply(rng.choice(legal_actions(host)))
        run_epoch(world)
        accuracy = host.report.validation_accuracy
        assert accuracy is not None
        assert 0.0 <= accuracy <= 1.0


def test_illegal_actions_are_refused_with_the_reason() -> None:
    world = begun(QUIET)
    with pytest.raises(IllegalOperation, match=r"FOSSILIZE is not legal at slot 'blocks.0' in stage DORMANT"):
        world.host(0).apply(ActionSpec(F, "blocks.0"))
    with pytest.raises(ValueError, match="blueprint='conv_heavy' is not a choice here"):
        world.host(0).apply(ActionSpec(G, "blocks.0", "conv_heavy"))
    with pytest.raises(ValueError, match="GERMINATE names no slot"):
        world.host(0).apply(ActionSpec(G, None, "norm"))
    with pytest.raises(ValueError, match=r"unknown slot 'blocks.7'"):
        world.host(0).apply(ActionSpec(G, "blocks.7", "norm"))


def test_pruning_what_was_blended_in_leaves_a_scar() -> None:
    bare = ToyBaselines(8).curve(QUIET, 0).accuracies[8]
    assert bare is not None
    accuracies = []
    for middle in (ActionSpec(A, "blocks.0"), ActionSpec()):
        world = begun(QUIET)
        run(
            world, [ActionSpec(G, "blocks.0", "norm"), middle, *[ActionSpec()] * 3, ActionSpec(P, "blocks.0")]
        )
        run(world, [ActionSpec()] * 2)
        accuracies.append(world.host(0).report.validation_accuracy)
    assert accuracies == [pytest.approx(bare - 0.01), pytest.approx(bare)]


def test_a_host_that_was_touched_has_noise_of_its_own_for_good() -> None:
    world = begun(toy_case(3, noise=0.05))
    run(world, [ActionSpec(G, "blocks.0", "norm"), ActionSpec(A, "blocks.0"), *[ActionSpec()] * 3])
    run(world, [ActionSpec(P, "blocks.0")])
    control = ToyBaselines(6).curve(toy_case(3, noise=0.05), 0).accuracies[6]
    assert control is not None
    assert world.host(0).report.validation_accuracy != pytest.approx(control - 0.01, abs=1e-6)


def test_settling_keeps_what_is_worth_its_rent() -> None:
    world = begun(QUIET)
    gains = world.host(0).instance.phases[0].gains
    best, worst = (choose(range(4), key=lambda index: gains[0][index]) for choose in (max, min))
    for blueprint, kept in ((best, gains[0][best] > 0.02), (worst, False)):
        world = begun(QUIET)
        run(world, [ActionSpec(G, "blocks.0", BLUEPRINTS[blueprint]), ActionSpec(A, "blocks.0")])
        run(world, [ActionSpec()] * 4)
        settle_hosts(world, 0.01)
        assert (world.host(0).added_parameters > 0) is kept
    # Nothing is committed that is not fossilised; nothing in TRAINING or fading is part of the product.
    world = begun(QUIET)
    run(world, [ActionSpec(G, "blocks.0", BLUEPRINTS[best])])
    settle_hosts(world, 0.0)
    assert world.host(0).added_parameters == 0


def test_a_collapse_is_rolled_back() -> None:
    """A harmful seed can be bad enough: the governor takes it away and says why."""
    for draw in range(2000):
        world = begun(toy_case(draw, noise=0.0))
        gains = world.host(0).instance.phases[0].gains[0]
        if min(gains) < -0.345:
            break
    run(world, [ActionSpec(G, "blocks.0", BLUEPRINTS[gains.index(min(gains))])])
    run(world, [ActionSpec(A, "blocks.0")])
    while world.host(0).report.rolled_back is None:
        run(world, [ActionSpec()])
        assert world.host(0).report.epoch < 40
    assert "after a seed took 0.3" in str(world.host(0).report.rolled_back)
    assert world.host(0).added_parameters == 0


@pytest.mark.parametrize("draw", [0, 1, 2])
def test_the_same_actions_give_the_same_numbers_and_saved_state_goes_on(draw: int) -> None:
    case = toy_case(draw, change=9)
    whole = live_randomly(begun(case, 3), 30, random.Random(draw))
    assert live_randomly(begun(case, 3), 30, random.Random(draw)) == whole
    rng = random.Random(draw)
    first = begun(case, 3)
    head = live_randomly(first, 13, rng)
    saved = first.snapshot([0])
    moved = ToyWorld(1)
    moved.restore(saved)
    assert head + live_randomly(moved, 17, rng) == whole


def test_seeds_and_draws_differ() -> None:
    reports = {
        begun(toy_case(draw), seed).host(0).report.validation_accuracy for draw in (1, 2) for seed in (1, 2)
    }
    assert len(reports) == 4


def test_gates_cost_parameters_and_styles_do_not() -> None:
    costs = []
    for style in (Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE):
        world = begun(QUIET)
        world.host(0).apply(ActionSpec(G, "blocks.0", "norm", style=style))
        costs.append(world.host(0).added_parameters)
    assert costs == [8, 8, 17]


def test_no_combination_of_seeds_reaches_perfection() -> None:
    """Accuracies are sums, and stay below 1 without being clipped, so that the oracle's sums are right."""
    for draw in range(300):
        for slots in (1, 2, 3, 4):
            instance = toy_instance(toy_case(draw, slots=slots, change=5))
            for phase in instance.phases:
                assert phase.plateau + sum(max(gains) for gains in phase.gains) < 1.0
