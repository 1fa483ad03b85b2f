"""A training round in numbers: what is collected, and the events made of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from esper.leyline import AnomalyRaised, EpisodeFinished, RoundFinished, RunEvent, WorkDone, operations
from esper.simic.agent import Anomaly, PPOUpdateMetrics
from esper.simic.env.episodes import StepResult


@dataclass(frozen=True, slots=True)
class Preparing:
    """How many of the baseline curves that the first round waits for are trained."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Working:
    """What a run is at, where nothing was reported for `QUIET_SECONDS`."""

    round: int
    """The round that it is at; 0 before the first."""
    part: str
    """A verb: collecting, judging."""
    done: int
    total: int
    """Steps of that part, each an epoch of all envs."""


News = RunEvent | Preparing | Working
"""What a training run reports while it works: what it records, how far its preparation is, and that it goes on."""
Progress = Callable[[News], None]


@dataclass(slots=True)
class BatchSummary:
    """The episodes that ended in a round, and what was done in it."""

    episodes: list[EpisodeFinished] = field(default_factory=list)
    operations: dict[str, int] = field(
        default_factory=lambda: {op.name: 0 for op in operations(retire=False)}
    )
    """LifecycleOp -> times it was executed, over all envs; RETIRE is there once it was."""

    @property
    def mean_gain(self) -> float | None:
        """Mean gain of the episodes that have one, which those that the governor ended do."""
        return mean_of_known(episode.gain for episode in self.episodes)

    def add(self, result: StepResult) -> None:
        """Count one step; a host that was lost executed nothing."""
        for outcome, lost in zip(result.outcomes, result.lost, strict=True):
            if not lost:
                done = outcome.executed.op.name
                self.operations[done] = self.operations.get(done, 0) + 1
        self.episodes += result.finished.values()


def round_finished(
    round_number: int,
    metrics: PPOUpdateMetrics,
    batch: BatchSummary,
    *,
    env_steps: int,
    seconds: float,
    learning_rate: float,
    reward_components: Mapping[str, float],
    host_seconds: float | None = None,
    seconds_by_part: Mapping[str, float] | None = None,
    peak_memory_bytes: int | None = None,
    work: Mapping[str, WorkDone] | None = None,
) -> RoundFinished:
    """One round in numbers.

    reward_components  what `RewardTelemetry.take` returned at its end
    host_seconds       seconds in which hosts were at work; None if not measured
    work               what each worker of a cluster did; None without a cluster
    """
    whole = [episode for episode in batch.episodes if not episode.lost]
    return RoundFinished(
        round=round_number,
        env_steps=env_steps,
        seconds=seconds,
        host_seconds=host_seconds,
        env_epochs_per_second=metrics.valid_steps / seconds if seconds > 0.0 else None,
        episodes=len(whole),
        lost_episodes=len(batch.episodes) - len(whole),
        mean_return=mean_of_known(episode.episode_return for episode in whole),
        mean_gain=mean_of_known(episode.gain for episode in whole),
        mean_accuracy=mean_of_known(episode.validation_accuracy for episode in whole),
        mean_control_accuracy=mean_of_known(episode.control_accuracy for episode in whole),
        policy_loss=metrics.policy_loss,
        value_loss=metrics.value_loss,
        entropy=metrics.entropy,
        entropy_by_head=dict(cast(Mapping[str, float | None], metrics.head_entropies)),
        approx_kl=metrics.approx_kl,
        clip_fraction=metrics.clip_fraction,
        ratio_max=metrics.ratio_max,
        ratio_min=metrics.ratio_min,
        explained_variance=metrics.value.explained_variance,
        grad_norm=None if metrics.gradient is None else metrics.gradient.grad_norm,
        learning_rate=learning_rate,
        entropy_coef=metrics.entropy_coef,
        entropy_coef_by_head=dict(metrics.head_entropy_coefs),
        minibatches_applied=metrics.minibatches_applied,
        minibatches_skipped=metrics.minibatches_skipped,
        had_non_finite=metrics.ratio_has_numerical_issue or metrics.minibatches_skipped > 0,
        kl_stopped=metrics.kl_stopped,
        operations=dict(batch.operations),
        reward_components=reward_components,
        seconds_by_part=seconds_by_part,
        peak_memory_bytes=peak_memory_bytes,
        epochs_by_worker=None if work is None else {name: done.epochs for name, done in work.items()},
        lost_by_worker=None if work is None else {name: done.lost for name, done in work.items()},
        replayed_by_worker=None if work is None else {name: done.replayed for name, done in work.items()},
    )


def anomalies_raised(anomalies: Iterable[Anomaly], *, round_number: int) -> tuple[AnomalyRaised, ...]:
    """What the detector found in a round's update, as events."""
    return tuple(
        AnomalyRaised(
            round=round_number,
            name=anomaly.kind.value,
            value=anomaly.value,
            threshold=anomaly.threshold,
            detail=anomaly.detail,
            advice=anomaly.advice,
        )
        for anomaly in anomalies
    )


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Mean of those that are not None; None when there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
