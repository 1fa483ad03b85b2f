"""Implicit Q-learning from recorded episodes.

    V   an upper expectile of Q over what was done      expectile loss of min(Q1, Q2) - V, with slow copies of Q1, Q2
    Q   what was paid, and V of what came               squared error of r + gamma V(s') - Q(s, a)
    pi  cloning of what was better than expected        log pi(a | s), weighted by exp(beta (Q - V))

Q is only ever asked about actions that were taken: no maximum over masked, dependent heads. The policy is the one
that PPO trains, with its masks and its memory.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.simic.agent.losses import mean_over, require_same_shape
from esper.simic.config.ppo import IQLConfig
from esper.simic.offline.recording import Sequences
from esper.tamiyo import Policy
from esper.tamiyo.critics import CriticBody, QNetwork, VNetwork

MOST_SPREADS = 10.0
"""Returns count up to so many spreads from their median."""
MOST_WEIGHT = 100.0
"""A step counts at most this many times in the policy's loss."""


def return_bounds(returns: Tensor) -> tuple[float, float]:
    """The median of returns (episode,) plus and minus 10 spreads, half of what the middle 68 % of them span.

    Where most are the same, as of waiting, the spread is the median distance of the others.

    One host of the toy in a hundred is rolled back, and costs more than ten times what the best growth brings. By
    squares its return would be nearly all that Q learns from; bounded it is the worst of all, and no more than that.
    """
    low, median, high = (
        returns.double().quantile(returns.new_tensor([0.16, 0.5, 0.84], dtype=torch.float64)).tolist()
    )
    spread = (high - low) / 2.0
    if spread <= 0.0:
        distance = (returns.double() - median).abs()
        others = distance[distance > 0.0]
        spread = float(others.median()) if len(others) else 1e-6
    return median - MOST_SPREADS * spread, median + MOST_SPREADS * spread


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """L = |tau - 1(u < 0)| u^2 with u = Q - V, elementwise (eq. 5).

    tau 0.5 is half the squared error: V is then the mean of Q over what was done. Towards 1 it is the best of it.
    """
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    return weight * error.square()


def q_target(reward: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """r + gamma V(s'), elementwise (eq. 6); V is 0 beyond a true end."""
    require_same_shape(reward=reward, next_value=next_value)
    return reward + gamma * next_value


def rareness(log_prob: Tensor, balance: float) -> Tensor:
    """mu(a | s)^-balance over its mean, elementwise: rare actions count as if they had been done more often.

    A weight of state and action alone leaves what Q is to be as it is, and changes what is learned first. It is 1
    where a probability (step,) is not on record (NaN), with the mean over the others, and everywhere with balance 0.
    """
    if balance == 0.0:
        return torch.ones_like(log_prob)
    weight = (-balance * log_prob).exp().clamp_max(MOST_WEIGHT)
    return (weight / weight.nanmean()).nan_to_num(nan=1.0)


def lambda_target(reward: Tensor, next_value: Tensor, length: Tensor, gamma: float, trace: float) -> Tensor:
    """G_t = r_t + gamma ((1 - lambda) V(s_t+1) + lambda G_t+1) within each episode, G = r + gamma V at its last step.

    reward, next_value  (step,), episodes end to end; V is 0 beyond a true end
    length              (episode,)
    trace               lambda: 0 is `q_target`, 1 is what was paid until the end

    Worth travels along what was recorded at once, instead of a step an update; the more so, the more of what was done
    later counts for what is done now.
    """
    target = q_target(reward, next_value, gamma)
    if trace == 0.0:
        return target
    ends = length.cumsum(0)
    for back in range(1, int(length.max())):
        step = (ends - 1 - back)[length > back]  # so many steps before the last
        target[step] += gamma * trace * (target[step + 1] - next_value[step])
    return target


def advantage_weight(advantage: Tensor, beta: float) -> Tensor:
    """min(exp(beta A), 100), elementwise (eq. 7); beta 0 is 1 everywhere, which is cloning."""
    return (beta * advantage).exp().clamp_max(MOST_WEIGHT)


MakeBody = Callable[[torch.Generator], CriticBody]
"""The body of one critic, with weights drawn from this generator."""
MAX_GRAD_NORM = 1.0
"""Of each network."""


@dataclass(frozen=True, slots=True)
class IQLTerms:
    """The losses of one batch of episodes, with gradients, and what they are made of."""

    value_loss: Tensor
    q_loss: Tensor
    """Of both critics together."""
    policy_loss: Tensor
    """NaN where the policy was not asked."""
    critic_loss: Tensor
    """Of the policy's own critic, which learns V and nothing else of the policy does; NaN likewise."""
    advantage: Tensor
    """(step,) Q - V, in units of the scaled reward."""
    weight: Tensor
    """(step,) of each step in the policy's loss."""
    entropy: Tensor
    """(step, head); no steps where the policy was not asked"""
    has_choice: Tensor
    """(step, head) bool; no steps likewise"""
    explained_variance: Tensor
    """Share of the variance of what Q was to be that it explains, over the batch."""
    grad_norm: Tensor
    """Of the policy, before clipping; 0 until there was an update."""


class IQL:
    """Learns `policy`, and the critics that it is weighted by, from batches of whole episodes.

    policy        what is learned; its own critic learns V, for PPO to go on from
    make_body     bodies of the critics, which share no weights with the policy
    reward_scale  what rewards are divided by; `beta` is in units of its inverse
    value_unit    reward that one unit of the policy's own critic stands for
    normalize     how the critics see observations (step, feature); None is as they are. The policy sees the batch's
    telescopes    whether rewards are of potential-based shaping: critics then learn the return of the whole episode,
                  and need not know where the potential stands
    bounds        least and largest return of an episode that counts, see `return_bounds`
    """

    def __init__(
        self,
        policy: Policy,
        make_body: MakeBody,
        config: IQLConfig,
        *,
        reward_scale: float = 1.0,
        value_unit: float = 1.0,
        normalize: Callable[[Tensor], Tensor] | None = None,
        telescopes: bool = False,
        bounds: tuple[float, float] = (-math.inf, math.inf),
        seed: int = 0,
    ) -> None:
        self._normalize, self._telescopes, self._bounds = normalize, telescopes, bounds
        generator = torch.Generator().manual_seed(seed)
        self.policy, self.config, self.device = policy, config, policy.device
        self.reward_scale, self.value_unit = reward_scale, value_unit
        body = make_body(generator)
        self.v = VNetwork(body, generator=generator).to(self.device)
        self.q = QNetwork(body, generator=generator).to(self.device)
        """Shares its body with V: episodes are read once."""
        self.slow_q = QNetwork(make_body(generator), generator=generator).to(self.device)
        self.slow_q.load_state_dict(self.q.state_dict())
        self.slow_q.requires_grad_(False)
        groups = policy.named_groups()
        critics = [*self.q.parameters(), *self.v.head.parameters()]
        self._networks = (critics, [*groups["actor"], *groups["shared"]], groups["critic"])
        """Critics, the policy, and its own critic: each has its own gradients."""
        learned = ({"params": critics}, {"params": [*self._networks[1], *self._networks[2]]})
        self.optimizer = torch.optim.Adam(learned, lr=config.lr, eps=1e-5)
        self.updates = 0
        """Updates done."""

    def terms(self, batch: Sequences, *, trace: float | None = None, policy: bool = True) -> IQLTerms:
        """The losses of a batch, all from the networks as they are now; `trace` instead of the config's.

        policy  whether the policy is asked; without, the losses are those of the critics alone
        """
        config, plan = self.config, batch.plan()
        seen = batch.inputs(self.v.body.privileged_features)
        if self._normalize is not None:
            # A copy: what comes out of inference mode cannot be learned through.
            seen = replace(seen, observation=self._normalize(seen.observation).clone())
        reward, paid = self._rewards(batch)
        state, parts = self.q.body.read(seen, plan)
        value, answers = self.v.worth(state), self.q.worth(state, parts, batch.action)
        with torch.no_grad():
            slow = self.slow_q(seen, plan, batch.action).amin(0)
            known = torch.where(
                batch.followed, batch.after(value), value / config.gamma
            )  # a cut leads nowhere
            target = lambda_target(
                torch.where(batch.followed, reward, 0.0),
                known,
                batch.length,
                config.gamma,
                config.trace if trace is None else trace,
            )
            advantage = slow - value
        value_loss = expectile_loss(slow - value, config.expectile).mean()
        rare = rareness(batch.log_prob, config.balance)
        q_loss = mean_over(rare * (answers - target).square().sum(0), batch.followed)
        weight = rare * advantage_weight(advantage, config.beta)
        explained = 1.0 - (target - answers.detach()[0]).var() / target.var()
        unknown, no_steps = advantage.new_tensor(torch.nan), advantage.new_zeros(0, batch.action.shape[1])
        terms = IQLTerms(
            value_loss,
            q_loss,
            policy_loss=unknown,
            critic_loss=unknown,
            advantage=advantage,
            weight=weight,
            entropy=no_steps,
            has_choice=no_steps.bool(),
            explained_variance=explained,
            grad_norm=torch.zeros(()),
        )
        worth = (value.detach() - paid) * (self.reward_scale / self.value_unit)
        return self._asked(terms, batch, worth) if policy else terms

    def _asked(self, terms: IQLTerms, batch: Sequences, worth: Tensor) -> IQLTerms:
        """The same terms with those of the policy, whose own critic is to learn what each step is worth (step,)."""
        hidden = self.policy.initial_hidden(len(batch)).to(self.device)
        evaluation, own = self.policy.evaluate_actions(
            batch.inputs(self.policy.privileged_features), batch.mask, batch.action, hidden, batch.plan()
        )
        return replace(
            terms,
            policy_loss=-mean_over(terms.weight * evaluation.log_prob.sum(-1), ~evaluation.forced),
            critic_loss=0.5 * (own - worth).square().mean(),
            entropy=evaluation.entropy.detach(),
            has_choice=evaluation.has_choice,
        )

    def _rewards(self, batch: Sequences) -> tuple[Tensor, Tensor]:
        """(step,) scaled: what critics learn from, with returns inside of the bounds; what of it was paid before."""
        before = batch.paid(self.config.gamma)
        whole = before + batch.reward  # of the episode, at its last step
        bounded = whole.clamp(*self._bounds)
        if self._telescopes:
            return torch.where(batch.last, bounded, 0.0) / self.reward_scale, before / self.reward_scale
        reward = batch.reward + torch.where(batch.last, bounded - whole, 0.0)
        return reward / self.reward_scale, torch.zeros_like(reward)

    def update(
        self,
        batch: Sequences,
        *,
        lr: float | None = None,
        policy_lr: float | None = None,
        trace: float | None = None,
        policy: bool = True,
    ) -> IQLTerms:
        """One step on a batch, of the critics and, unless `policy` is False, of the policy and its own critic.

        By these learning rates and `trace` instead of the config's if they are given. Nothing moves if a loss or a
        gradient is not finite.
        """
        terms = self.terms(batch, trace=trace, policy=policy)
        losses = [terms.value_loss + terms.q_loss]
        if policy:
            losses += [terms.policy_loss, terms.critic_loss]
        norms = []
        self.optimizer.zero_grad(set_to_none=True)
        for loss, parameters in zip(losses, self._networks, strict=False):
            shared = loss is terms.policy_loss  # the policy's own critic reads the same memory
            gradients = torch.autograd.grad(loss, parameters, retain_graph=shared)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            norms.append(nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))
            if shared:
                terms = replace(terms, grad_norm=norms[-1])
        if not bool(torch.isfinite(torch.stack([*losses, *norms])).all()):
            return terms
        for group, rate in zip(self.optimizer.param_groups, (lr, policy_lr), strict=True):
            group["lr"] = self.config.lr if rate is None else rate
        self.optimizer.step()
        self._follow()
        self.updates += 1
        return terms

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the slow copies towards the critics."""
        pairs = zip(self.slow_q.parameters(), self.q.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, self.config.target_rate)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the policy's weights: critics, slow copies, optimiser, counter."""
        return {
            "v": self.v.head.state_dict(),
            "q": self.q.state_dict(),
            "slow_q": self.slow_q.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, beside the weights that the policy had then."""
        self.v.head.load_state_dict(state["v"])
        self.q.load_state_dict(state["q"])
        self.slow_q.load_state_dict(state["slow_q"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
