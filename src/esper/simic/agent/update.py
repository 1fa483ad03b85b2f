"""The PPO update: epochs over a rollout, every step gated on the device, one host sync an epoch.

Also the policy that a run started with, which `start_kl` holds the one that learns to.
"""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from esper.simic.agent.advantages import compute_per_head_advantages, masked_mean_std
from esper.simic.agent.losses import (
    clipped_surrogate,
    clipped_value_loss,
    entropy_coefficient,
    head_kl,
    joint_log_ratio,
    k3,
    mean_over,
    value_loss,
)
from esper.simic.agent.normalization import RunningMeanStd
from esper.simic.agent.rollout_buffer import Minibatch, Rollout, autocast, minibatches
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.agent.update_metrics import GradientMeter, MinibatchReport, UpdateMeter
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import ActorState, Policy, PolicyInputs, unwrap
from esper.tamiyo.distributions import HeadEvaluation

MAX_RECURRENT_EPOCHS = 4
HIGHEST_LR = 0.5
"""Above it a learning rate is warned about."""

KL_STOP_FACTOR = 1.5
"""An update stops once its KL exceeds target_kl times this."""
RATIO_TOLERANCE = 1e-5
"""How far ratios may be from 1 before the first optimiser step, in fp32."""


@dataclass(frozen=True, slots=True)
class LossConstants:
    """What does not change during an update, on the device."""

    head_sizes: Tensor
    """(head,)"""
    entropy_coef: Tensor
    """(head,) starting coefficients."""

    @staticmethod
    def of(policy: Policy, config: PPOConfig, device: torch.device) -> "LossConstants":
        """Those of a policy's heads."""
        layout = policy.layout
        coefficients = [config.entropy_coef_per_head.get(name, config.entropy_coef) for name in layout.names]
        return LossConstants(
            # `device=` here would wait for the copy; `non_blocking` does not.
            head_sizes=torch.tensor(layout.sizes).to(device, non_blocking=True),
            entropy_coef=torch.tensor(coefficients, dtype=torch.float32).to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class LossTerms:
    """The loss of one minibatch, and what it is made of."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    kl: Tensor
    log_ratio: Tensor
    """(step, head), new minus old."""
    entropy_coef: Tensor
    """(step, head) weight of the entropy bonus."""
    evaluation: HeadEvaluation


def compute_loss(
    policy: Policy, batch: Minibatch, config: PPOConfig, constants: LossConstants, updates: int
) -> LossTerms:
    """loss = sum over relevant heads of the clipped surrogate - entropy bonus + value_coef value loss + start_kl KL.

    The last is from the policy that it started with, while it is held to one. Actor, entropy and both KLs are means
    over the same steps (valid and unforced); the value over all valid steps.
    """
    with autocast(config, batch.value.device, cache=True):
        output = policy(batch.inputs, batch.initial_hidden, batch.plan)
    distribution = unwrap(policy).distribution(output.logits, batch.mask)
    evaluation = distribution.evaluate(batch.action)
    trained = ~batch.forced
    log_ratio = evaluation.log_prob - batch.log_prob  # (step, head); 0 where irrelevant
    advantages = compute_per_head_advantages(batch.advantage, evaluation.relevant)
    surrogate = clipped_surrogate(log_ratio, advantages, config.clip_ratio).sum(-1)
    coefficient = entropy_coefficient(
        config, evaluation.legal_choices, constants.head_sizes, updates, constants.entropy_coef
    )
    bonus = (coefficient * evaluation.entropy).sum(-1)
    if config.clip_value:
        value_error = clipped_value_loss(output.value, batch.value, batch.returns, config.value_clip)
    else:
        value_error = value_loss(output.value, batch.returns)
    policy_loss = mean_over(surrogate, trained)
    critic_loss = value_error.mean()
    with torch.no_grad():  # not inference_mode: the optimiser's gate goes on computing with it
        kl = mean_over(k3(joint_log_ratio(evaluation.log_prob, batch.log_prob)), trained)
    loss = policy_loss - mean_over(bonus, trained) + config.value_coef * critic_loss
    if batch.start_probs is not None:
        probs, _ = distribution.choice_probabilities(batch.action)
        away = mean_over(head_kl(batch.start_probs, probs).sum(-1), trained)
        loss = loss + config.start_kl_at(updates) * away
    return LossTerms(
        loss, policy_loss.detach(), critic_loss.detach(), kl, log_ratio.detach(), coefficient, evaluation
    )


class StepGate:
    """Lets an optimiser step through only while everything is finite and the KL is in bounds.

    On CUDA the decision stays on the device: a fused optimiser honours `found_inf`.
    """

    __slots__ = ("limit", "optimizer", "stopped")

    def __init__(self, optimizer: torch.optim.Adam, target_kl: float | None, device: torch.device) -> None:
        self.optimizer = optimizer
        self.limit = float("inf") if target_kl is None else KL_STOP_FACTOR * target_kl
        self.stopped = torch.zeros((), dtype=torch.bool, device=device)

    def step(self, finite: Tensor, kl: Tensor) -> Tensor:
        """Step or not; returns whether it was applied, as a device flag."""
        self.stopped = self.stopped | (kl > self.limit)
        applied = finite & ~self.stopped
        if applied.is_cuda:
            setattr(self.optimizer, "found_inf", (~applied).float())  # noqa: B010 - not a declared attribute
            self.optimizer.step()
        elif applied:
            self.optimizer.step()
        return applied


def run_update(
    policy: Policy,
    optimizer: torch.optim.Adam,
    rollout: Rollout,
    config: PPOConfig,
    *,
    n_epochs: int,
    updates: int,
    generator: torch.Generator,
) -> PPOUpdateMetrics:
    """`n_epochs` passes of minibatches over a finished rollout. `policy` may be compiled."""
    if rollout.steps == 0:
        raise ValueError("the rollout has no valid step to learn from")
    device = rollout.value.device
    plain = unwrap(policy)
    torch.clear_autocast_cache()
    trained = ~rollout.forced
    mean, std = masked_mean_std(rollout.advantage, trained)
    meter = UpdateMeter(plain.layout, rollout, mean, std)
    if config.normalize_advantages:
        rollout = replace(rollout, advantage=(rollout.advantage - mean) / (std + 1e-8))
    meter.normalized = masked_mean_std(rollout.advantage, trained)
    constants = LossConstants.of(plain, config, device)
    gradients = GradientMeter(plain, config.max_grad_norm)
    gate = StepGate(optimizer, config.target_kl, device)
    groups = plain.named_groups()
    fixed = (*groups["actor"], *groups["shared"])
    """What does not move while only the critic learns."""
    if config.debug:
        require_on_policy(policy, rollout, config, constants, generator)
    for epoch in range(n_epochs):
        meter.epochs = epoch + 1
        for batch in minibatches(
            rollout, config.num_minibatches, recurrent=plain.recurrent, generator=generator
        ):
            terms = compute_loss(policy, batch, config, constants, updates)
            optimizer.zero_grad(set_to_none=True)
            terms.loss.backward()
            if updates < config.start_critic_rounds:
                for parameter in fixed:
                    parameter.grad = None
            norms, head_grad_norms = gradients.measure_and_clip()
            ratio = terms.log_ratio.exp()
            ratio_finite = torch.isfinite(ratio).all()
            finite = ratio_finite & torch.isfinite(terms.loss.detach()) & torch.isfinite(norms["grad_norm"])
            scalars = {
                "policy_loss": terms.policy_loss,
                "value_loss": terms.value_loss,
                "kl": terms.kl,
                "ratio_finite": ratio_finite,
                "finite": finite,
                "applied": gate.step(finite, terms.kl),
                **norms,
            }
            entropy = terms.evaluation.entropy.detach()
            has_choice = terms.evaluation.has_choice
            meter.reports.append(
                MinibatchReport(scalars, ratio, entropy, terms.entropy_coef, has_choice, head_grad_norms)
            )
            if device.type != "cuda" and gate.stopped:
                break
        # The one sync per epoch: another begins only while the KL is in bounds.
        if epoch + 1 < n_epochs and bool(gate.stopped):
            break
    optimizer.zero_grad(set_to_none=True)
    return meter.summarize(config, kl_stopped=gate.stopped)


def require_on_policy(
    policy: Policy,
    rollout: Rollout,
    config: PPOConfig,
    constants: LossConstants,
    generator: torch.Generator,
) -> None:
    """Before the first step every ratio is 1: otherwise replay and rollout disagree."""
    before = generator.get_state()
    largest = 0.0
    with torch.no_grad():  # not inference_mode: a compiled policy would be compiled once more for it
        for batch in minibatches(rollout, 1, recurrent=unwrap(policy).recurrent, generator=generator):
            terms = compute_loss(policy, batch, config, constants, 0)
            largest = max(largest, float((terms.log_ratio.exp() - 1.0).abs().max()))
    generator.set_state(before)
    torch.clear_autocast_cache()
    if config.precision == "fp32" and not largest < RATIO_TOLERANCE:
        raise RuntimeError(
            f"before the first optimiser step |ratio - 1| reaches {largest:.3g}; expected "
            f"< {RATIO_TOLERANCE:g}: the replayed sequence differs from the rollout (hidden state, masks or "
            "previous inputs)"
        )


def recurrent_epochs(config: PPOConfig) -> int:
    """Epochs with memory: stored hidden states age, so many epochs are warned about and then capped."""
    epochs = min(config.n_epochs, MAX_RECURRENT_EPOCHS)
    concerns = []
    if config.n_epochs > epochs:
        concerns.append(
            f"n_epochs {config.n_epochs} with memory is capped at {epochs}: hidden states go stale"
        )
    elif epochs > 2:
        concerns.append(f"n_epochs {epochs} with memory is elevated: hidden states go stale; watch approx_kl")
    if config.clip_value and epochs > 1:
        concerns.append("clip_value with memory and more than one epoch clips around stale values")
    for concern in concerns:
        warnings.warn(concern, RuntimeWarning, stacklevel=3)
    return epochs


def build_optimizer(policy: Policy, config: PPOConfig) -> torch.optim.Adam:
    """Adam without decay; with it AdamW over groups named actor, shared and critic. Fused on CUDA."""
    lr, eps, decay = config.lr, config.adam_eps, config.weight_decay
    if lr > HIGHEST_LR:
        warnings.warn(
            f"lr is {lr:g}: Adam moves every weight by about lr a step, and steps over {HIGHEST_LR:g} break "
            f"a policy; the default is {PPOConfig().lr:g}",
            RuntimeWarning,
            stacklevel=3,
        )
    fused, foreach = (True, None) if policy.device.type == "cuda" else (None, True)
    if decay == 0.0:
        return torch.optim.Adam(policy.parameters(), lr=lr, eps=eps, fused=fused, foreach=foreach)
    groups = [
        {"params": parameters, "name": name, "weight_decay": decay if name == "critic" else 0.0}
        for name, parameters in policy.named_groups().items()
    ]
    return torch.optim.AdamW(groups, lr=lr, eps=eps, fused=fused, foreach=foreach)


class StartPolicy:
    """A frozen copy of a policy, with its own memory of the episodes that the other one plays.

    num_steps   steps of a rollout
    statistics  what the policy's observations are normalised by, of which it keeps a copy; None if they are not
    """

    def __init__(
        self, policy: Policy, *, num_envs: int, num_steps: int, statistics: RunningMeanStd | None = None
    ) -> None:
        self.policy = deepcopy(policy).requires_grad_(False)
        self.statistics = deepcopy(statistics)
        device = policy.device
        self.logits = torch.zeros(num_envs, num_steps, policy.layout.width, device=device)
        """(env, step, width): what it said in the steps of the rollout so far."""
        self._hidden = policy.initial_hidden(num_envs).to(device)
        self._before = self._hidden

    @torch.inference_mode()
    def look(self, observation: Tensor, state: ActorState, step: int) -> None:
        """See a step of every env as the other policy does: observation (env, feature), last action and reward.

        The observation is as it is given to the agent, before any statistics.
        """
        if self.statistics is not None:
            observation = self.statistics.normalize(observation)
        inputs = PolicyInputs(observation, state.previous_action, state.previous_reward)
        self._before = self._hidden
        output, hidden = self.policy.step(inputs, self._hidden)
        self._hidden = hidden.float()
        self.logits[:, step] = output.logits

    def forget(self, lost: Tensor | None, ended: Tensor) -> None:
        """Take back the last step where it was `lost`, and begin anew where its episode `ended`, both (env,) bool."""
        if lost is not None:
            self._hidden = torch.where(lost.unsqueeze(-1), self._before, self._hidden)
        self._hidden = self._hidden.masked_fill(ended.unsqueeze(-1), 0.0)

    def state_dict(self) -> dict[str, object]:
        """Its weights, its memory and its statistics."""
        statistics = {} if self.statistics is None else {"statistics": self.statistics.state_dict()}
        return {"policy": self.policy.state_dict(), "hidden": self._hidden.clone(), **statistics}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict` of as many envs and a policy of the same sizes."""
        weights, hidden = state["policy"], state["hidden"]
        assert isinstance(weights, dict)
        assert isinstance(hidden, Tensor)
        self.policy.load_state_dict(weights)
        self._hidden = hidden.to(self._hidden.device).clone()
        if self.statistics is not None:
            statistics = state["statistics"]
            assert isinstance(statistics, dict)
            self.statistics.load_state_dict(statistics)
