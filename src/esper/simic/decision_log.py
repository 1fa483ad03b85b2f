"""What happened in a round, remembered as it happens and told in order when the round is full.

A round that is cut short tells nothing: whoever goes on repeats it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    NOWHERE,
    STYLES,
    TEMPOS,
    ActionOutcome,
    DecisionTaken,
    EpisodeFinished,
    Event,
    HostEvent,
    LifecycleOp,
    Place,
    SlotReading,
    Stage,
)
from esper.simic.agent import PPOAgent
from esper.simic.env import GrowthVectorEnv
from esper.simic.reports import decision_taken
from esper.simic.reward import RewardComponents
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, unwrap

# What the policy saw and weighed when it decided, by name: for people who ask why.


DIGITS = 4
"""Of what is recorded for every choice of every decision: enough to see, and small."""
_KNOWN = "_known"
_STAGE_NAMES = tuple(stage.name for stage in Stage)
_HOLDS_A_SEED = frozenset(
    int(stage) for stage in (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
)
_FIXED_CHOICES: Mapping[str, tuple[str, ...]] = {
    "op": tuple(op.name for op in LifecycleOp),
    "style": tuple(style.value for style in STYLES),
    "tempo": tuple(map(str, TEMPOS)),
    "alpha_target": tuple(map(str, ALPHA_TARGETS)),
    "alpha_speed": tuple(map(str, ALPHA_SPEEDS)),
    "alpha_curve": tuple(curve.value for curve in ALPHA_CURVES),
}


def stages(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, str]:
    return {slot: _STAGE_NAMES[reading.stage] for slot, reading in zip(slots, readings, strict=True)}


def alphas(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, float]:
    """Of the slots that hold a seed."""
    return {
        slot: float(reading.alpha)
        for slot, reading in zip(slots, readings, strict=True)
        if reading.stage in _HOLDS_A_SEED
    }


def contributions(slots: Sequence[str], readings: Sequence[SlotReading]) -> dict[str, float]:
    """Of the slots where it is known."""
    return {
        slot: float(reading.contribution)
        for slot, reading in zip(slots, readings, strict=True)
        if not math.isnan(reading.contribution)
    }


@torch.inference_mode()
def rollout_probabilities(agent: PPOAgent) -> NDArray[np.float64]:
    """(env, step, head, choice) of a full rollout: how probable each choice was, rounded; NaN where it was masked
    or the head did not matter."""
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


def by_feature(observation: Sequence[float], slots: Sequence[str]) -> dict[str, float | None]:
    """One flat observation -> feature -> value, of the host and of the slots it has; null where it was unknown."""
    named = _part(observation[: len(HOST_FEATURES)], HOST_FEATURES, "host")
    for place, slot in enumerate(slots):
        start = len(HOST_FEATURES) + place * len(SLOT_FEATURES)
        named |= _part(observation[start : start + len(SLOT_FEATURES)], SLOT_FEATURES, slot)
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


# Every decision of a rollout, remembered as it is taken and told when the rollout is full.


@dataclass(frozen=True, slots=True)
class _Seen:
    """A host's slots when it was decided about."""

    slots: tuple[str, ...]
    readings: Sequence[SlotReading]


@dataclass(frozen=True, slots=True)
class _Step:
    """What was decided in all envs at once, and what came of it."""

    outcomes: tuple[ActionOutcome, ...]
    seen: tuple[_Seen, ...]
    components: RewardComponents
    accuracies: tuple[float | None, ...]
    places: tuple[Place, ...]
    lost: NDArray[np.bool_]


class DecisionLog:
    """The decisions of one rollout. It reads the environments and changes nothing.

    observations  whether to tell, too, what the policy saw: about a hundred numbers for every decision
    """

    def __init__(self, envs: GrowthVectorEnv, *, observations: bool = False) -> None:
        self._envs, self._observations = envs, observations
        self._steps: list[_Step] = []
        self._seen: tuple[_Seen, ...] = ()

    def before(self) -> None:
        """What is known of the slots that are about to be acted on."""
        hosts = (self._envs.episodes.host(env_idx) for env_idx in range(self._envs.num_envs))
        self._seen = tuple(_Seen(host.slot_config.slot_ids, host.readings()) for host in hosts)

    def after(self, places: Sequence[Place], accuracies: Sequence[float | None]) -> None:
        """What came of them, where in the run each env was, and its accuracy after the step."""
        result = self._envs.last_step
        self._steps.append(
            _Step(
                outcomes=result.outcomes,
                seen=self._seen,
                components=result.components,
                accuracies=tuple(accuracies),
                places=tuple(places),
                lost=result.lost.copy(),
            )
        )

    def steps(self, agent: PPOAgent) -> Iterator[list[DecisionTaken]]:
        """Step by step, with what the agent's full rollout knows of them. Those of lost hosts are left out."""
        values, log_probs = agent.buffer.value.tolist(), joint_log_probs(agent)
        probabilities = rollout_probabilities(agent).tolist()
        blueprints = self._envs.space.blueprints
        for number, step in enumerate(self._steps):
            told = []
            for env_idx, outcome in enumerate(step.outcomes):
                if step.lost[env_idx]:
                    continue
                seen = step.seen[env_idx]
                known = contributions(seen.slots, seen.readings)
                slot = None if outcome.executed.op is LifecycleOp.WAIT else outcome.executed.slot
                decision = decision_taken(
                    outcome,
                    float(step.components.total[env_idx]),
                    step.components.of(env_idx),
                    place=step.places[env_idx],
                    contribution=None if slot is None else known.get(slot),
                    value=values[env_idx][number],
                    log_prob=log_probs[env_idx][number],
                    validation_accuracy=step.accuracies[env_idx],
                )
                observed = agent.buffer.observation[env_idx, number] if self._observations else None
                told.append(
                    replace(
                        decision,
                        stages=stages(seen.slots, seen.readings),
                        alphas=alphas(seen.slots, seen.readings),
                        contributions=known,
                        probabilities=by_choice(probabilities[env_idx][number], seen.slots, blueprints),
                        observation=None if observed is None else by_feature(observed.tolist(), seen.slots),
                    )
                )
            yield told


@torch.inference_mode()
def joint_log_probs(agent: PPOAgent) -> list[list[float]]:
    """(env, step): of what was chosen in a full rollout, by the policy that chose it."""
    buffer = agent.buffer
    buffer.require_full()
    logits, mask, action = (part.flatten(0, 1) for part in (buffer.logits, buffer.mask, buffer.action))
    evaluation = unwrap(agent.policy).distribution(logits, mask).evaluate(action)
    joint: list[list[float]] = evaluation.log_prob.sum(1).view(buffer.num_envs, buffer.num_steps).tolist()
    return joint


@dataclass(frozen=True, slots=True)
class _RoundStep:
    happened: tuple[tuple[Place, HostEvent], ...]
    ended: tuple[EpisodeFinished, ...]


class RoundLog:
    """The steps of one round: in each the decisions, what hosts told of what came of them, and what ended.

    decisions     whether they are told, too
    observations  and with each what the policy saw
    """

    def __init__(self, envs: GrowthVectorEnv, *, decisions: bool, observations: bool = False) -> None:
        self._decisions = DecisionLog(envs, observations=observations) if decisions else None
        self._steps: list[_RoundStep] = []

    def before(self) -> None:
        """A step is about to be taken."""
        if self._decisions is not None:
            self._decisions.before()

    def after(
        self,
        places: Sequence[Place],
        accuracies: Sequence[float | None],
        happened: Iterable[tuple[int, HostEvent]],
        ended: Iterable[EpisodeFinished],
    ) -> None:
        """It was taken: where each env was, its accuracy after it, (env, what its host told), and what ended."""
        if self._decisions is not None:
            self._decisions.after(places, accuracies)
        in_order = sorted(happened, key=lambda told: told[0])  # with workers or without, the same
        self._steps.append(_RoundStep(tuple((places[env], event) for env, event in in_order), tuple(ended)))

    def events(self, agent: PPOAgent) -> Iterator[tuple[Event, Place]]:
        """Everything, step by step, with what the agent's full rollout knows of the decisions."""
        decided = iter(()) if self._decisions is None else self._decisions.steps(agent)
        for step in self._steps:
            for decision in next(decided, ()):
                yield decision, NOWHERE  # it knows its place
            for place, event in step.happened:
                yield event, place
            for episode in step.ended:
                yield episode, NOWHERE
