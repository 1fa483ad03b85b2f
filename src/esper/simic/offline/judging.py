"""What a policy is worth, from recorded episodes alone: fitted Q evaluation and importance weighting.

    fitted Q             Q(s, a) = r + gamma E_pi Q(s', a'), regressed until it holds; then its mean over first states
    importance weighted  recorded returns, weighted by how much likelier the policy was to do what was done

The first needs data that cover what the policy does; the second also probabilities on record, and policies that are
not too far apart: `effective` counts the episodes that its answer rests on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.simic.agent.losses import mean_over
from esper.simic.offline.iql import MAX_GRAD_NORM, MakeBody
from esper.simic.offline.losses import q_target
from esper.simic.offline.recording import Sequences
from esper.tamiyo import Policy
from esper.tamiyo.critics import QNetwork
from esper.tamiyo.distributions import FactoredDistribution

Draw = Callable[[], Sequences]
"""A batch of recorded episodes."""
TARGET_RATE = 0.05
"""How far the slow copy of Q moves with each update."""


@torch.no_grad()
def distribution_along(policy: Policy, batch: Sequences) -> FactoredDistribution:
    """What the policy would choose at every recorded step, given what came before it."""
    hidden = policy.initial_hidden(len(batch)).to(policy.device)
    inputs = batch.inputs(policy.privileged_features)
    return policy.distribution(policy(inputs, hidden, batch.plan()).logits, batch.mask)


@dataclass(frozen=True, slots=True)
class Weighted:
    """An importance-weighted estimate."""

    value: float | None
    """Mean return; None where the policy never does what was done."""
    effective: float
    """Episodes that it rests on: (sum of weights)^2 / sum of squared weights."""


def importance_weighted(log_ratio: Tensor, returns: Tensor) -> Weighted:
    """sum w R / sum w with w = exp(log_ratio), over episodes: self-normalised, so that a constant is exact.

    log_ratio  (episode,) log-probability of all that was done, under the policy minus under the one that did it
    returns    (episode,)
    """
    if log_ratio.isnan().any():
        raise ValueError("log_ratio is NaN: the log-probabilities of what was done are not on record")
    top = log_ratio.max()
    if torch.isneginf(top):
        return Weighted(None, 0.0)
    weight = (log_ratio.double() - top).exp()
    value = (weight * returns.double()).sum() / weight.sum()
    return Weighted(value.item(), (weight.sum().square() / weight.square().sum()).item())


def log_ratios(policy: Policy, batch: Sequences, *, greedy: bool) -> Tensor:
    """(episode,): log pi(all that was done) - log mu(it); -inf where a greedy policy would have done otherwise."""
    distribution = distribution_along(policy, batch)
    evaluation = distribution.evaluate(batch.action)
    log_prob = evaluation.log_prob.sum(-1)
    if greedy:
        same = (distribution.mode() == batch.action) | ~evaluation.has_choice
        log_prob = torch.where(same.all(-1), 0.0, -torch.inf)
    return torch.segment_reduce(log_prob - batch.log_prob, "sum", lengths=batch.length)


def discounted(batch: Sequences, gamma: float) -> Tensor:
    """(episode,): sum of gamma^t r_t."""
    time = torch.arange(batch.steps, device=batch.reward.device) - batch.first.repeat_interleave(batch.length)
    return torch.segment_reduce(batch.reward * gamma**time, "sum", lengths=batch.length)


class FittedQ:
    """Q of one policy, fitted to recorded episodes.

    greedy  judge the policy by its most probable actions, as controllers act in use; else as it samples
    """

    def __init__(
        self,
        policy: Policy,
        make_body: MakeBody,
        *,
        gamma: float,
        greedy: bool,
        reward_scale: float = 1.0,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        self.policy, self._gamma, self._greedy, self._scale = policy, gamma, greedy, reward_scale
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        self.q, self._slow = (
            QNetwork(make_body(generator), generator=generator, bounded=True).to(policy.device)
            for _ in range(2)
        )
        self._slow.load_state_dict(self.q.state_dict())
        self._slow.requires_grad_(False)
        self._optimizer = torch.optim.Adam(self.q.parameters(), lr=lr, eps=1e-5)
        self._lr = lr

    def fit(self, draw: Draw, updates: int) -> None:
        """So many updates, each on a batch that `draw` gives; the learning rate falls to a tenth."""
        for number in range(updates):
            for group in self._optimizer.param_groups:
                group["lr"] = self._lr * (1.0 - 0.9 * number / updates)
            self._update(draw())

    @torch.no_grad()
    def value(self, batch: Sequences) -> Tensor:
        """(episode,): what the policy is worth from the first state of each."""
        return self._worth(self.q, batch)[batch.first] * self._scale

    def _update(self, batch: Sequences) -> None:
        with torch.no_grad():
            onward = batch.after(self._worth(self._slow, batch))
            target = q_target(batch.reward / self._scale, onward, self._gamma)
        seen = batch.inputs(self.q.body.privileged_features)
        errors = (self.q(seen, batch.plan(), batch.action) - target).square().sum(0)
        self._optimizer.zero_grad(set_to_none=True)
        mean_over(errors, batch.followed).backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self._slow.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, TARGET_RATE)

    def _worth(self, network: QNetwork, batch: Sequences) -> Tensor:
        """(step,): Q of what the policy would do, the mean of the twins."""
        distribution = distribution_along(self.policy, batch)
        action = distribution.mode() if self._greedy else distribution.sample(self._generator)
        seen = batch.inputs(network.body.privileged_features)
        worth: Tensor = network(seen, batch.plan(), action).mean(0)
        return worth
