"""The vector environment: one step in the right order, ends, illegal actions, and hosts of different kinds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from esper.leyline import (
    ActionSpec,
    BaselineCurve,
    DecisionSettings,
    HostsLost,
    HostStep,
    LifecycleOp,
    Settling,
    SlotConfig,
    Stage,
    operations,
)
from esper.simic.env import GrowthVectorEnv, IllegalActionError, make_env
from esper.simic.env.cases import ParallelEnvState, case_generator
from esper.simic.env.episodes import Episodes
from esper.simic.reward import RewardConfig, largest_growth
from esper.tamiyo.layout import growth_layout
from esper.tamiyo.rules import rule_policy
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyHost, ToyWorld
from esper.tolaria.worlds.toy.instance import BLUEPRINTS, toy_case, toy_instance
from growth_envs import encoded, harmful, summaries, toy_envs, toy_space
from reward_strategies import Standing, Step, reward
from toy_oracle import best_plan

G, P, F, A, S = (
    LifecycleOp.GERMINATE,
    LifecycleOp.PRUNE,
    LifecycleOp.FOSSILIZE,
    LifecycleOp.ADVANCE,
    LifecycleOp.SET_ALPHA_TARGET,
)
CASE = toy_case(17)
WAIT = ActionSpec()


# One step


def test_spaces_hold_what_is_returned() -> None:
    envs = toy_envs([CASE], num_envs=3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, info = envs.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert envs.observation_space.contains(observation)
        assert info["action_mask"].shape == (3, envs.action_layout.width)
        actions = envs.sample_legal(rng)
        assert envs.action_space.contains(actions)
        observation, reward, _, _, info = envs.step(actions)
        assert reward.shape == (3,)
        assert reward.dtype == np.float64


def test_an_operation_acts_before_its_epoch_and_the_epoch_is_in_its_reward() -> None:
    """ADVANCE, then the tick: the epoch that follows is trained, and paid for, at alpha 1/3 already."""
    case = toy_case(17, noise=0.0)
    envs = toy_envs([case], horizon=9)
    envs.reset(seed=1)
    envs.step(encoded(envs, ActionSpec(G, "blocks.0", "norm")))
    _, reward, _, _, _ = envs.step(encoded(envs, ActionSpec(A, "blocks.0")))
    host = envs.episodes.host(0)
    assert host.readings()[0].alpha == pytest.approx(1 / 3)
    assert host.readings()[0].stage == Stage.BLENDING
    gain = host.readings()[0].contribution
    assert gain != 0.0
    rent = 0.01 * 8 / 1426
    assert reward[0] == pytest.approx(0.995 * (gain - rent) - (0.0 - rent))


@pytest.mark.parametrize("family", ["contribution", "loss"])
@pytest.mark.parametrize("mode", ["sparse", "shaped"])
@pytest.mark.parametrize("control_variate", [True, False])
def test_rewards_are_those_of_the_pure_function(family: Any, mode: Any, control_variate: bool) -> None:
    config = RewardConfig(family=family, mode=mode, control_variate=control_variate, rent=0.05)
    envs = toy_envs([CASE], num_envs=2, horizon=7, reward=config)
    envs.reset(seed=3)
    rng = np.random.default_rng(5)
    controls = [ToyBaselines(7).curve(e.case, e.host_seed) for e in map(envs.episodes.episode, range(2))]
    standings = [standing(envs, env_idx, controls[env_idx], 0) for env_idx in range(2)]
    untrained = [standing.loss for standing in standings]
    for epoch in range(1, 7):  # the seventh settles, and begins a new host
        _, rewards, _, _, _ = envs.step(envs.sample_legal(rng))
        for env_idx in range(2):
            after = standing(envs, env_idx, controls[env_idx], epoch)
            step = Step(standings[env_idx], after, host_parameters=1426, untrained_loss=untrained[env_idx])
            assert rewards[env_idx] == reward(config, step)
            standings[env_idx] = after


def standing(envs: GrowthVectorEnv, env_idx: int, control: BaselineCurve, epoch: int) -> Standing:
    host = envs.episodes.host(env_idx)
    return Standing(
        host.report.validation_accuracy,
        host.report.validation_loss,
        host.added_parameters,
        control.accuracies[epoch],
        control.losses[epoch],
    )


# Ends


def test_the_horizon_terminates_with_the_settled_model() -> None:
    """A seed still in TRAINING is no part of the product: neither its parameters nor its rent are."""
    envs = toy_envs([CASE], horizon=4)
    envs.reset(seed=1)
    total = 0.0
    for step in range(4):
        action = ActionSpec(G, "blocks.0", "mixer") if step == 2 else WAIT
        _, reward, terminated, truncated, info = envs.step(encoded(envs, action))
        total += reward[0]
        assert terminated[0] == (step == 3)
        assert not truncated.any()
    (summary,) = summaries(info)
    assert (summary.added_parameters, summary.epochs) == (0, 4)
    assert summary.gain == pytest.approx(0.0, abs=1e-12)
    assert summary.episode_return == pytest.approx(total)
    assert summary.operations["GERMINATE"] == 1
    final = info["final_obs"][0]
    assert final["host"][0] == 0.0  # no time left
    assert not info["final_info"]["_summary"][1:].any()


@pytest.mark.parametrize(("settle", "kept"), [("worth", True), ("committed", False)])
def test_what_the_product_keeps_can_be_chosen(settle: Any, kept: bool) -> None:
    case = toy_case(3, noise=0.0)  # a mixer is worth having
    envs = toy_envs([case], horizon=6, settle=settle)
    envs.reset(seed=0)
    for action in (ActionSpec(G, "blocks.0", "mixer"), ActionSpec(A, "blocks.0"), *[WAIT] * 4):
        info = envs.step(encoded(envs, action))[-1]
    assert bool(summaries(info)[0].added_parameters) is kept


@pytest.mark.parametrize(("family", "kept"), [("contribution", False), ("loss", True)])
def test_what_is_worth_its_rent_is_judged_by_the_score_that_is_paid(family: Any, kept: bool) -> None:
    """In the toy a point of accuracy is 1/0.9 points of loss: this rent lies between the two."""
    rent = 0.0
    for horizon in (7, 6):  # first to learn what the seed gives after six epochs
        reward = RewardConfig(family=family, rent=rent)
        envs = toy_envs([toy_case(3, noise=0.0)], horizon=horizon, reward=reward)
        envs.reset(seed=0)
        for action in (ActionSpec(G, "blocks.0", "mixer"), ActionSpec(A, "blocks.0"), *[WAIT] * 4):
            info = envs.step(encoded(envs, action))[-1]
        seed = envs.episodes.host(0).readings()[0]
        rent = seed.contribution / 0.95 * 1426 / max(seed.parameters, 1)
    assert bool(summaries(info)[0].added_parameters) is kept


def test_an_ended_env_begins_anew_in_the_same_step() -> None:
    envs = toy_envs([toy_case(draw) for draw in range(50)], num_envs=2, horizon=3)
    first, _ = envs.reset(seed=1)
    begun = [envs.episodes.episode(env_idx).case for env_idx in range(2)]
    for _ in range(3):
        observation, _, terminated, _, info = envs.step(encoded(envs, WAIT))
    assert terminated.all()
    assert [summary.case for summary in summaries(info)] == begun
    assert [envs.episodes.episode(env_idx).epoch for env_idx in range(2)] == [0, 0]
    assert [envs.episodes.episode(env_idx).case for env_idx in range(2)] != begun
    assert (observation["host"][:, 0] == 1.0).all()  # all the time in the world
    assert info["action_mask"].shape[0] == 2
    assert not np.array_equal(observation["host"], first["host"])


def test_a_rollback_ends_the_episode_and_costs() -> None:
    case, blueprint = harmful()
    envs = toy_envs([case], horizon=30)
    envs.reset(seed=1)
    host = envs.episodes.host(0)
    rent = envs.episodes.reward.rent * largest_growth(host) / host.host_parameters
    actions = iter([ActionSpec(G, "blocks.0", blueprint), ActionSpec(A, "blocks.0")])
    terminated, total, steps = np.array([False]), 0.0, 0
    while not terminated[0]:
        _, reward, terminated, _, info = envs.step(encoded(envs, next(actions, WAIT)))
        total += 0.995**steps * reward[0]
        steps += 1
    (summary,) = summaries(info)
    assert steps < 30
    assert summary.rolled_back is not None
    assert (summary.utility, summary.added_parameters) == (None, None)
    waited = ToyBaselines(30).curve(case, summary.host_seed).accuracies
    control, at_end = waited[steps], waited[30]
    assert control is not None
    assert at_end is not None
    assert summary.gain == pytest.approx(0.0 - at_end)
    assert total == pytest.approx(0.995 ** (steps - 1) * (0.0 - rent - control - 1.0))


def test_a_host_condemned_in_its_last_epoch_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[Settling] = []
    monkeypatch.setattr(ToyHost, "settle", lambda _, settling: settled.append(settling))
    case, blueprint = harmful()
    horizon = 30
    for _ in range(2):  # first to learn when it breaks, then with that epoch as the last
        envs = toy_envs([case], horizon=horizon)
        envs.reset(seed=1, options={"host_seed": 3})
        actions = iter([ActionSpec(G, "blocks.0", blueprint), ActionSpec(A, "blocks.0")])
        terminated = np.array([False])
        while not terminated[0]:
            *_, terminated, _, info = envs.step(encoded(envs, next(actions, WAIT)))
        (summary,) = summaries(info)
        horizon = summary.epochs
        assert summary.rolled_back is not None
        assert settled == []


class LossyWorld(ToyWorld):
    """Loses host 1 in its third epoch, and says so after the others have done theirs."""

    __slots__ = ("epochs",)

    def __init__(self, num_hosts: int) -> None:
        super().__init__(num_hosts)
        self.epochs = 0

    def step_many(self, steps: Sequence[HostStep]) -> None:
        super().step_many([step for step in steps if step.host_idx != 1 or self.epochs != 2])
        self.epochs += 1
        if self.epochs == 3:
            raise HostsLost([1], "its worker died")


def test_a_lost_host_is_truncated_invalid_and_counted_and_the_others_go_on() -> None:
    space = toy_space(CASE)
    envs = GrowthVectorEnv(
        Episodes(LossyWorld(3), space, CASE, num_envs=3, horizon=6, baselines=ToyBaselines(6))
    )
    whole = toy_envs([CASE], num_envs=3)
    envs.reset(seed=1)
    whole.reset(seed=1)
    paid: list[float] = []
    for step in range(4):
        # What grows in the lost host would cost rent in a step that counted.
        actions = (WAIT, WAIT if step else ActionSpec(G, "blocks.0", "mixer"), WAIT)
        _, reward, terminated, truncated, info = envs.step(encoded(envs, *actions))
        expected = whole.step(encoded(whole, WAIT))
        paid += reward.tolist()
        assert info["lost"].tolist() == truncated.tolist() == [False, step == 2, False]
        assert not terminated.any()
        assert np.array_equal(reward[[0, 2]], expected[1][[0, 2]])
        if step == 2:
            assert reward[1] == 0.0
            (summary,) = summaries(info)
            assert summary.lost
            assert summary.utility is None
            assert info["final_obs"][1]["host"].shape == (len(info["final_obs"][1]["host"]),)
    assert [envs.episodes.episode(env_idx).epoch for env_idx in range(3)] == [4, 1, 4]
    averaged = envs.telemetry.take()
    steps = 3 * 4 - 1  # the lost one is none of them
    assert averaged["total"] == pytest.approx(sum(paid) / steps)


# Illegal actions


def test_an_illegal_action_is_an_error_that_says_what_was_legal() -> None:
    envs = toy_envs([CASE], num_envs=2)
    envs.reset(seed=1)
    with pytest.raises(
        IllegalActionError, match=r"env 1: head 'op' chose FOSSILIZE.*legal: WAIT, GERMINATE$"
    ):
        envs.step(encoded(envs, WAIT, ActionSpec(F, "blocks.0")))
    assert envs.episodes.host(0).report.epoch == 0  # nothing was done to anybody
    wrong = encoded(envs, ActionSpec(G, "blocks.0", "norm"))
    wrong[0, 1] = 7
    with pytest.raises(
        IllegalActionError, match=r"env 0: head 'slot' chose 7.*legal: blocks.0, blocks.1, blocks.2"
    ):
        envs.step(wrong)
    with pytest.raises(ValueError, match=r"actions have shape \(1, 8\); expected \(2, 8\)"):
        envs.step(wrong[:1])


def test_an_illegal_action_can_be_a_wait() -> None:
    envs = toy_envs([CASE], num_envs=2, on_illegal="noop", horizon=2)
    envs.reset(seed=1)
    _, _, _, _, info = envs.step(encoded(envs, ActionSpec(A, "blocks.1"), WAIT))
    assert info["_illegal"].tolist() == [True, False]
    illegal = info["illegal"][0]
    assert (illegal.head, illegal.value, illegal.legal) == ("op", "ADVANCE", ("WAIT", "GERMINATE"))
    _, _, _, _, info = envs.step(encoded(envs, WAIT))
    assert "illegal" not in info
    assert [summary.illegal_actions for summary in summaries(info)] == [1, 0]
    assert [summary.operations["WAIT"] for summary in summaries(info)] == [2, 2]


def test_heads_that_do_not_matter_may_be_anything() -> None:
    envs = toy_envs([CASE])
    envs.reset(seed=1)
    action = encoded(envs, WAIT)
    action[0, 1:] = [2, 3, 3, 2, 2, 3, 4]
    envs.step(action)


@pytest.mark.parametrize("retire", [False, True])
def test_what_is_sampled_can_be_executed(retire: bool) -> None:
    """The toy refuses what its rules forbid, so that a mask which allows too much is an error here."""
    envs = make_env("toy_slots", 5, decisions=DecisionSettings(retire=retire))
    envs.reset(seed=1)
    rng = np.random.default_rng(2)
    done: set[int] = set()
    for _ in range(300):
        actions = envs.sample_legal(rng)
        done |= set(actions[:, 0].tolist())
        envs.step(actions)
    assert done == set(operations(retire=retire))


def test_frozen_heads_leave_one_choice() -> None:
    envs = make_env(
        "toy", 4, decisions=DecisionSettings({"style": "linear_add", "tempo": 3, "alpha_target": 1.0})
    )
    envs.reset(seed=1)
    rng = np.random.default_rng(2)
    for _ in range(100):
        actions = envs.sample_legal(rng)
        germinations = actions[actions[:, 0] == G]
        assert (germinations[:, 3:6] == [0, 0, 2]).all()
        envs.step(actions)


def test_nothing_is_grown_before_the_first_growth() -> None:
    envs = make_env("toy", 3, decisions=DecisionSettings(first_growth=4))
    envs.reset(seed=1)
    rng, germinated = np.random.default_rng(2), []
    for step in range(40):
        epochs = [envs.episodes.host(env_idx).report.epoch for env_idx in range(3)]
        legal = [
            any(G in here.operations for here in envs.situations()[env_idx].legal.values())
            for env_idx in range(3)
        ]
        assert not any(may for may, epoch in zip(legal, epochs, strict=True) if epoch < 4)
        if step < 4:
            assert not envs.action_masks()[:, G].any()
        actions = envs.sample_legal(rng)
        germinated += [epoch for epoch, op in zip(epochs, actions[:, 0], strict=True) if op == G]
        envs.step(actions)
    assert min(germinated) == 4


@pytest.mark.parametrize("name", ["probe_and_keep", "random"])
def test_rules_need_not_know_what_is_frozen(name: str) -> None:
    frozen: dict[str, str | float] = {
        "style": "multiply", "tempo": 5, "alpha_target": 0.7, "alpha_speed": 8, "alpha_curve": "sigmoid_sharp"
    }  # fmt: skip
    envs = make_env("toy", 1, decisions=DecisionSettings(frozen))  # illegal actions are errors here
    envs.reset(seed=1)
    policy, done = rule_policy(name, rng=np.random.default_rng(0)), set()
    for _ in range(60):
        actions = envs.encode([policy.act(envs.situations()[0])])
        if actions[0, 0] == G:
            assert actions[0, 3:6].tolist() == [2, 1, 1]
        done.add(int(actions[0, 0]))
        if envs.step(actions)[2][0]:
            policy.reset()
    assert done >= {G, A, P}


# Cases and slots


def test_hosts_of_different_slot_counts_share_a_batch() -> None:
    envs = make_env("toy_slots", 16)
    observation, info = envs.reset(seed=1)
    counts = [len(envs.episodes.host(env_idx).slot_config) for env_idx in range(16)]
    assert set(counts) == {2, 3, 4}
    slots = envs.action_layout.block(torch.from_numpy(info["action_mask"]), "slot")
    for env_idx, count in enumerate(counts):
        assert (observation["slots"][env_idx, count:] == 0.0).all()
        assert not slots[env_idx, G, count:].any()
        assert slots[env_idx, G, :count].all()


def test_a_host_that_does_not_fit_is_refused_by_name() -> None:
    space = toy_space("toy:draw=1,slots=2")
    envs = GrowthVectorEnv(
        Episodes(ToyWorld(1), space, "toy:draw=1", num_envs=1, horizon=3, baselines=ToyBaselines(3))
    )
    with pytest.raises(ValueError, match="hosts have 3 slots"):
        envs.reset(seed=1)


def test_a_policy_for_other_slots_or_heads_is_refused_by_name() -> None:
    envs = toy_envs([CASE])
    envs.require_layout(envs.action_layout)
    other = growth_layout(SlotConfig(("blocks.0", "blocks.2", "blocks.1")), len(BLUEPRINTS))
    with pytest.raises(ValueError, match=r"the policy has \(blocks.0, blocks.2, blocks.1\)"):
        envs.require_layout(other)
    with pytest.raises(ValueError, match="differ in sizes"):
        envs.require_layout(growth_layout(envs.space.slot_config, 9))


def test_unknown_suites_cases_and_options_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="no suite is named 'toyy'; there are toy, toy_shift, toy_slots"):
        make_env("toyy")
    with pytest.raises(ValueError, match="cases has no instance"):
        Episodes(ToyWorld(1), toy_space(CASE), [], num_envs=1, horizon=3, baselines=ToyBaselines(3))
    envs = toy_envs([CASE])
    with pytest.raises(ValueError, match="options has instance; expected case, host_seed"):
        envs.reset(seed=1, options={"instance": 3})
    with pytest.raises(ValueError, match="baselines is None"):
        Episodes(ToyWorld(1), toy_space(CASE), CASE, num_envs=1, horizon=3)
    short = GrowthVectorEnv(
        Episodes(ToyWorld(1), toy_space(CASE), CASE, num_envs=1, horizon=9, baselines=ToyBaselines(3))
    )
    with pytest.raises(ValueError, match="has 4 epochs with epoch 0; a horizon of 9 needs 10"):
        short.reset(seed=1)
    with pytest.raises(ValueError, match="on_illegal is 'ignore'; expected one of raise, noop"):
        toy_envs([CASE], on_illegal="ignore")


def test_a_case_and_a_host_seed_can_be_given() -> None:
    envs = toy_envs([CASE], num_envs=2)
    envs.reset(seed=1, options={"case": ["toy:draw=5", "toy:draw=6"], "host_seed": 9})
    assert [(e.case, e.host_seed) for e in map(envs.episodes.episode, range(2))] == [
        ("toy:draw=5", 9),
        ("toy:draw=6", 9),
    ]


def test_arrays_are_as_good_as_lists() -> None:
    envs = make_env("toy", 3)
    first, _ = envs.reset(seed=np.int64(3), options={"host_seed": np.arange(3)})  # type: ignore[arg-type]
    second, _ = envs.reset(seed=[3, 4, 5], options={"host_seed": [0, 1, 2]})
    assert np.array_equal(first["host"], second["host"])


def test_what_is_remembered_of_an_env_is_plain_data_and_goes_on() -> None:
    env = ParallelEnvState(case_generator(3))
    for case in ("toy:draw=5", "toy:draw=6"):
        env.begin(case, 7, BaselineCurve((None, 0.75), (0.5, 0.25)))
    env.generator.integers(9)  # type: ignore[union-attr]
    copy = ParallelEnvState()
    copy.load_state_dict(env.state_dict())
    assert copy.state_dict() == env.state_dict()
    assert (copy.begun, copy.episode) == (2, env.episode)
    assert not hasattr(env, "__dict__")
    assert not hasattr(env.episode, "__dict__")


def test_an_env_that_has_not_begun_says_what_to_call() -> None:
    envs = make_env("toy", 2, render_mode="ansi")
    wait = np.zeros((2, 8), dtype=np.int64)
    for use in (lambda: envs.step(wait), envs.action_masks, envs.situations, envs.render):
        with pytest.raises(RuntimeError, match=r"env 0 has not begun: call reset\(\) first"):
            use()


def test_situations_are_the_hosts_in_words() -> None:
    envs = toy_envs([CASE], num_envs=2)
    envs.reset(seed=1)
    envs.step(encoded(envs, ActionSpec(G, "blocks.1", "norm"), WAIT))
    first, second = envs.situations()
    assert [slot.stage for slot in first.slots] == [Stage.DORMANT, Stage.TRAINING, Stage.DORMANT]
    assert A in first.legal["blocks.1"].operations
    assert (first.signals.last_operation, second.signals.last_operation) == (G, LifecycleOp.WAIT)


# The whole way


def test_the_oracles_plan_earns_the_oracles_gain() -> None:
    envs = toy_envs([toy_case(0)], horizon=20, reward=RewardConfig(gamma=1.0))
    for draw in range(5):
        case = toy_case(draw, noise=0.0)
        envs.reset(seed=1, options={"case": case, "host_seed": 3})
        plan = best_plan(toy_instance(case), horizon=20)
        for action in plan.actions:
            info = envs.step(encoded(envs, action))[-1]
        (summary,) = summaries(info)
        assert summary.utility == pytest.approx(plan.utility, abs=1e-9)
        assert summary.gain == pytest.approx(plan.gain, abs=1e-9)
        assert summary.episode_return == pytest.approx(plan.gain, abs=1e-9)  # phi(s_0) is 0 beside a control


def test_rewards_are_averaged_on_demand() -> None:
    envs = toy_envs([CASE], num_envs=2, horizon=3)
    envs.reset(seed=1)
    rewards = [envs.step(encoded(envs, WAIT))[1] for _ in range(3)]
    averaged = envs.telemetry.take()
    assert averaged["total"] == pytest.approx(np.mean(rewards))
    assert envs.telemetry.take() == {}
