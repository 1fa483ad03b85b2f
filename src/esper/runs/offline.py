"""Judging a controller from recorded episodes alone, as `esper evaluate --offline` does, of a run or a saved one.

    fitted Q             Q(s, a) = r + gamma E_pi Q(s', a'), regressed until it holds; then its mean over first states
    importance weighted  recorded returns, weighted by how much likelier the policy was to do what was done

The first needs data that cover what the policy does; the second also probabilities on record, and policies that are
not too far apart: `effective` counts the episodes that its answer rests on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from esper.runs.ship import require_checkpoint
from esper.simic.agent.losses import mean_over
from esper.simic.building import build
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.iql import MAX_GRAD_NORM, MakeBody, q_target
from esper.simic.offline.recording import Sequences
from esper.tamiyo import GrowthPolicy, Policy, unwrap
from esper.tamiyo.controller import Controller
from esper.tamiyo.critics import GrowthBody, QNetwork
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


BATCH = 32
"""Episodes of an update."""


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """What recorded episodes say of a policy; all are mean discounted returns of whole episodes."""

    policy: str
    episodes: int
    """Whole episodes on record."""
    cut_short: int
    """Others, which only fitted Q learns from: what they would have returned is unknown."""
    recorded: float
    """Of whoever decided them."""
    fitted: float
    """Of the policy, by fitted Q evaluation."""
    weighted: float | None
    """Of the policy, importance weighted; None where probabilities are not on record, or it never did the same."""
    effective: float | None
    """Episodes that this rests on; None where probabilities are not on record."""


def judge_offline(
    given: Path | str, data: Sequence[Path | str], *, updates: int, seed: int = 0, greedy: bool = True
) -> OfflineReport:
    """Estimate the policy of a run (a path) or of a controller (a name); nothing is played.

    greedy  by its most probable actions, as controllers act in use; else as it samples
    """
    dataset = Dataset.open(data)
    policy, name, normalize = _policy(given, dataset)

    def seen(recording: Sequences) -> Sequences:
        """As the policy sees it."""
        if normalize is None:
            return recording
        return recording.seen_through(normalize, policy.privileged_features)

    recorded = dataset.read(range(len(dataset)))
    whole = recorded.terminated.nonzero()[:, 0].tolist()
    if not whole:
        raise ConfigError(
            f"all of the {len(dataset)} recorded episodes were cut short, as with lost hosts; expected whole ones"
        )
    ended = seen(recorded.part(whole))
    gamma = dataset.terms.reward.gamma
    judge = FittedQ(
        policy,
        lambda generator: GrowthBody(
            policy.space,
            privileged_features=len(dataset.terms.privileged),
            hidden_size=policy.hidden_size,
            generator=generator,
        ),
        gamma=gamma,
        greedy=greedy,
        reward_scale=max(dataset.reward.std().item(), 1e-6),
        seed=seed,
    )
    draw = torch.Generator().manual_seed(seed)
    judge.fit(lambda: seen(dataset.draw(BATCH, draw)), updates)
    returns = discounted(ended, gamma)
    known = not bool(ended.log_prob.isnan().any())
    ratio = log_ratios(policy, ended, greedy=greedy) if known else None
    weighted = None if ratio is None else importance_weighted(ratio, returns)
    return OfflineReport(
        policy=name,
        episodes=len(whole),
        cut_short=len(dataset) - len(whole),
        recorded=returns.mean().item(),
        fitted=judge.value(ended).mean().item(),
        weighted=None if weighted is None else weighted.value,
        effective=None if weighted is None else weighted.effective,
    )


def _policy(
    given: Path | str, dataset: Dataset
) -> tuple[GrowthPolicy, str, Callable[[Tensor], Tensor] | None]:
    """The network of a run's best checkpoint, or of a controller, over the slots and blueprints of the data.

    Also its name, and how it sees observations; None is as they are.
    """
    space = dataset.terms.space
    if isinstance(given, str):
        controller = Controller.load(given)
        policy = controller.actor(space).policy
        assert isinstance(policy, GrowthPolicy)
        return policy, controller.card.name, None
    config = replace(TrainingConfig.load(given / "config.json").in_one_process(), run_name=None)
    training = build(config)
    training.agent.load(require_checkpoint(given))
    policy = unwrap(training.agent.policy)
    assert isinstance(policy, GrowthPolicy)
    if policy.space != space:
        raise ConfigError(
            f"the data are of slots {', '.join(space.slot_config.slot_ids)} and blueprints "
            f"{', '.join(space.blueprints)}; the run {given.name} has other ones"
        )
    if policy.privileged_features > len(dataset.terms.privileged):
        raise ConfigError(f"what the critic of {given.name} sees beside its policy was not recorded")
    return (
        policy,
        given.name,
        training.agent.observation_stats.normalize if config.normalize_observations else None,
    )
