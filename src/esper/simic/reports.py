"""What the trainer has in hand, as the events it emits. Pure functions; who listens is not known here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from esper.leyline import (
    CAUSAL_TABLE,
    ActionOutcome,
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    LifecycleOp,
    Place,
    RoundFinished,
    RunEvent,
)
from esper.simic.agent import Anomaly, PPOUpdateMetrics
from esper.simic.env import EpisodeSummary

# What a training run shows while it works; beside what it records, how far its preparation is.


@dataclass(frozen=True, slots=True)
class Preparing:
    """How many of the control curves that the first round waits for are trained."""

    done: int
    total: int


News = RunEvent | Preparing
Progress = Callable[[News], None]


# What is collected in one round, before it is learned from.


@dataclass(slots=True)
class BatchSummary:
    """The episodes that ended in a round, and what was done in it."""

    episodes: list[EpisodeSummary] = field(default_factory=list)
    operations: list[int] = field(default_factory=lambda: [0] * len(LifecycleOp))
    """How often each LifecycleOp was chosen, over all envs."""

    @property
    def mean_gain(self) -> float | None:
        return mean_of_known(episode.gain for episode in self.episodes)

    def count(self, actions: NDArray[np.int64], lost: NDArray[np.bool_]) -> None:
        """The operations of one step, actions (env, head); a host that was lost executed nothing."""
        for op in actions[~lost, 0].tolist():
            self.operations[op] += 1


def round_finished(
    round_number: int,
    metrics: PPOUpdateMetrics,
    episodes: Sequence[EpisodeSummary],
    *,
    env_steps: int,
    seconds: float,
    learning_rate: float,
    operations: Sequence[int],
    reward_components: Mapping[str, float],
    host_seconds: float | None = None,
    seconds_by_part: Mapping[str, float] | None = None,
    peak_memory_bytes: int | None = None,
) -> RoundFinished:
    """One round in numbers.

    episodes    those that ended in the round
    operations  how often each LifecycleOp was executed in it
    reward_components  what `RewardTelemetry.take` gave at its end
    host_seconds  of the seconds, those in which hosts were at work; None if nobody measured it
    """
    whole = [episode for episode in episodes if not episode.lost]
    return RoundFinished(
        round=round_number,
        env_steps=env_steps,
        seconds=seconds,
        host_seconds=host_seconds,
        env_epochs_per_second=metrics.valid_steps / seconds if seconds > 0.0 else None,
        episodes=len(whole),
        lost_episodes=len(episodes) - len(whole),
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
        minibatches_applied=metrics.minibatches_applied,
        minibatches_skipped=metrics.minibatches_skipped,
        had_non_finite=metrics.ratio_has_numerical_issue or metrics.minibatches_skipped > 0,
        kl_stopped=metrics.kl_stopped,
        operations=by_operation(operations),
        reward_components=reward_components,
        seconds_by_part=seconds_by_part,
        peak_memory_bytes=peak_memory_bytes,
    )


def episode_finished(summary: EpisodeSummary, place: Place) -> EpisodeFinished:
    return EpisodeFinished(
        round=_known(place.round),
        env=_known(place.env),
        episode=_known(place.episode),
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
        operations=by_operation(summary.operations),
        illegal_actions=summary.illegal_actions,
        rolled_back=summary.rolled_back,
        lost=summary.lost,
    )


def decision_taken(
    outcome: ActionOutcome,
    reward: float,
    reward_components: Mapping[str, float],
    *,
    place: Place,
    contribution: float | None,
    value: float | None,
    log_prob: float | None,
    validation_accuracy: float | None,
) -> DecisionTaken:
    """What was executed, with only the choices that its operation uses."""
    action, illegal = outcome.executed, outcome.illegal
    used = CAUSAL_TABLE[action.op]
    return DecisionTaken(
        round=_known(place.round),
        env=_known(place.env),
        episode=_known(place.episode),
        epoch=_known(place.epoch),
        op=action.op,
        slot=action.slot if "slot" in used else None,
        blueprint=action.blueprint if "blueprint" in used else None,
        style=action.style if "style" in used else None,
        tempo=action.tempo if "tempo" in used else None,
        alpha_target=action.alpha_target if "alpha_target" in used else None,
        alpha_speed=action.alpha_speed if "alpha_speed" in used else None,
        alpha_curve=action.alpha_curve if "alpha_curve" in used else None,
        illegal=None
        if illegal is None
        else f"{illegal.head} {illegal.value}; legal: {', '.join(illegal.legal)}",
        contribution=contribution,
        value=value,
        log_prob=log_prob,
        reward=reward,
        reward_components=reward_components,
        validation_accuracy=validation_accuracy,
    )


def anomalies_raised(anomalies: Iterable[Anomaly], *, round_number: int) -> tuple[AnomalyRaised, ...]:
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


def by_operation(counts: Sequence[int]) -> dict[str, int]:
    """Counts in the order of LifecycleOp, by its names."""
    if len(counts) != len(LifecycleOp):
        raise ValueError(
            f"counts has {len(counts)} entries; expected {len(LifecycleOp)}, one per LifecycleOp"
        )
    return {op.name: int(count) for op, count in zip(LifecycleOp, counts, strict=True)}


def _known(number: int | None) -> int:
    assert number is not None  # the loop knows where it is
    return number


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Mean of those that are not None; None when there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
