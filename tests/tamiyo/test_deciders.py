"""One interface for controllers and rules: deciding for a host, remembering, going on later."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.leyline import STYLES, ActionSpec, LifecycleOp, Situation, Style, gate_parameters
from esper.tamiyo.actions import encode
from esper.tamiyo.controller import ControllerError
from esper.tamiyo.deciders import Decider, LearnedDecider, RuleDecider, decider
from esper.tamiyo.observation import Observer
from esper.tamiyo.rules import RULE_POLICIES, rule_policy
from esper.tolaria.worlds.toy.host import ToyWorld
from tiny_controllers import tiny_controller
from world_steps import begin_host, run_epoch

HORIZON = 20


def begun(slots: int = 3) -> ToyWorld:
    world = ToyWorld(1)
    begin_host(world, 0, f"toy:draw=5,slots={slots}", 0)
    return world


def live_on(
    who: Decider, world: ToyWorld, observer: Observer, epochs: int, *, budget: int | None = None
) -> list[ActionSpec]:
    done = []
    for _ in range(epochs):
        action = who.decide(observer, world.host(0), reward=0.25).action
        world.host(0).apply(action)  # refuses what is illegal
        run_epoch(world)
        observer.record(0, world.host(0), action.op)
        done.append(action)
        assert budget is None or world.host(0).added_parameters <= budget
    return done


def make(kind: str) -> Decider:
    if kind == "learned":
        return decider(tiny_controller(1, scale=3.0), generator=torch.Generator().manual_seed(5))
    if kind == "learned_begun":
        who = make("learned")
        who.observer(begun().host(0), horizon=HORIZON, parameter_budget=None)
        return who
    if kind == "schedule":
        text = "germinate mixer@0 t=2; advance 0 t=4; germinate norm@1 t=5; fossilize 0 t=9; prune 1 t=12"
        return decider(rule_policy("schedule", schedule=text))
    return decider(kind, seed=7)


KINDS = ["learned", *RULE_POLICIES]


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_as_if_it_had_not_stopped(kind: str) -> None:
    def half_way(who: Decider) -> tuple[ToyWorld, Observer]:
        world = begun()
        observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=None)
        live_on(who, world, observer, 9)
        return world, observer

    first, second = make(kind), make(kind)
    world, observer = half_way(first)
    saved = first.state_dict()
    wanted = live_on(first, world, observer, 10)
    world, observer = half_way(second)
    fresh = make(kind)
    fresh.observer(
        world.host(0), horizon=HORIZON, parameter_budget=None
    )  # what it has seen is not its memory
    fresh.load_state_dict(saved)
    assert live_on(fresh, world, observer, 10) == wanted


def test_memory_is_plain_data() -> None:
    def plain(value: object) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(each) for key, each in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return value is None or isinstance(value, bool | int | float | str)

    for kind in RULE_POLICIES:
        who = make(kind)
        world = begun()
        live_on(who, world, who.observer(world.host(0), horizon=HORIZON, parameter_budget=None), 9)
        assert plain(who.state_dict()), kind


@pytest.mark.parametrize("kind", RULE_POLICIES)
def test_memory_comes_back_exactly(kind: str) -> None:
    who, world = make(kind), begun()
    live_on(who, world, who.observer(world.host(0), horizon=HORIZON, parameter_budget=None), 9)
    saved = json.loads(json.dumps(who.state_dict()))
    fresh = make(kind)
    fresh.load_state_dict(saved)
    assert fresh.state_dict() == who.state_dict() == saved


def test_what_was_tried_is_remembered_in_its_order() -> None:
    """A set would be saved in another order by every process."""
    who = make("periodic")
    memory = {"tried": [[f"blocks.{slot}", "norm"] for slot in (7, 2, 5, 0, 6, 1, 4, 3)], "due": 40}
    who.load_state_dict(who.state_dict() | {"memory": memory})
    assert who.state_dict()["memory"] == memory


@pytest.mark.parametrize("kind", RULE_POLICIES)
def test_memory_of_another_rule_is_refused(kind: str) -> None:
    who = make(kind)
    assert isinstance(who, RuleDecider)
    for other in RULE_POLICIES:
        foreign = make(other).state_dict()
        if other != kind:
            with pytest.raises(ValueError, match=f"that of a {type(who.rule).__name__}"):
                who.load_state_dict(foreign)
    name = type(who.rule).__name__
    wrongs: list[dict[str, object]] = [{}, {"rule": name}, {"memory": {}}, make("learned_begun").state_dict()]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=f"expected that of a {type(who.rule).__name__}"):
            who.load_state_dict(wrong)
    with pytest.raises(ValueError, match=f"is not the state of a {name}"):
        who.load_state_dict({"rule": type(who.rule).__name__, "memory": {"odd": 1}})


def test_memory_of_the_wrong_form_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"'tried': 3, .* is not the state of a PlateauPolicy, which has tried, due"
    ):
        rule_policy("plateau").load_state_dict({"tried": 3, "due": 0})
    who = make("learned_begun")
    with pytest.raises(ValueError, match="expected that of a controller"):
        who.load_state_dict(make("plateau").state_dict() | {"memory": None})


def test_a_rule_without_state_decides_but_is_not_saved() -> None:
    class Plain:
        def reset(self) -> None: ...

        def act(self, situation: Situation) -> ActionSpec:
            del situation
            return ActionSpec()

    who, world = decider(Plain()), begun()
    assert (
        live_on(who, world, who.observer(world.host(0), horizon=HORIZON, parameter_budget=None), 2)
        == [ActionSpec()] * 2
    )
    with pytest.raises(TypeError, match=r"Plain cannot be saved: give it state_dict\(\) and load_state_dict"):
        who.state_dict()


def test_who_was_asked_for(tmp_path: Path) -> None:
    assert decider("probe_and_keep").name == "probe_and_keep"
    assert decider(rule_policy("plateau")).name == "plateau"
    controller = tiny_controller()
    controller.save(tmp_path / "here")
    for asked in (controller, str(tmp_path / "here"), tmp_path / "here"):
        who = decider(asked)
        assert isinstance(who, LearnedDecider)
        assert who.name == "tiny"
    assert isinstance(decider("random"), RuleDecider)
    with pytest.raises(ControllerError, match=r"controller is 'plato'; expected one of .*plateau"):
        decider("plato")
    with pytest.raises(ControllerError, match="controller is 'no/where'; expected one of"):
        decider(Path("no/where"))
    for nobody in (None, 3, object):
        with pytest.raises(
            ControllerError, match=r"expected a name, a folder, a Controller, or a policy with"
        ):
            decider(nobody)  # type: ignore[arg-type]
    with pytest.raises(ControllerError, match="schedule needs its text"):
        decider("schedule")
    (tmp_path / "here" / "card.json").write_text("{")
    with pytest.raises(ControllerError, match="is not JSON"):
        decider(str(tmp_path / "here"))


def test_greedy_is_the_same_each_time_and_sampling_follows_its_generator() -> None:
    def lives(generator: torch.Generator | None) -> list[ActionSpec]:
        who, world = decider(tiny_controller(2), generator=generator), begun()
        return live_on(who, world, who.observer(world.host(0), horizon=HORIZON, parameter_budget=None), 12)

    assert lives(None) == lives(None)
    sampled = [lives(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_controller_says_how_sure_it_is_and_keeps_its_frozen_heads() -> None:
    who, world = decider(tiny_controller(1, scale=3.0), generator=torch.Generator().manual_seed(0)), begun()
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=None)
    choice = who.decide(observer, world.host(0), reward=0.0)
    assert choice.probability is not None
    assert 0.0 < choice.probability <= 1.0
    actions = live_on(who, world, observer, HORIZON - 1)
    born = [action for action in actions if action.op is LifecycleOp.GERMINATE]
    assert born
    assert all((action.style, action.tempo, action.alpha_target) == ("linear_add", 3, 1.0) for action in born)


def test_a_controller_waits_as_long_as_its_card_says() -> None:
    controller = tiny_controller(1, scale=3.0, first_growth=5)
    who, world = decider(controller, generator=torch.Generator().manual_seed(0)), begun()
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=None)
    actions = live_on(who, world, observer, HORIZON - 1)
    assert [action.op for action in actions[:5]] == [LifecycleOp.WAIT] * 5
    assert any(action.op is LifecycleOp.GERMINATE for action in actions)


def test_a_controller_grows_what_its_card_says() -> None:
    world = begun()
    kinds = {card.name for cards in world.host(0).cards.values() for card in cards}
    only = sorted(kinds)[-1]
    controller = tiny_controller(1, scale=3.0, menu=(only,))
    who = decider(controller, generator=torch.Generator().manual_seed(0))
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=None)
    actions = live_on(who, world, observer, HORIZON - 1)
    assert {action.blueprint for action in actions if action.op is LifecycleOp.GERMINATE} == {only}


@pytest.mark.parametrize("kind", ["learned", "random", "periodic"])
def test_a_budget_is_kept_by_everybody(kind: str) -> None:
    world = begun()
    costs = sorted(card.parameters for cards in world.host(0).cards.values() for card in cards)
    budget = costs[0] + costs[1]
    who = make(kind)
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=budget)
    done = live_on(who, world, observer, HORIZON - 1, budget=budget)
    assert any(action.op is LifecycleOp.GERMINATE for action in done)


@pytest.mark.parametrize(("spare", "legal"), [(-1, False), (0, True)])
def test_a_gate_counts_in_the_budget(spare: int, legal: bool) -> None:
    """At a slot a gate is legal if it fits beside the dearest seed that has room there."""
    world = begun()
    host = world.host(0)
    slot = host.snapshots()[0]
    dearest = max(card.parameters for card in host.cards[slot.name])
    budget = dearest + gate_parameters(slot.channels) + spare
    observer = make("random").observer(host, horizon=HORIZON, parameter_budget=budget)
    styles = observer.space.action_layout.block(torch.from_numpy(observer.masks()), "style")[0, 0]
    assert styles.tolist() == [legal or style is not Style.GATE for style in STYLES]
    assert (Style.GATE in observer.situation(0).legal[slot.name].styles) is legal


def test_no_room_at_all_leaves_only_waiting() -> None:
    world = begun()
    who = make("learned")
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=0)
    assert all(action.op is LifecycleOp.WAIT for action in live_on(who, world, observer, 5))
    operations = observer.space.action_layout.block(torch.from_numpy(observer.masks()), "op")[0, 0]
    assert operations.tolist() == [True, False, False, False, False, False]
    legal = observer.situation(0).legal
    assert all(
        not here.blueprints and LifecycleOp.GERMINATE not in here.operations for here in legal.values()
    )
    assert observer.observe()["host"][0].shape


def test_a_longer_episode_than_was_said() -> None:
    world = begun()
    who = make("wait")
    observer = who.observer(world.host(0), horizon=4, parameter_budget=None)
    live_on(who, world, observer, 3)
    before = observer.observe()["host"].copy()
    observer.extend(0, 12)
    after = observer.observe()["host"]
    assert observer.situation(0).signals.horizon == 12
    assert not np.array_equal(before, after)
    observer.extend(0, 5)  # never shorter
    assert observer.situation(0).signals.horizon == 12


def test_deciding_needs_eyes_first() -> None:
    with pytest.raises(RuntimeError, match="has seen no host yet"):
        make("learned").state_dict()


def test_a_learned_one_decides_as_its_actor_does() -> None:
    """Memory, previous action and previous reward are carried alike."""
    controller = tiny_controller(4, scale=2.0)
    who, world = decider(controller), begun()
    observer = who.observer(world.host(0), horizon=HORIZON, parameter_budget=None)
    actor = controller.actor(observer.space)
    for epoch in range(HORIZON - 1):
        reward = 0.1 * epoch
        observer.observe()
        mask = torch.from_numpy(observer.masks().copy())
        expected = actor.act(observer.flat.clone(), mask, reward=torch.tensor([reward]))
        action = who.decide(observer, world.host(0), reward=reward).action
        assert encode(action, observer.space, world.host(0).slot_config).tolist() == expected[0].tolist()
        state, theirs = who.state_dict()["memory"], actor.state_dict()
        assert isinstance(state, dict)
        assert state.keys() == {"hidden", "previous_action", "previous_reward"}
        assert all(torch.equal(value, theirs[name]) for name, value in state.items())
        world.host(0).apply(action)
        run_epoch(world)
        observer.record(0, world.host(0), action.op)
