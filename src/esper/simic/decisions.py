"""Every decision of a rollout, remembered as it is taken and told when the rollout is full."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import ActionOutcome, DecisionTaken, LifecycleOp, Place, SlotReading
from esper.simic.agent import PPOAgent
from esper.simic.env import GrowthVectorEnv
from esper.simic.explaining import (
    alphas,
    by_choice,
    by_feature,
    contributions,
    rollout_probabilities,
    stages,
)
from esper.simic.reports import decision_taken
from esper.simic.rewards import RewardComponents
from esper.tamiyo import unwrap


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
    components: tuple[RewardComponents, ...]
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
                components=tuple(result.components.row(row) for row in range(self._envs.num_envs)),
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
                    step.components[env_idx],
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
