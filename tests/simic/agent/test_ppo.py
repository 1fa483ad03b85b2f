"""The agent's surface: misuse is refused, trouble is told and stops the run. A4, B1, B7, B9, C7, C14."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.leyline import SlotConfig
from esper.simic.agent import (
    AnomalyKind,
    NonFiniteUpdateError,
    PPOAgent,
    PPOConfig,
    PPOUpdateMetrics,
    TamiyoRolloutBuffer,
)
from esper.tamiyo import ActorCritic, Policy, PolicyInputs, RecurrentActorCritic, discrete_layout
from esper.tamiyo.features import HOST_FEATURES, PRESENT, SLOT_FEATURES
from esper.tamiyo.layout import growth_layout
from probes import ActionIsObservation, DelayedMemory, iterate, run_probe
from synthetic_growth import SyntheticGrowth, growth_policy

CONFIG = PPOConfig(target_kl=None, num_minibatches=2)
NONE = np.zeros(4, dtype=np.bool_)


def recurrent(seed: int = 0) -> RecurrentActorCritic:
    return RecurrentActorCritic(
        2,
        discrete_layout(2),
        hidden_size=8,
        uses_previous=True,
        generator=torch.Generator().manual_seed(seed),
    )


def make(config: PPOConfig = CONFIG, policy: Policy | None = None, steps: int = 6) -> PPOAgent:
    return PPOAgent(recurrent() if policy is None else policy, config, num_envs=4, num_steps=steps, seed=0)


def probe(seed: int = 1) -> DelayedMemory:
    return DelayedMemory(4, torch.Generator().manual_seed(seed))


def test_calls_out_of_order_are_refused() -> None:
    agent = make(steps=1)
    with pytest.raises(RuntimeError, match=r"observe\(\) without act\(\)"):
        agent.observe(torch.zeros(4), NONE, NONE)
    with pytest.raises(RuntimeError, match="0 of 1 steps"):
        agent.update(torch.zeros(4, 2))
    agent.act(torch.zeros(4, 2))
    with pytest.raises(RuntimeError, match="called twice"):
        agent.act(torch.zeros(4, 2))
    with pytest.raises(RuntimeError, match="in the middle of a rollout: it would join episodes"):
        agent.begin_episodes(~NONE)
    with pytest.raises(ValueError, match="reward has shape"):
        agent.observe(torch.zeros(3), NONE, NONE)
    with pytest.raises(ValueError, match="final_observation is missing"):
        agent.observe(torch.zeros(4), NONE, ~NONE)
    agent.observe(torch.zeros(4), NONE, NONE)
    with pytest.raises(RuntimeError, match="the rollout is full"):
        agent.act(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="observation has shape"):
        agent.update(torch.zeros(4, 3))


def test_callers_may_reuse_their_buffers() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [
        (
            torch.randn(4, 2, generator=generator),
            torch.tensor([[True, step % 2 == 0]] * 4),
            torch.randn(4, generator=generator),
        )
        for step in range(6)
    ]
    copying, reusing = make(), make()
    observation, mask, reward = torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool), torch.zeros(4)
    for seen, legal, paid in steps:
        copying.act(seen.clone(), legal.clone())
        copying.observe(paid.clone(), NONE, NONE)
        reusing.act(observation.copy_(seen), mask.copy_(legal))
        observation.fill_(99.0)
        mask.fill_(False)
        reusing.observe(reward.copy_(paid), NONE, NONE)
        reward.fill_(99.0)
    for name in ("observation", "mask", "action", "reward", "previous_reward"):
        assert torch.equal(getattr(copying.buffer, name), getattr(reusing.buffer, name)), name
    assert torch.equal(copying.state.previous_reward, reusing.state.previous_reward)


def test_memory_is_cut_where_an_episode_ends_and_nowhere_else() -> None:
    agent = make()
    agent.act(torch.ones(4, 2))
    agent.observe(torch.ones(4), np.array([True, False, False, False]), NONE)
    assert agent.state.hidden[:, 0].abs().max() == 0
    assert agent.state.hidden[:, 1].abs().max() > 0
    assert agent.state.previous_action[:, 0].tolist()[0] == -1
    assert agent.state.previous_reward.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("bad_steps", [(0,), (2,), (0, 1, 5), (5,)])
def test_an_invalid_step_is_forgotten_by_the_memory_too(bad_steps: tuple[int, ...]) -> None:
    agent = make(replace(CONFIG, debug=True))
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        before, begins = agent.state.state_dict(), agent._begins.copy()
        agent.act(torch.randn(4, 2, generator=generator))
        valid = np.array([True, step not in bad_steps, True, True])
        agent.observe(torch.randn(4, generator=generator), NONE, NONE, valid=valid)
        for name, tensor in agent.state.state_dict().items():
            axis = 1 if name == "hidden" else 0
            same = torch.equal(tensor.select(axis, 1), before[name].select(axis, 1))
            assert same or valid[1], name
        assert agent._begins[1] == (begins[1] and not valid[1])
    metrics = agent.update(torch.randn(4, 2, generator=generator))  # debug: every ratio starts at 1
    assert metrics.invalid_steps == len(bad_steps)


@pytest.mark.parametrize("bad_step", [2, 5])
@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_end_in_an_invalid_step_does_not_join_two_episodes(kind: str, bad_step: int) -> None:
    agent = make(replace(CONFIG, debug=True, gamma=0.5, gae_lambda=1.0))
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        agent.act(torch.randn(4, 2, generator=generator))
        here = np.array([False, step == bad_step, False, False])
        ends = (here, NONE) if kind == "terminated" else (NONE, here)
        agent.observe(torch.ones(4), *ends, valid=~here)  # there is no state after it
    rollout = agent._finish(torch.randn(4, 2, generator=generator))
    beyond = agent.buffer.value[1, bad_step].item()
    expected = 0.0
    for step in range(bad_step):
        expected += 0.5**step
    expected += 0.5**bad_step * beyond
    assert rollout.returns[6].item() == pytest.approx(expected, abs=1e-5)
    agent.update(torch.randn(4, 2, generator=generator))


def test_a_rollout_without_valid_steps_is_dropped() -> None:
    agent = make(replace(CONFIG, normalize_rewards=True), steps=1)
    with pytest.raises(RuntimeError, match="0 of 1 steps"):
        agent.update(torch.zeros(4, 2))
    agent.act(torch.zeros(4, 2))
    agent.observe(torch.ones(4), NONE, NONE, valid=NONE)
    with pytest.raises(ValueError, match="no valid step"):
        agent.update(torch.zeros(4, 2))
    assert (agent.updates, agent.buffer.step) == (0, 0)
    assert agent.reward_normalizer.count == 0
    agent.act(torch.zeros(4, 2))


def test_a_rollout_that_is_not_full_leaves_the_normalisers_alone() -> None:
    agent = make(replace(CONFIG, normalize_rewards=True))
    agent.act(torch.zeros(4, 2))
    agent.observe(torch.ones(4), NONE, NONE)
    with pytest.raises(RuntimeError, match="1 of 6 steps"):
        agent.update(torch.zeros(4, 2))
    assert agent.reward_normalizer.count == 0


def test_episodes_begin_when_the_caller_resets_its_envs() -> None:
    agent = make()
    agent.act(torch.ones(4, 2))
    agent.observe(torch.ones(4), NONE, NONE)
    agent.act(torch.ones(4, 2))
    agent.begin_episodes()
    assert agent._begins.all()
    assert agent.buffer.step == 0
    blank = make().state.state_dict()
    assert all(torch.equal(tensor, blank[name]) for name, tensor in agent.state.state_dict().items())
    agent.act(torch.ones(4, 2))


def test_truncation_bootstraps_with_the_recurrent_state_that_belongs_to_it() -> None:
    agent = make()
    final = torch.full((4, 2), 3.0)
    agent.act(torch.ones(4, 2))
    state = agent.state  # after the step: the memory that has seen it
    inputs = PolicyInputs(final, state.previous_action, torch.ones(4))
    with torch.inference_mode():
        expected = recurrent().step(inputs, state.hidden)[0].value
        stale = recurrent().step(inputs, torch.zeros_like(state.hidden))[0].value
    assert not torch.allclose(expected, stale)
    agent.observe(torch.ones(4), NONE, ~NONE, final_observation=final)
    torch.testing.assert_close(agent.buffer.truncation_value[:, 0], expected)


def test_the_end_of_a_rollout_bootstraps_with_the_last_reward_in_view() -> None:
    agent = make(replace(CONFIG, gamma=1.0, gae_lambda=1.0), steps=1)
    paid, last = torch.tensor([5.0, -5.0, 2.0, 0.0]), torch.ones(4, 2)
    agent.act(torch.zeros(4, 2))
    agent.observe(paid, NONE, NONE)
    with torch.inference_mode():
        inputs = PolicyInputs(last, agent.state.previous_action, paid)
        value = recurrent().step(inputs, agent.state.hidden)[0].value
    torch.testing.assert_close(agent._finish(last).returns, paid + value)


def test_the_learning_rate_and_epsilon_reach_the_optimiser() -> None:
    config = replace(CONFIG, lr=1e-3, lr_anneal_steps=2, adam_eps=3e-4)
    agent = make(config)
    run_probe(agent, probe(), 2)
    for group in agent.optimizer.param_groups:
        assert group["lr"] == pytest.approx(config.lr_at(1))
        assert group["eps"] == 3e-4


@pytest.mark.parametrize(
    ("epochs", "expected", "message"), [(3, 3, "elevated"), (4, 4, "elevated"), (5, 4, "capped")]
)
def test_many_epochs_with_memory_warn(epochs: int, expected: int, message: str) -> None:
    with pytest.warns(RuntimeWarning, match=message):
        assert make(replace(CONFIG, n_epochs=epochs)).n_epochs == expected


def test_few_epochs_or_no_memory_do_not_warn() -> None:
    assert make(replace(CONFIG, n_epochs=2)).n_epochs == 2
    plain = ActorCritic(2, discrete_layout(2), generator=torch.Generator().manual_seed(0))
    assert make(replace(CONFIG, n_epochs=20, clip_value=True), plain).n_epochs == 20


def test_a_learning_rate_that_nothing_learns_by_warns() -> None:
    with pytest.warns(RuntimeWarning, match="lr is 1000: .* the default is 0.0003"):
        make(replace(CONFIG, lr=1000.0))
    make(replace(CONFIG, lr=0.5))


def test_value_clipping_with_memory_and_epochs_warns_of_stale_values() -> None:
    with pytest.warns(RuntimeWarning, match="stale values"):
        make(replace(CONFIG, clip_value=True))
    make(replace(CONFIG, clip_value=True, n_epochs=1))


def test_small_advantages_are_warned_about() -> None:
    agent = make()
    while not agent.ready:
        agent.act(torch.zeros(4, 2))
        agent.observe(torch.zeros(4), ~NONE, NONE)
    with pytest.warns(RuntimeWarning, match=r"advantage std before normalisation is .* \(< 0\.1\)"):
        agent.update(torch.zeros(4, 2))


def poison(agent: PPOAgent, updates: int) -> list[PPOUpdateMetrics]:
    history = []
    for _ in range(updates):
        while not agent.ready:
            agent.act(torch.zeros(4, 2))
            agent.observe(torch.full((4,), torch.nan), ~NONE, NONE)
        history.append(agent.update(torch.zeros(4, 2)))
    return history


def test_three_non_finite_updates_in_a_row_stop_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    agent = make()
    agent.failure_checkpoint = tmp_path / "failure.pt"
    before = {name: p.clone() for name, p in agent.policy.named_parameters()}
    history = poison(agent, 2)
    assert all(metrics.minibatches_applied == 0 for metrics in history)
    assert [anomaly.kind for anomaly in history[0].anomalies] == [AnomalyKind.NUMERICAL_INSTABILITY]
    with pytest.raises(NonFiniteUpdateError, match=r"3 updates in a row .* saved in .*failure\.pt"):
        poison(agent, 1)
    assert all(torch.equal(before[name], p) for name, p in agent.policy.named_parameters())
    fresh = make(policy=recurrent(seed=5))
    fresh.load(agent.failure_checkpoint)
    assert all(torch.equal(before[name], p) for name, p in fresh.policy.named_parameters())


def test_one_bad_reward_skips_its_update_and_does_not_enter_the_memory(tmp_path: Path) -> None:
    agent = make()
    agent.failure_checkpoint = tmp_path / "failure.pt"
    generator = torch.Generator().manual_seed(0)
    bad = torch.tensor([torch.nan, torch.inf, 1.0, -torch.inf])

    def rollout(first: torch.Tensor) -> PPOUpdateMetrics:
        agent.act(torch.randn(4, 2, generator=generator))
        agent.observe(first, NONE, NONE)
        assert agent.state.previous_reward.tolist() == torch.nan_to_num(first, 0.0, 0.0, 0.0).tolist()
        while not agent.ready:
            agent.act(torch.randn(4, 2, generator=generator))
            agent.observe(torch.randn(4, generator=generator), NONE, NONE)
        return agent.update(torch.randn(4, 2, generator=generator))

    for count in (1, 2):
        metrics = rollout(bad)
        assert (metrics.minibatches_applied, metrics.minibatches_skipped) == (0, 4)
        assert agent.non_finite_in_a_row == count
    assert rollout(torch.ones(4)).minibatches_applied > 0  # no end was needed to recover
    rollout(bad)
    rollout(bad)
    with pytest.raises(NonFiniteUpdateError, match="3 updates in a row"):
        rollout(bad)
    assert agent.failure_checkpoint.is_file()


def test_a_finite_update_between_clears_the_count() -> None:
    agent = make()
    poison(agent, 2)
    run_probe(agent, probe(), 1)
    assert agent.non_finite_in_a_row == 0
    poison(agent, 2)
    with pytest.raises(NonFiniteUpdateError, match="no failure_checkpoint was configured"):
        poison(agent, 1)


def test_slots_are_compared_when_parts_meet() -> None:
    policy = growth_policy(2, 3, torch.Generator().manual_seed(0), hidden_size=8)
    PPOAgent(policy, CONFIG, num_envs=1, num_steps=1, seed=0, slot_config=SlotConfig(("slot0", "slot1")))
    with pytest.raises(
        ValueError, match=r"the policy has .slot0, slot1., the environment has .slot1, slot0."
    ):
        PPOAgent(policy, CONFIG, num_envs=1, num_steps=1, seed=0, slot_config=SlotConfig(("slot1", "slot0")))
    other = TamiyoRolloutBuffer(
        growth_layout(SlotConfig(("slot1", "slot0")), 3), num_envs=1, num_steps=1, observation_size=1
    )
    agent = PPOAgent(policy, CONFIG, num_envs=1, num_steps=1, seed=0)
    with pytest.raises(ValueError, match=r"the buffer has .slot1, slot0.; order counts"):
        agent.require_layout(other)
    with pytest.raises(ValueError, match="the policy points at no slots"):
        make().require_slots(SlotConfig(("a",)))


def test_head_coefficients_are_compared_with_the_layout() -> None:
    with pytest.raises(ValueError, match=r"entropy_coef_per_head names \['blueprint'\]"):
        make(PPOConfig(entropy_coef_per_head={"blueprint": 0.1}))


def test_between_rollouts_some_envs_can_begin_anew() -> None:
    agent = make(steps=1)
    agent.act(torch.ones(4, 2))
    agent.observe(torch.arange(4.0), NONE, NONE)
    agent.update(torch.ones(4, 2))
    before, blank = agent.state.state_dict(), make().state.state_dict()
    agent.begin_episodes(np.array([False, True, False, False]))
    assert agent._begins.tolist() == [False, True, False, False]
    for name, tensor in agent.state.state_dict().items():
        axis = 1 if name == "hidden" else 0
        for env in range(4):
            expected = blank if env == 1 else before
            assert torch.equal(tensor.select(axis, env), expected[name].select(axis, env)), (name, env)


def test_observation_statistics_move_only_after_the_update() -> None:
    agent = make(replace(CONFIG, normalize_observations=True, debug=True))
    source = probe()
    observation, mask = source.reset()
    observation, mask = observation + 5, mask
    while not agent.ready:
        agent.act(observation, mask)
        assert agent.observation_stats.count == 0
        agent.observe(torch.randn(4, generator=torch.Generator().manual_seed(0)), NONE, NONE)
    agent.update(observation)
    assert agent.observation_stats.count == 24
    torch.testing.assert_close(agent.observation_stats.mean.float(), observation.mean(0))
    agent.act(observation, mask)
    actor = agent.actor(4)
    actor.act(observation, mask)
    torch.testing.assert_close(
        agent._pending[1].observation if agent._pending else observation,
        agent.observation_stats.normalize(observation),
    )


def test_invalid_steps_are_in_no_statistics() -> None:
    agent = make(replace(CONFIG, normalize_observations=True, normalize_rewards=True), steps=2)
    bad = np.array([False, True, False, False])
    generator = torch.Generator().manual_seed(0)
    seen, paid = torch.randn(2, 4, 2, generator=generator), torch.randn(2, 4, generator=generator)
    seen[0, 1], paid[0, 1] = 1e3, 1e3
    for step in range(2):
        agent.act(seen[step])
        agent.observe(paid[step], NONE, NONE, valid=~bad if step == 0 else None)
    agent.update(torch.zeros(4, 2))
    kept = torch.tensor([True, False, True, True, True, True, True, True])
    assert agent.observation_stats.count == agent.reward_normalizer.count == 7
    torch.testing.assert_close(agent.observation_stats.mean.float(), seen.flatten(0, 1)[kept].mean(0))
    torch.testing.assert_close(agent.reward_normalizer.std.float(), paid.flatten()[kept].std(correction=0))


def test_normalised_observations_keep_their_bits() -> None:
    """A bit that is always 1, such as a slot's presence, has no deviation: normalised it would be 0."""
    policy = growth_policy(2, 3, torch.Generator().manual_seed(0), hidden_size=16)
    config = PPOConfig(normalize_observations=True)
    agent = PPOAgent(policy, config, num_envs=4, num_steps=9, seed=0)
    source = SyntheticGrowth(policy, 4, torch.Generator().manual_seed(1))
    agent.update(source.fill(agent))
    observation = source.observation()
    agent.act(observation)
    assert agent._pending is not None
    seen, fixed = agent._pending[1].observation, policy.fixed_scales()
    assert torch.equal(seen[:, fixed], observation[:, fixed])
    present = [len(HOST_FEATURES) + slot * len(SLOT_FEATURES) + PRESENT for slot in range(2)]
    assert fixed[present].all()
    assert not torch.isclose(seen, observation)[:, ~fixed].any()


def test_rewards_are_normalised_before_advantages() -> None:
    agent = make(replace(CONFIG, normalize_rewards=True, gamma=1.0, gae_lambda=1.0), steps=1)
    rewards = torch.tensor([100.0, 300.0, 500.0, 700.0])
    agent.act(torch.zeros(4, 2))
    agent.observe(rewards, ~NONE, NONE)
    metrics = agent.update(torch.zeros(4, 2))
    std = rewards.std(correction=0)
    assert metrics.value.return_max == pytest.approx(float(700 / std), rel=1e-5)
    assert agent.reward_normalizer.count == 4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_policy_learns_and_saves_as_the_plain_one(tmp_path: Path) -> None:
    agents = []
    for compiled in (False, True):
        policy: Policy = recurrent()
        if compiled:
            policy = torch.compile(policy, backend="eager")  # type: ignore[assignment]
        agent = make(replace(CONFIG, weight_decay=0.1), policy)
        run_probe(agent, probe(), 2)
        agent.save(tmp_path / f"{compiled}.pt")
        agents.append(agent)
    fresh = make(replace(CONFIG, weight_decay=0.1), recurrent(seed=7))
    fresh.load(tmp_path / "True.pt")
    for plain, loaded in zip(agents[0].policy.parameters(), fresh.policy.parameters(), strict=True):
        torch.testing.assert_close(plain, loaded)
    assert {group["name"] for group in agents[1].optimizer.param_groups} == {"actor", "shared", "critic"}


def test_acting_and_normalising_leave_no_gradients_behind() -> None:
    agent = make(replace(CONFIG, normalize_observations=True))
    run_probe(agent, probe(), 1)
    assert all(p.grad is None for p in agent.policy.parameters())
    action = agent.act(torch.zeros(4, 2))
    assert action.is_inference()
    assert not agent.observation_stats.normalize(torch.zeros(4, 2)).requires_grad


def test_the_growth_agent_runs_in_debug_for_several_updates() -> None:
    policy = growth_policy(3, 5, torch.Generator().manual_seed(0), hidden_size=16)
    agent = PPOAgent(policy, PPOConfig(debug=True), num_envs=5, num_steps=11, seed=0)
    source = SyntheticGrowth(policy, 5, torch.Generator().manual_seed(1), end_probability=0.1)
    for _ in range(4):
        metrics = agent.update(source.fill(agent))
        assert metrics.minibatches_applied >= 1
        assert metrics.ratio_breakdown is not None
    assert agent.updates == 4
    assert agent.env_steps == 220


def test_entropy_coefficient_follows_the_updates() -> None:
    agent = make(replace(CONFIG, entropy_anneal_steps=2, adaptive_entropy_floor=True))
    assert agent.get_entropy_coef() == pytest.approx(0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        run_probe(agent, probe(), 2)
    assert agent.get_entropy_coef() == pytest.approx(0.01)
    assert agent.get_entropy_floor(torch.tensor([True] * 2 + [False] * 5)) == pytest.approx(0.0281, abs=5e-5)


def test_anomalies_are_raised_in_the_loop() -> None:
    policy = ActorCritic(1, discrete_layout(2), generator=torch.Generator().manual_seed(0))
    config = PPOConfig(lr=1.0, target_kl=None, max_grad_norm=100.0)
    with pytest.warns(RuntimeWarning, match="lr is 1: "):
        agent = PPOAgent(policy, config, num_envs=4, num_steps=16, seed=0)
    source = ActionIsObservation(4, torch.Generator().manual_seed(0))
    observation, mask = source.reset()
    kinds = {
        anomaly.kind
        for metrics, *_ in iterate(agent, source, observation, mask, 3)
        for anomaly in metrics.anomalies
    }
    assert kinds & {AnomalyKind.RATIO_EXPLOSION, AnomalyKind.RATIO_COLLAPSE}
