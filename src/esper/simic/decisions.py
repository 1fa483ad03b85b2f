"""Every decision of a rollout, remembered as it is taken and told when the rollout is full."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import ActionOutcome, DecisionTaken, LifecycleOp, Place
from esper.simic.agent import PPOAgent
from esper.simic.env import GrowthVectorEnv
from esper.simic.reports import decision_taken
from esper.simic.rewards import RewardComponents
from esper.tamiyo import unwrap


@dataclass(frozen=True, slots=True)
class _Step:
    """What was decided in all envs at once, and what came of it."""

    outcomes: tuple[ActionOutcome, ...]
    contributions: tuple[float | None, ...]
    components: tuple[RewardComponents, ...]
    accuracies: tuple[float | None, ...]
    places: tuple[Place, ...]
    lost: NDArray[np.bool_]


class DecisionLog:
    """The decisions of one rollout. It reads the environments and changes nothing."""

    def __init__(self, envs: GrowthVectorEnv) -> None:
        self._envs = envs
        self._steps: list[_Step] = []
        self._contributions: tuple[float | None, ...] = ()

    def before(self, actions: NDArray[np.int64]) -> None:
        """What is known of the seeds that are about to be acted on."""
        self._contributions = tuple(
            None if op == LifecycleOp.WAIT else self._contribution(env_idx, slot)
            for env_idx, (op, slot) in enumerate(actions[:, :2].tolist())
        )

    def after(self, places: Sequence[Place], accuracies: Sequence[float | None]) -> None:
        """What came of them, where in the run each env was, and its accuracy after the step."""
        result = self._envs.last_step
        self._steps.append(
            _Step(
                outcomes=result.outcomes,
                contributions=self._contributions,
                components=tuple(result.components.row(row) for row in range(self._envs.num_envs)),
                accuracies=tuple(accuracies),
                places=tuple(places),
                lost=result.lost.copy(),
            )
        )

    def steps(self, agent: PPOAgent) -> Iterator[list[DecisionTaken]]:
        """Step by step, with what the agent's full rollout knows of them. Those of lost hosts are left out."""
        values, log_probs = agent.buffer.value.tolist(), joint_log_probs(agent)
        for number, step in enumerate(self._steps):
            yield [
                decision_taken(
                    outcome,
                    step.components[env_idx],
                    place=step.places[env_idx],
                    contribution=step.contributions[env_idx],
                    value=values[env_idx][number],
                    log_prob=log_probs[env_idx][number],
                    validation_accuracy=step.accuracies[env_idx],
                )
                for env_idx, outcome in enumerate(step.outcomes)
                if not step.lost[env_idx]
            ]

    def _contribution(self, env_idx: int, slot: int) -> float | None:
        readings = self._envs.episodes.host(env_idx).readings()
        known = slot < len(readings) and not math.isnan(readings[slot].contribution)
        return readings[slot].contribution if known else None


@torch.inference_mode()
def joint_log_probs(agent: PPOAgent) -> list[list[float]]:
    """(env, step): of what was chosen in a full rollout, by the policy that chose it."""
    buffer = agent.buffer
    buffer.require_full()
    logits, mask, action = (part.flatten(0, 1) for part in (buffer.logits, buffer.mask, buffer.action))
    evaluation = unwrap(agent.policy).distribution(logits, mask).evaluate(action)
    joint: list[list[float]] = evaluation.log_prob.sum(1).view(buffer.num_envs, buffer.num_steps).tolist()
    return joint
