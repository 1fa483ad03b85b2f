"""The oracle is exact: its plans give what they promise, and no sequence of legal actions gives more."""

import random

import pytest

from esper.kasmina import GrowthRules
from esper.leyline import TEMPOS, ActionSpec, LifecycleOp, Style
from esper.tolaria.worlds.toy import BLUEPRINTS, OraclePlan, ToyWorld, best_plan, toy_case, toy_instance
from toy_lives import legal_actions

HASTY = GrowthRules(min_prune_age=1, embargo_epochs=1)
"""So that a second seed in the same slot can bear fruit within a few epochs."""
RENT = 0.01
LOST = -9.0


def plan_for(case: str, horizon: int, rules: GrowthRules | None = None, **options: bool) -> OraclePlan:
    return best_plan(toy_instance(case), horizon=horizon, rent=RENT, rules=rules, **options)


def final_utility(world: ToyWorld, *, committed_only: bool = False) -> float:
    world.settle(0, RENT, committed_only=committed_only)
    host = world.host(0)
    return host.expected_accuracy() - RENT * host.added_parameters / host.host_parameters


@pytest.mark.parametrize("committed_only", [False, True])
@pytest.mark.parametrize("horizon", [1, 2, 4, 7, 20])
def test_a_plan_gives_what_it_promises(horizon: int, committed_only: bool) -> None:
    for draw in range(12):
        case = toy_case(draw, slots=1 + draw % 4, change=3 * (draw % 3), noise=0.0)
        plan = plan_for(case, horizon, committed_only=committed_only)
        assert len(plan.actions) == horizon
        world = ToyWorld(1)
        world.begin(0, case, 0)
        for action in plan.actions:
            world.apply(0, action)
            world.epoch([0])
        assert world.host(0).report.rolled_back is None
        assert final_utility(world, committed_only=committed_only) == pytest.approx(plan.utility, abs=1e-12)
        assert plan.gain >= 0.0


def brute_force(
    case: str, horizon: int, rules: GrowthRules, choices: "Choices", *, committed_only: bool
) -> float:
    """The best final utility over every sequence of the legal actions that `choices` lets through."""
    best: dict[str, float] = {}

    def search(state: dict[str, object], left: int) -> float:
        key = f"{left} {state}"
        if key not in best:
            best[key] = max(search_action(state, left, action) for action in choices(state))
        return best[key]

    def search_action(state: dict[str, object], left: int, action: ActionSpec) -> float:
        world = ToyWorld(1, rules)
        world.load_state_dict(0, state)
        world.apply(0, action)
        world.epoch([0])
        if world.host(0).report.rolled_back is not None:
            return LOST
        if left == 1:
            return final_utility(world, committed_only=committed_only)
        return search(world.state_dict(0), left - 1)

    world = ToyWorld(1, rules)
    world.begin(0, case, 0)
    return search(world.state_dict(0), horizon)


class Choices:
    """Legal actions with fewer of the choices that no plan of the oracle uses."""

    def __init__(self, rules: GrowthRules, blueprints: tuple[str, ...], **wide: tuple[object, ...]) -> None:
        self.rules, self.blueprints = rules, blueprints
        self.styles = wide.get("styles", (Style.LINEAR_ADD, Style.SIGMOID_ADD))
        self.targets = wide.get("targets", (1.0,))
        self.tempos = wide.get("tempos", (min(TEMPOS),))

    def __call__(self, state: dict[str, object]) -> list[ActionSpec]:
        world = ToyWorld(1, self.rules)
        world.load_state_dict(0, state)
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
    ("draw", "committed_only"), [(0, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_no_sequence_of_any_actions_in_one_slot_does_better(draw: int, committed_only: bool) -> None:
    """Every head is searched, and pruning and germinating again fits into the horizon."""
    case = toy_case(draw, slots=1, noise=0.0)
    choices = Choices(HASTY, ("norm", "mixer" if draw else "conv_small"), **EVERYTHING)
    found = brute_force(case, 5, HASTY, choices, committed_only=committed_only)
    plan = plan_for(case, 5, HASTY, committed_only=committed_only)
    assert {action.blueprint for action in plan.actions} <= {None, *choices.blueprints}
    assert plan.utility == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize(("max_live_seeds", "horizon"), [(1, 7), (2, 5)])
@pytest.mark.parametrize("draw", [0, 3])
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
    found = brute_force(case, horizon, rules, choices, committed_only=False)
    assert plan.utility == pytest.approx(found, abs=1e-12)


def test_nobody_at_random_does_better() -> None:
    rng = random.Random(0)
    for draw in range(40):
        case = toy_case(draw, noise=0.0)
        world = ToyWorld(1)
        world.begin(0, case, 0)
        for _ in range(12):
            world.apply(0, rng.choice(legal_actions(world.host(0), speeds=(0,))))
            world.epoch([0])
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
