"""The oracle is exact: its plans give what they promise, and no sequence of legal actions gives more."""

import random
from typing import get_args

import pytest

from esper.kasmina import GrowthRules
from esper.leyline import TEMPOS, ActionSpec, HostState, LifecycleOp, Settle, Style
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.toy.instance import BLUEPRINTS, toy_case, toy_instance
from toy_lives import legal_actions
from toy_oracle import OraclePlan, best_plan
from world_steps import begin_host, run_epoch, settle_hosts

HASTY = GrowthRules(min_prune_age=1, embargo_epochs=1)
"""So that a second seed in the same slot can bear fruit within a few epochs."""
RENT = 0.01
LOST = -9.0


def plan_for(
    case: str, horizon: int, rules: GrowthRules | None = None, settle: Settle = "worth"
) -> OraclePlan:
    return best_plan(toy_instance(case), horizon=horizon, rent=RENT, rules=rules, settle=settle)


def final_utility(world: ToyWorld, *, settle: Settle = "worth") -> float:
    settle_hosts(world, RENT, settle)
    host = world.host(0)
    return host.expected_at(host.report.epoch) - RENT * host.added_parameters / host.host_parameters


@pytest.mark.parametrize("settle", get_args(Settle))
@pytest.mark.parametrize("horizon", [1, 2, 4, 7, 20])
def test_a_plan_gives_what_it_promises(horizon: int, settle: Settle) -> None:
    for draw in range(12):
        case = toy_case(draw, slots=1 + draw % 4, change=3 * (draw % 3), noise=0.0)
        plan = plan_for(case, horizon, settle=settle)
        assert len(plan.actions) == horizon
        world = ToyWorld(1)
        begin_host(world, 0, case, 0)
        for action in plan.actions:
            world.host(0).apply(action)
            run_epoch(world)
        assert world.host(0).report.rolled_back is None
        assert final_utility(world, settle=settle) == pytest.approx(plan.utility, abs=1e-12)
        assert plan.gain >= 0.0


def brute_force(case: str, horizon: int, rules: GrowthRules, choices: "Choices", *, settle: Settle) -> float:
    """The best final utility over every sequence of the legal actions that `choices` lets through."""
    best: dict[str, float] = {}

    def search(state: HostState, left: int) -> float:
        key = f"{left} {state}"
        if key not in best:
            best[key] = max(search_action(state, left, action) for action in choices(state))
        return best[key]

    def search_action(state: HostState, left: int, action: ActionSpec) -> float:
        world = ToyWorld(1, rules)
        world.restore({0: state})
        world.host(0).apply(action)
        run_epoch(world)
        if world.host(0).report.rolled_back is not None:
            return LOST
        if left == 1:
            return final_utility(world, settle=settle)
        return search(world.snapshot([0])[0], left - 1)

    world = ToyWorld(1, rules)
    begin_host(world, 0, case, 0)
    return search(world.snapshot([0])[0], horizon)


class Choices:
    """Legal actions with fewer of the choices that no plan of the oracle uses."""

    def __init__(self, rules: GrowthRules, blueprints: tuple[str, ...], **wide: tuple[object, ...]) -> None:
        self.rules, self.blueprints = rules, blueprints
        self.styles = wide.get("styles", (Style.LINEAR_ADD, Style.SIGMOID_ADD))
        self.targets = wide.get("targets", (1.0,))
        self.tempos = wide.get("tempos", (min(TEMPOS),))

    def __call__(self, state: HostState) -> list[ActionSpec]:
        world = ToyWorld(1, self.rules)
        world.restore({0: state})
        return [
            action
            for action in legal_actions(world.host(0), speeds=(0,))
            if action.op is not LifecycleOp.GERMINATE
            or (
                action.blueprint in self.blueprints
                and action.style in self.styles
                and action.tempo in self.tempos
                and action.alpha_target in self.targets
            )
        ]


EVERYTHING = {"styles": tuple(Style), "targets": (0.5, 0.7, 1.0), "tempos": TEMPOS}


@pytest.mark.parametrize(
    ("draw", "settle"), [(0, "worth"), pytest.param(3, "committed", marks=pytest.mark.slow)]
)
def test_no_sequence_of_any_actions_in_one_slot_does_better(draw: int, settle: Settle) -> None:
    """Every head is searched, and pruning and germinating again fits into the horizon."""
    case = toy_case(draw, slots=1, noise=0.0)
    choices = Choices(HASTY, ("norm", "mixer" if draw else "conv_small"), **EVERYTHING)
    found = brute_force(case, 5, HASTY, choices, settle=settle)
    plan = plan_for(case, 5, HASTY, settle=settle)
    assert {action.blueprint for action in plan.actions} <= {None, *choices.blueprints}
    assert plan.utility == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(
    ("draw", "max_live_seeds", "horizon"),
    [(0, 1, 7), (3, 2, 5), *(pytest.param(*row, marks=pytest.mark.slow) for row in ((3, 1, 7), (0, 2, 5)))],
)
def test_no_sequence_in_two_slots_does_better(draw: int, max_live_seeds: int, horizon: int) -> None:
    """With one place for two slots, the order of fossilising and germinating matters."""
    rules = GrowthRules(min_prune_age=1, embargo_epochs=1, max_live_seeds=max_live_seeds)
    case = toy_case(draw, slots=2, change=2, noise=0.0)
    plan = plan_for(case, horizon, rules)
    largest = {
        max(zip(gains, BLUEPRINTS, strict=True))[1] for gains in toy_instance(case).phase_at(horizon).gains
    }
    planned = {action.blueprint for action in plan.actions if action.blueprint is not None}
    choices = Choices(rules, tuple(largest | planned))
    found = brute_force(case, horizon, rules, choices, settle="worth")
    assert plan.utility == pytest.approx(found, abs=1e-12)


def test_nobody_at_random_does_better() -> None:
    rng = random.Random(0)
    for draw in range(40):
        case = toy_case(draw, noise=0.0)
        world = ToyWorld(1)
        begin_host(world, 0, case, 0)
        for _ in range(12):
            world.host(0).apply(rng.choice(legal_actions(world.host(0), speeds=(0,))))
            run_epoch(world)
            if world.host(0).report.rolled_back is not None:
                break
        else:
            assert final_utility(world) <= plan_for(case, 12).utility + 1e-12


def test_places_are_worth_something() -> None:
    """A known ordering: more places or more time never hurt, and here they help."""
    case = toy_case(3, noise=0.0)
    few = plan_for(case, 8, GrowthRules(max_live_seeds=1)).gain
    some = plan_for(case, 8).gain
    many = plan_for(case, 8, GrowthRules(max_live_seeds=3)).gain
    assert few < some < many
    assert plan_for(case, 2).gain < plan_for(case, 8).gain < plan_for(case, 20).gain
