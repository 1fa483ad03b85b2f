"""Every decision of a rollout, remembered as it is taken and told when the rollout is full."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from esper.leyline import CAUSAL_TABLE, ActionOutcome, DecisionTaken, LifecycleOp
from esper.simic.env import GrowthVectorEnv


@dataclass(frozen=True, slots=True)
class _Step:
    """What was decided in all envs at once, and what came of it."""

    outcomes: tuple[ActionOutcome, ...]
    contributions: tuple[float | None, ...]
    components: tuple[dict[str, float], ...]
    accuracies: tuple[float | None, ...]
    episodes: tuple[int, ...]
    epochs: tuple[int, ...]
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

    def after(
        self, episodes: Sequence[int], epochs: Sequence[int], accuracies: Sequence[float | None]
    ) -> None:
        """What came of them. `epochs` counts those trained in each episode, this one included."""
        result = self._envs.last_step
        rows = range(self._envs.num_envs)
        self._steps.append(
            _Step(
                outcomes=result.outcomes,
                contributions=self._contributions,
                components=tuple(asdict(result.components.row(env_idx)) for env_idx in rows),
                accuracies=tuple(accuracies),
                episodes=tuple(episodes),
                epochs=tuple(epochs),
                lost=result.lost.copy(),
            )
        )

    def events(self, round_number: int, values: NDArray[np.float32]) -> Iterator[DecisionTaken]:
        """`values` (env, step) are the critic's. Steps of lost hosts are left out."""
        for number, step in enumerate(self._steps):
            for env_idx, outcome in enumerate(step.outcomes):
                if not step.lost[env_idx]:
                    yield self._event(round_number, step, env_idx, outcome, float(values[env_idx, number]))

    def _contribution(self, env_idx: int, slot: int) -> float | None:
        readings = self._envs.episodes.host(env_idx).readings()
        known = slot < len(readings) and not math.isnan(readings[slot].contribution)
        return readings[slot].contribution if known else None

    @staticmethod
    def _event(
        round_number: int, step: _Step, env_idx: int, outcome: ActionOutcome, value: float
    ) -> DecisionTaken:
        done, components = outcome.executed, step.components[env_idx]
        used = CAUSAL_TABLE[done.op]
        return DecisionTaken(
            round=round_number,
            env=env_idx,
            episode=step.episodes[env_idx],
            epoch=step.epochs[env_idx],
            op=done.op,
            slot=done.slot if "slot" in used else None,
            blueprint=done.blueprint if "blueprint" in used else None,
            style=done.style if "style" in used else None,
            tempo=done.tempo if "tempo" in used else None,
            alpha_target=done.alpha_target if "alpha_target" in used else None,
            alpha_speed=done.alpha_speed if "alpha_speed" in used else None,
            alpha_curve=done.alpha_curve if "alpha_curve" in used else None,
            illegal=None if outcome.illegal is None else f"{outcome.illegal.head}: {outcome.illegal.value}",
            contribution=step.contributions[env_idx],
            value=value,
            log_prob=None,
            reward=sum(components.values()),
            reward_components=components,
            validation_accuracy=step.accuracies[env_idx],
        )
