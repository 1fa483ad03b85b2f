"""What happened in a round, kept as it happens and emitted in order when its rollout is full.

A round that is cut short emits nothing: a resumed run repeats it. With each decision goes what the policy saw and
how probable each choice was, by name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import (
    CAUSAL_TABLE,
    CHOICES,
    HEAD_NAMES,
    LIVE_STAGES,
    NOWHERE,
    DecisionTaken,
    Event,
    HostEvent,
    LifecycleOp,
    Place,
    SlotReading,
    Stage,
)
from esper.simic.agent import PPOAgent
from esper.simic.env import GrowthVectorEnv
from esper.simic.env.episodes import StepResult
from esper.tamiyo import unwrap
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.features import host_features, slot_features

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
