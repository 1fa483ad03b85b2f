"""The update over masked, factored, recurrent rollouts: C2, C3, C6, C13, A8, B1, B5, B6."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, LifecycleOp
from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.agent.rollout_buffer import Minibatch, Rollout, minibatches, whole_rows
from esper.simic.agent.update import (
    LossConstants,
    LossTerms,
    StepGate,
    build_optimizer,
    compute_loss,
    run_update,
)
from esper.tamiyo import ActorCritic, GrowthPolicy, discrete_layout
from synthetic_growth import SyntheticGrowth, growth_policy

CONFIG = PPOConfig(target_kl=None)
ENVS, STEPS = 5, 23


def agent_with_rollout(seed: int = 0, config: PPOConfig = CONFIG) -> tuple[PPOAgent, Rollout]:
    """A growth agent and a rollout with resets, truncations, masks and irrelevant heads."""
    layers = 1 + seed % 2
    policy = growth_policy(3, 5, torch.Generator().manual_seed(seed), hidden_size=16, num_lstm_layers=layers)
    perturb(policy, seed)
    agent = PPOAgent(policy, config, num_envs=ENVS, num_steps=STEPS, seed=seed)
    source = SyntheticGrowth(policy, ENVS, torch.Generator().manual_seed(seed + 1), end_probability=0.1)
    source.fill(agent)
    agent.buffer.clear()  # the second rollout begins in the middle of episodes, with memory
    observation = source.fill(agent)
    assert agent.buffer.initial_hidden.abs().max() > 0
    assert agent.buffer.terminated.any()
    assert agent.buffer.truncated.any()
    return agent, agent._finish(observation)


def perturb(policy: torch.nn.Module, seed: int, scale: float = 0.2) -> None:
    """Policy outputs are born near zero; give them something to say."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def whole(rollout: Rollout) -> Minibatch:
    return whole_rows(rollout, np.flatnonzero(rollout.row_lengths))


def loss_of(agent: PPOAgent, rollout: Rollout, config: PPOConfig = CONFIG, updates: int = 0) -> LossTerms:
    constants = LossConstants.of(agent.policy, config, torch.device("cpu"))
    return compute_loss(agent.policy, whole(rollout), config, constants, updates)


def updated(
    agent: PPOAgent, rollout: Rollout, config: PPOConfig = CONFIG, *, n_epochs: int = 1, updates: int = 0
) -> PPOUpdateMetrics:
    return run_update(
        agent.policy,
        agent.optimizer,
        rollout,
        config,
        n_epochs=n_epochs,
        updates=updates,
        generator=agent.shuffle_generator,
    )


def gradients(agent: PPOAgent, terms: LossTerms) -> dict[str, Tensor]:
    agent.optimizer.zero_grad(set_to_none=True)
    terms.loss.backward()
    return {name: p.grad.clone() for name, p in agent.policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("seed", range(4))
def test_every_ratio_is_one_before_the_first_step(seed: int) -> None:
    agent, rollout = agent_with_rollout(seed)
    terms = loss_of(agent, rollout)
    assert (terms.log_ratio.exp() - 1).abs().max() < 1e-5
    assert not terms.evaluation.relevant.all()
    assert terms.kl.item() < 1e-9


def test_debug_refuses_a_replay_that_differs_from_the_rollout() -> None:
    agent, rollout = agent_with_rollout(config=replace(CONFIG, debug=True))
    before = agent.shuffle_generator.get_state()
    with pytest.raises(RuntimeError, match=r"before the first optimiser step \|ratio - 1\|"):
        updated(agent, replace(rollout, initial_hidden=rollout.initial_hidden + 0.5), agent.config)
    with pytest.raises(RuntimeError, match="differs from the rollout"):
        updated(agent, replace(rollout, begins=np.zeros_like(rollout.begins)), agent.config)
    assert torch.equal(before, agent.shuffle_generator.get_state())
    updated(agent, rollout, agent.config)


def test_blueprint_logits_get_gradient_only_on_germinate() -> None:
    agent, rollout = agent_with_rollout()
    batch = whole(rollout)
    policy = agent.policy
    assert isinstance(policy, GrowthPolicy)
    logits: list[Tensor] = []

    def keep(_module: torch.nn.Module, _inputs: object, output: Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    handle = policy.actor.register_forward_hook(keep)
    terms = loss_of(agent, rollout)
    handle.remove()
    terms.loss.backward()
    assert logits[0].grad is not None
    for head, name in enumerate(HEAD_NAMES):
        touched = policy.layout.block(logits[0].grad, name).abs().sum((-1, -2)) > 0
        assert torch.equal(touched, terms.evaluation.has_choice[:, head]), name
    touched = policy.layout.block(logits[0].grad, "blueprint").abs().sum((-1, -2)) > 0
    assert (batch.action[touched, 0] == LifecycleOp.GERMINATE).all()
    assert touched.any()


def test_a_head_that_was_never_relevant_learns_nothing() -> None:
    agent, rollout = agent_with_rollout()
    ops = rollout.action[:, 0]
    keep = (ops == LifecycleOp.WAIT) | (ops == LifecycleOp.ADVANCE)
    quiet = replace(rollout, action=torch.where(keep.unsqueeze(-1), rollout.action, 0))
    grads = gradients(agent, loss_of(agent, quiet))
    for name, gradient in grads.items():
        if name.startswith("actor.heads."):
            head = name.split(".")[2]
            assert bool(gradient.abs().sum() > 0) == (head in ("op", "slot")), name


def test_forced_steps_train_only_the_value() -> None:
    policy = growth_policy(3, 5, torch.Generator().manual_seed(0), hidden_size=16)
    agent = PPOAgent(policy, CONFIG, num_envs=2, num_steps=3, seed=0)
    source = SyntheticGrowth(policy, 2, torch.Generator().manual_seed(1))
    only_wait = source.mask()
    policy.layout.block(only_wait, "op")[:] = torch.arange(6) == LifecycleOp.WAIT
    none = np.zeros(2, dtype=np.bool_)
    while not agent.ready:
        assert (agent.act(source.observation(), only_wait) == 0).all()
        agent.observe(source.reward(), none, none)
    rollout = agent._finish(source.observation())
    assert rollout.forced.all()
    grads = gradients(agent, loss_of(agent, rollout))
    assert all(grad.abs().max() == 0 for name, grad in grads.items() if name.startswith("actor."))
    assert grads["critic.0.weight"].abs().max() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        metrics = agent.update(source.observation())
    assert metrics.forced_steps == 6
    assert metrics.head_entropies["op"] is None
    assert metrics.entropy is None


def half_forced(rollout: Rollout) -> Rollout:
    """The same with every other step as if there had been no choice."""
    return replace(rollout, forced=rollout.forced | (torch.arange(rollout.steps) % 2 == 0))


def test_actor_entropy_and_kl_are_means_over_the_same_unforced_steps() -> None:
    agent, rollout = agent_with_rollout()
    perturb(agent.policy, 7, scale=0.05)  # off-policy: the KL is not 0
    forced = half_forced(rollout)
    terms = loss_of(agent, forced, replace(CONFIG, entropy_coef=1.0, value_coef=0.0))
    batch, evaluation = whole(forced), terms.evaluation
    trained = ~batch.forced
    assert 0 < trained.sum() < rollout.steps
    log_ratio = evaluation.log_prob - batch.log_prob
    advantage = torch.where(evaluation.relevant, batch.advantage.unsqueeze(-1), 0.0)
    gain = torch.minimum(log_ratio.exp() * advantage, log_ratio.exp().clamp(0.8, 1.2) * advantage)
    expected = -gain.sum(-1)[trained].mean()
    torch.testing.assert_close(terms.policy_loss, expected.detach(), atol=1e-5, rtol=1e-4)
    joint = log_ratio.sum(-1)[trained]
    torch.testing.assert_close(terms.kl, (joint.exp() - 1 - joint).mean().detach(), atol=1e-6, rtol=1e-3)
    entropy = evaluation.entropy.sum(-1)[trained].mean()
    torch.testing.assert_close(terms.policy_loss - terms.loss, entropy, atol=1e-5, rtol=1e-4)


def test_advantages_are_normalised_over_the_steps_that_train_the_actor() -> None:
    agent, rollout = agent_with_rollout()
    forced = half_forced(rollout)
    spoiled = replace(forced, advantage=torch.where(forced.forced, 1e3, forced.advantage))
    batch = whole(forced)
    with torch.no_grad():
        relevant = loss_of(agent, forced).evaluation.relevant.sum(-1)
    metrics = updated(agent, spoiled, replace(CONFIG, num_minibatches=1))
    kept = batch.advantage[~batch.forced]
    normal = (kept - kept.mean()) / kept.std(correction=0)
    expected = -(normal * relevant[~batch.forced]).mean().item()  # every ratio is 1
    assert metrics.policy_loss == pytest.approx(expected, abs=1e-4)
    assert (metrics.advantage_mean, metrics.advantage_std) == pytest.approx((0.0, 1.0), abs=1e-4)
    assert metrics.value.advantage_mean_prenorm == pytest.approx(kept.mean().item(), abs=1e-5)


def test_the_first_gradient_is_the_plain_policy_gradient() -> None:
    agent, rollout = agent_with_rollout()
    config = replace(CONFIG, entropy_coef=0.0, entropy_coef_min=0.0, value_coef=0.0)
    grads = gradients(agent, loss_of(agent, rollout, config))
    batch = whole(rollout)
    evaluation, _ = agent.policy.evaluate_actions(
        batch.inputs, batch.mask, batch.action, batch.initial_hidden, batch.plan
    )
    weighted = evaluation.log_prob.sum(-1) * batch.advantage * ~batch.forced
    agent.optimizer.zero_grad(set_to_none=True)
    (-weighted.sum() / (~batch.forced).sum()).backward()
    for name, parameter in agent.policy.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(grads[name], parameter.grad, atol=1e-5, rtol=1e-4)


def test_the_loss_does_not_depend_on_the_order_of_envs() -> None:
    agent, rollout = agent_with_rollout()
    perturb(agent.policy, 99, scale=0.02)  # off-policy, so that every term counts
    constants = LossConstants.of(agent.policy, CONFIG, torch.device("cpu"))
    losses = [
        compute_loss(agent.policy, whole_rows(rollout, np.array(order)), CONFIG, constants, 0).loss.item()
        for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1])
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_adaptive_floor_changes_the_loss() -> None:
    agent, rollout = agent_with_rollout()
    annealed = replace(CONFIG, entropy_anneal_steps=5)
    plain = loss_of(agent, rollout, annealed, updates=5).loss.item()
    raised = loss_of(agent, rollout, replace(annealed, adaptive_entropy_floor=True), updates=5).loss.item()
    assert raised < plain - 1e-4


def test_the_adaptive_floor_of_a_head_is_by_its_own_choices() -> None:
    """log of how many the head has over log of how many are legal, at most 3, times the smallest coefficient."""
    agent, rollout = agent_with_rollout()
    config = replace(CONFIG, entropy_anneal_steps=5, adaptive_entropy_floor=True)
    terms = loss_of(agent, rollout, config, updates=5)
    for head, size in enumerate(agent.policy.layout.sizes):
        for legal in range(2, size):
            raised = config.entropy_coef_min * min(math.log(size) / math.log(legal), 3.0)
            here = terms.evaluation.legal_choices[:, head] == legal
            expected = torch.full((int(here.sum()),), raised)
            torch.testing.assert_close(terms.entropy_coef[here, head], expected)
    assert len(set(agent.policy.layout.sizes)) > 3


def test_a_head_may_have_its_own_entropy_coefficient() -> None:
    agent, rollout = agent_with_rollout()
    plain = loss_of(agent, rollout).loss.item()
    eager = loss_of(agent, rollout, replace(CONFIG, entropy_coef_per_head={"blueprint": 0.5})).loss.item()
    assert eager < plain - 1e-3


def test_without_entropy_coefficients_there_is_no_bonus() -> None:
    agent, rollout = agent_with_rollout()
    terms = loss_of(agent, rollout, replace(CONFIG, entropy_coef=0.0, value_coef=0.0))
    assert CONFIG.entropy_coef_min > 0
    assert terms.loss.item() == terms.policy_loss.item()


def test_the_entropy_coefficients_reported_are_those_of_the_loss() -> None:
    """Annealed, of each head, and raised by the floor where few choices are legal."""
    heads = {"op": 0.0, "slot": 0.2}
    config = replace(
        CONFIG, entropy_anneal_steps=10, adaptive_entropy_floor=True, entropy_coef_per_head=heads
    )
    agent, rollout = agent_with_rollout()
    terms = loss_of(agent, rollout, config, updates=8)
    metrics = updated(agent, rollout, replace(config, num_minibatches=1), updates=8)
    chosen = terms.evaluation.has_choice
    used = [terms.entropy_coef[:, head][chosen[:, head]].mean().item() for head in range(len(HEAD_NAMES))]
    assert [metrics.head_entropy_coefs[name] for name in HEAD_NAMES] == pytest.approx(used)
    assert metrics.entropy_coef == pytest.approx(terms.entropy_coef[chosen].mean().item())
    assert used[0] == 0.0
    assert used[1] > used[3] > 0.05 - 0.8 * 0.04  # its own weight, and a floor over that of all choices


def test_value_clipping_changes_the_loss() -> None:
    agent, rollout = agent_with_rollout()
    perturb(agent.policy, 3)
    plain = loss_of(agent, rollout).value_loss.item()
    clipped = loss_of(agent, rollout, replace(CONFIG, clip_value=True, value_clip=0.01)).value_loss.item()
    assert clipped > plain


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["log_prob", "advantage", "returns"])
def test_a_non_finite_update_is_skipped(poison: float, where: str) -> None:
    config = replace(CONFIG, debug=False, num_minibatches=1, n_epochs=1, normalize_advantages=False)
    agent, rollout = agent_with_rollout(config=config)
    array = getattr(rollout, where).clone()
    array[3] = -poison if where == "log_prob" else poison
    before = {name: p.clone() for name, p in agent.policy.named_parameters()}
    metrics = updated(agent, replace(rollout, **{where: array}), config)
    assert metrics.minibatches_skipped == 1
    assert metrics.minibatches_applied == 0
    assert metrics.ratio_has_numerical_issue == (where == "log_prob")
    assert metrics.ratio_breakdown is None
    assert metrics.policy_loss is None
    assert all(torch.equal(before[name], p) for name, p in agent.policy.named_parameters())


def test_debug_counts_what_is_wrong_with_the_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, debug=True, num_minibatches=1)
    agent, rollout = agent_with_rollout(config=config)
    monkeypatch.setattr("esper.simic.agent.update.require_on_policy", lambda *_: None)
    log_prob = rollout.log_prob.clone()
    log_prob[2, 0] = torch.nan
    log_prob[4, 1] = -torch.inf
    metrics = updated(agent, replace(rollout, log_prob=log_prob), config)
    assert metrics.ratio_breakdown is not None
    assert (metrics.ratio_breakdown.nan, metrics.ratio_breakdown.inf) == (1, 1)
    assert metrics.ratio_breakdown.heads == ("op", "slot")


def test_updates_stop_at_one_and_a_half_times_the_target_kl_even_in_one_epoch() -> None:
    config = PPOConfig(lr=0.05, target_kl=0.01, n_epochs=1, num_minibatches=5)
    agent, rollout = agent_with_rollout(config=config)
    metrics = updated(agent, rollout, config)
    assert metrics.kl_stopped
    assert metrics.approx_kl > 0.015
    assert 1 <= metrics.minibatches_applied < 5
    assert metrics.minibatches_skipped == 0


def test_without_a_target_nothing_stops() -> None:
    config = PPOConfig(lr=0.05, target_kl=None, n_epochs=2, num_minibatches=5)
    agent, rollout = agent_with_rollout(config=config)
    metrics = updated(agent, rollout, config, n_epochs=2)
    assert (metrics.minibatches_applied, metrics.epochs, metrics.kl_stopped) == (10, 2, False)


def test_metrics_say_what_happened() -> None:
    agent, rollout = agent_with_rollout()
    metrics = updated(agent, rollout, replace(CONFIG, num_minibatches=1))
    assert metrics.advantage_mean == pytest.approx(0.0, abs=1e-5)
    assert metrics.advantage_std == pytest.approx(1.0, abs=1e-4)
    assert metrics.gradient is not None
    assert metrics.gradient.grad_norm >= metrics.gradient.max_grad >= metrics.gradient.min_grad >= 0
    assert set(metrics.head_grad_norms) == set(metrics.head_entropies) == set(HEAD_NAMES)
    assert all(norm is not None and norm > 0 for norm in metrics.head_grad_norms.values())
    assert all(p.grad is None for p in agent.policy.parameters())  # A1
    batch = whole(rollout)
    evaluation, _ = agent.policy.evaluate_actions(
        batch.inputs, batch.mask, batch.action, batch.initial_hidden, batch.plan
    )
    chosen = evaluation.has_choice[:, 2]
    expected = evaluation.entropy[:, 2][chosen].mean().item()
    assert metrics.head_entropies["blueprint"] == pytest.approx(expected, abs=0.05)
    assert metrics.value.return_max >= metrics.value.return_mean >= metrics.value.return_min


def test_a_rollout_without_valid_steps_is_refused() -> None:
    agent, _ = agent_with_rollout()
    agent.buffer.valid[:] = False
    with pytest.raises(ValueError, match="no valid step"):
        updated(
            agent, agent.buffer.finish(torch.zeros(ENVS), agent.policy, gamma=0.9, gae_lambda=0.9), CONFIG
        )


def test_weight_decay_reaches_the_critic_only() -> None:
    policy = growth_policy(2, 3, torch.Generator().manual_seed(0), hidden_size=16)
    plain = build_optimizer(policy, PPOConfig(weight_decay=0.0))
    assert type(plain) is torch.optim.Adam
    assert plain.defaults["foreach"]
    decayed = build_optimizer(policy, PPOConfig(weight_decay=0.1))
    assert type(decayed) is torch.optim.AdamW
    assert {group["name"]: group["weight_decay"] for group in decayed.param_groups} == {
        "actor": 0.0,
        "shared": 0.0,
        "critic": 0.1,
    }
    seen = [id(p) for group in decayed.param_groups for p in group["params"]]
    assert sorted(seen) == sorted(id(p) for p in policy.parameters())


def test_shuffled_step_minibatches_without_memory() -> None:
    policy = ActorCritic(3, discrete_layout(4), generator=torch.Generator().manual_seed(0))
    agent = PPOAgent(policy, CONFIG, num_envs=4, num_steps=8, seed=0)
    none = np.zeros(4, dtype=np.bool_)
    generator = torch.Generator().manual_seed(1)
    while not agent.ready:
        agent.act(torch.randn(4, 3, generator=generator))
        agent.observe(torch.randn(4, generator=generator), none, none)
    rollout = agent._finish(torch.randn(4, 3, generator=generator))
    first = next(iter(minibatches(rollout, 4, recurrent=False, generator=torch.Generator().manual_seed(3))))
    assert len(set((first.index // 8).tolist())) > 1  # steps of several envs together
    metrics = run_update(
        policy, agent.optimizer, rollout, CONFIG, n_epochs=1, updates=0, generator=agent.shuffle_generator
    )
    assert metrics.minibatches_applied == 4


def test_the_gate_closes_beyond_one_and_a_half_times_the_target_only() -> None:
    agent, _ = agent_with_rollout()
    gate = StepGate(agent.optimizer, 0.01, torch.device("cpu"))
    yes = torch.tensor(True)
    assert [bool(gate.step(yes, torch.tensor(kl))) for kl in (0.0, 0.0101, 0.0149)] == [True] * 3
    assert not gate.step(yes, torch.tensor(0.0151))
    assert gate.stopped
    assert not gate.step(yes, torch.tensor(0.0))


def test_gradients_are_clipped_to_the_largest_norm() -> None:
    config = replace(CONFIG, max_grad_norm=1e-3)
    agent, rollout = agent_with_rollout(config=config)
    norms: list[float] = []

    def measure(*_: object) -> None:
        gradients = [p.grad for p in agent.policy.parameters() if p.grad is not None]
        norms.append(float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))))

    agent.optimizer.register_step_pre_hook(measure)
    metrics = updated(agent, rollout, config)
    assert metrics.gradient is not None
    assert metrics.gradient.grad_norm > 1e-2  # reported as it was before
    assert norms == pytest.approx([1e-3] * 4, rel=1e-2)


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is() -> None:
    agent, rollout = agent_with_rollout()
    before = {name: p.clone() for name, p in agent.policy.named_parameters()}
    parameter = next(agent.policy.parameters())
    parameter.register_hook(lambda gradient: gradient * torch.nan)
    metrics = updated(agent, rollout)
    assert (metrics.minibatches_applied, metrics.minibatches_skipped) == (0, 4)
    assert not metrics.ratio_has_numerical_issue
    assert all(torch.equal(before[name], p) for name, p in agent.policy.named_parameters())
