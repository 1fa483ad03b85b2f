"""A training round as events: what is collected, its decisions and its end in numbers.

What happens is kept as it happens and emitted in order when the rollout is full; a round that is cut short emits
nothing, as a resumed run repeats it. With each decision goes what the policy saw and how probable each choice was,
by name.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import (
    CAUSAL_TABLE,
    CHOICES,
    HEAD_NAMES,
    LIVE_STAGES,
    NOWHERE,
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    Event,
    HostEvent,
    LifecycleOp,
    Place,
    RoundFinished,
    RunEvent,
    SlotReading,
    Stage,
    WorkDone,
    operations,
)
from esper.simic.agent import Anomaly, PPOAgent, PPOUpdateMetrics
from esper.simic.env import GrowthVectorEnv
from esper.simic.env.episodes import StepResult
from esper.tamiyo import unwrap
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import host_features, slot_features


@dataclass(frozen=True, slots=True)
class Preparing:
    """How many of the baseline curves that the first round waits for are there."""

    done: int
    total: int
    kept: int = 0
    """How many were there before."""


@dataclass(frozen=True, slots=True)
class Working:
    """What a run is at, where nothing was reported for `QUIET_SECONDS`."""

    round: int
    """The round that it is at; 0 before the first."""
    part: str
    """A verb: collecting, judging."""
    done: int = 0
    total: int = 1
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


DIGITS = 4
"""Digits of the probabilities and observations that are recorded with every decision: enough to see, and small."""
_KNOWN = "_known"
_STAGE_NAMES = tuple(stage.name for stage in Stage)
_HOLDS_A_SEED = frozenset(map(int, LIVE_STAGES | {Stage.FOSSILIZED}))
_FIXED_CHOICES: Mapping[str, tuple[str, ...]] = {
    head: tuple(choice.name if isinstance(choice, LifecycleOp) else str(choice) for choice in choices)
    for head, choices in CHOICES.items()
}


@torch.inference_mode()
def rollout_probabilities(agent: PPOAgent) -> NDArray[np.float64]:
    """(env, step, head, choice): probability of each choice in a full rollout, rounded.

    NaN where a choice was masked or its head did not matter.
    """
    buffer = agent.buffer
    buffer.require_full()
    probability, open_to_choice = (
        unwrap(agent.policy).distribution(buffer.logits, buffer.mask).choice_probabilities(buffer.action)
    )
    known: NDArray[np.float64] = (
        torch.where(open_to_choice, probability.double(), math.nan).cpu().numpy().round(DIGITS)
    )
    return known


def by_choice(
    probabilities: Sequence[Sequence[float]], slots: Sequence[str], blueprints: Sequence[str]
) -> dict[str, dict[str, float]]:
    """One decision's (head, choice) -> head -> choice -> probability, without what was masked."""
    named: dict[str, dict[str, float]] = {}
    for head, row in zip(HEAD_NAMES, probabilities, strict=True):
        names = _FIXED_CHOICES.get(head) or (slots if head == "slot" else blueprints)
        legal = {name: value for name, value in zip(names, row, strict=False) if value == value}
        if legal:
            named[head] = legal
    return named


def by_feature(
    observation: Sequence[float], slots: Sequence[str], space: GrowthSpace
) -> dict[str, float | None]:
    """One flat observation -> feature -> value, of the host and of the slots it has; null where it was unknown."""
    of_host, of_slot = host_features(space), slot_features(space)
    named = _part(observation[: len(of_host)], of_host, "host")
    for place, slot in enumerate(slots):
        start = len(of_host) + place * len(of_slot)
        named |= _part(observation[start : start + len(of_slot)], of_slot, slot)
    return named


def _part(values: Sequence[float], names: Sequence[str], of: str) -> dict[str, float | None]:
    by_name = dict(zip(names, values, strict=True))
    return {
        f"{of}.{name}": round(value, DIGITS) if by_name.get(_bit_of(name), 1.0) else None
        for name, value in by_name.items()
        if not name.endswith(_KNOWN)
    }


def _bit_of(name: str) -> str:
    """The feature that says whether this one was measured; a change and a slope are known together."""
    for end in ("_change", "_slope"):
        if name.endswith(end):
            return f"{name.removesuffix(end)}_trend{_KNOWN}"
    return name + _KNOWN


@torch.inference_mode()
def joint_log_probs(agent: PPOAgent) -> list[list[float]]:
    """(env, step): log-probability of the action chosen in a full rollout, under the policy that chose it."""
    buffer = agent.buffer
    buffer.require_full()
    logits, mask, action = (part.flatten(0, 1) for part in (buffer.logits, buffer.mask, buffer.action))
    evaluation = unwrap(agent.policy).distribution(logits, mask).evaluate(action)
    joint: list[list[float]] = evaluation.log_prob.sum(1).view(buffer.num_envs, buffer.num_steps).tolist()
    return joint


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of all envs."""

    slots: tuple[Mapping[str, SlotReading], ...]
    """The slots of each env before the step; empty if decisions are not logged."""
    result: StepResult
    host_events: tuple[tuple[int, HostEvent], ...]
    """(env, what happened to its host), sorted by env."""


class RoundLog:
    """The steps of one round: in each the decisions, what happened to hosts, and the episodes that ended.

    round_number  from 1
    decisions     whether decisions are logged
    observations  and with each what the policy saw: about a hundred numbers
    """

    def __init__(
        self, envs: GrowthVectorEnv, round_number: int, *, decisions: bool, observations: bool = False
    ) -> None:
        self._envs, self._round = envs, round_number
        self._decisions, self._observations = decisions, observations
        self._steps: list[_Step] = []
        self._slots: tuple[Mapping[str, SlotReading], ...] = ()

    def before(self) -> None:
        """Read the slots that the next step will act on."""
        if self._decisions:
            self._slots = self._envs.slot_readings()

    def after(self, host_events: Iterable[tuple[int, HostEvent]] = ()) -> None:
        """Keep the step that the environments have just taken; `host_events` has (env, what happened to its host)."""
        in_order = sorted(host_events, key=lambda happened: happened[0])  # the same with workers or without
        self._steps.append(_Step(self._slots, self._envs.last_step, tuple(in_order)))

    def events(self, agent: PPOAgent) -> Iterator[tuple[Event, Place]]:
        """Everything, step by step, with what the agent's full rollout knows of the decisions."""
        decided = self._decided(agent) if self._decisions else iter(())
        for step in self._steps:
            result = step.result
            for decision in next(decided, ()):
                yield decision, NOWHERE  # it knows its place
            for env_idx, event in step.host_events:
                yield event, Place(self._round, env_idx, result.episodes[env_idx], result.epochs[env_idx])
            for episode in result.finished.values():
                yield replace(episode, round=self._round), NOWHERE

    def _decided(self, agent: PPOAgent) -> Iterator[list[DecisionTaken]]:
        """The decisions of each step, without those of lost hosts."""
        values, log_probs = agent.buffer.value.tolist(), joint_log_probs(agent)
        probabilities = rollout_probabilities(agent).tolist()
        space = self._envs.space
        for number, step in enumerate(self._steps):
            decisions = []
            for env_idx in map(int, np.flatnonzero(~step.result.lost)):
                slots = tuple(step.slots[env_idx])
                seen = agent.buffer.observation[env_idx, number].tolist() if self._observations else None
                decisions.append(
                    decision_taken(
                        step.result,
                        env_idx,
                        step.slots[env_idx],
                        round_number=self._round,
                        value=values[env_idx][number],
                        log_prob=log_probs[env_idx][number],
                        probabilities=by_choice(probabilities[env_idx][number], slots, space.blueprints),
                        observation=None if seen is None else by_feature(seen, slots, space),
                    )
                )
            yield decisions


def decision_taken(
    result: StepResult,
    env_idx: int,
    slots: Mapping[str, SlotReading],
    *,
    round_number: int,
    value: float | None = None,
    log_prob: float | None = None,
    probabilities: Mapping[str, Mapping[str, float]] | None = None,
    observation: Mapping[str, float | None] | None = None,
) -> DecisionTaken:
    """What was executed in one env, with only the choices that its operation uses.

    slots  the env's slots before the step
    """
    action, illegal = result.outcomes[env_idx].executed, result.outcomes[env_idx].illegal
    used = CAUSAL_TABLE[action.op]
    contributions = {
        slot: float(reading.contribution)
        for slot, reading in slots.items()
        if not math.isnan(reading.contribution)
    }
    return DecisionTaken(
        round=round_number,
        env=env_idx,
        episode=result.episodes[env_idx],
        epoch=result.epochs[env_idx],
        op=action.op,
        **{head: getattr(action, head) if head in used else None for head in HEAD_NAMES[1:]},
        illegal=None
        if illegal is None
        else f"{illegal.head} {illegal.value}; legal: {', '.join(illegal.legal)}",
        contribution=contributions.get(action.slot or "") if "slot" in used else None,
        value=value,
        log_prob=log_prob,
        reward=float(result.components.total[env_idx]),
        reward_components=result.components.of(env_idx),
        validation_accuracy=result.accuracies[env_idx],
        stages={slot: _STAGE_NAMES[reading.stage] for slot, reading in slots.items()},
        alphas={
            slot: float(reading.alpha) for slot, reading in slots.items() if reading.stage in _HOLDS_A_SEED
        },
        contributions=contributions,
        probabilities=probabilities,
        observation=observation,
        added_parameters=sum(reading.parameters for reading in slots.values()),
    )
