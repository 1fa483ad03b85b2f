"""One round in numbers: what the episodes that ended in it came to, and what the update reported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from esper.leyline import EpisodeFinished, LifecycleOp, RoundFinished
from esper.simic.agent import PPOUpdateMetrics
from esper.simic.env import EpisodeSummary


@dataclass(slots=True)
class BatchSummary:
    """What was collected in one round, before it was learned from."""

    episodes: list[EpisodeFinished] = field(default_factory=list)
    operations: dict[str, int] = field(default_factory=lambda: {op.name: 0 for op in LifecycleOp})
    steps: int = 0
    """Valid ones, over all envs."""
    seconds: float = 0.0

    @property
    def mean_gain(self) -> float | None:
        return known_mean(episode.gain for episode in self.episodes)

    def finished(
        self, summary: EpisodeSummary, *, round_number: int, env_idx: int, episode: int
    ) -> EpisodeFinished:
        """Count an episode that ended."""
        event = EpisodeFinished(
            round=round_number,
            env=env_idx,
            episode=episode,
            case=summary.case,
            host_seed=summary.host_seed,
            epochs=summary.epochs,
            utility=summary.utility,
            gain=summary.gain,
            validation_accuracy=summary.validation_accuracy,
            control_accuracy=summary.control_accuracy,
            validation_loss=summary.validation_loss,
            added_parameters=summary.added_parameters,
            episode_return=summary.episode_return,
            operations=named_operations(summary.operations),
            illegal_actions=summary.illegal_actions,
            rolled_back=summary.rolled_back,
            lost=summary.lost,
        )
        self.episodes.append(event)
        return event


def round_event(
    batch: BatchSummary,
    metrics: PPOUpdateMetrics,
    *,
    round_number: int,
    env_steps: int,
    learning_rate: float,
    reward_components: Mapping[str, float] | None,
) -> RoundFinished:
    kept = [episode for episode in batch.episodes if not episode.lost]
    return RoundFinished(
        round=round_number,
        env_steps=env_steps,
        seconds=batch.seconds,
        env_epochs_per_second=batch.steps / batch.seconds if batch.seconds > 0 else None,
        episodes=len(kept),
        lost_episodes=len(batch.episodes) - len(kept),
        mean_return=known_mean(episode.episode_return for episode in kept),
        mean_gain=batch.mean_gain,
        mean_accuracy=known_mean(episode.validation_accuracy for episode in kept),
        mean_control_accuracy=known_mean(episode.control_accuracy for episode in kept),
        policy_loss=metrics.policy_loss,
        value_loss=metrics.value_loss,
        entropy=metrics.entropy,
        entropy_by_head=dict(metrics.head_entropies),  # type: ignore[arg-type]
        approx_kl=metrics.approx_kl,
        clip_fraction=metrics.clip_fraction,
        ratio_max=metrics.ratio_max,
        ratio_min=metrics.ratio_min,
        explained_variance=metrics.value.explained_variance,
        grad_norm=None if metrics.gradient is None else metrics.gradient.grad_norm,
        learning_rate=learning_rate,
        entropy_coef=metrics.entropy_coef,
        minibatches_applied=metrics.minibatches_applied,
        minibatches_skipped=metrics.minibatches_skipped,
        had_non_finite=metrics.minibatches_skipped > 0,
        kl_stopped=metrics.kl_stopped,
        operations=dict(batch.operations),
        reward_components=dict(reward_components or {}),
    )


def named_operations(counts: Iterable[int]) -> dict[str, int]:
    return {op.name: count for op, count in zip(LifecycleOp, counts, strict=True)}


def known_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
