"""Judging a run's controller, or a saved one, from recorded episodes alone, as `esper evaluate --offline` does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from esper.runs.ship import require_checkpoint
from esper.simic.building import build
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.judging import FittedQ, discounted, importance_weighted, log_ratios
from esper.simic.offline.recording import Sequences
from esper.tamiyo import GrowthPolicy, unwrap
from esper.tamiyo.controller import Controller
from esper.tamiyo.critics import GrowthBody

BATCH = 32
"""Episodes of an update."""


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """What recorded episodes say of a policy; all are mean discounted returns."""

    policy: str
    episodes: int
    """Episodes on record."""
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

    everything = seen(dataset.read(range(len(dataset))))
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
    returns = discounted(everything, gamma)
    known = not bool(everything.log_prob.isnan().any())
    ratio = log_ratios(policy, everything, greedy=greedy) if known else None
    weighted = None if ratio is None else importance_weighted(ratio, returns)
    return OfflineReport(
        policy=name,
        episodes=len(dataset),
        recorded=returns.mean().item(),
        fitted=judge.value(everything).mean().item(),
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
