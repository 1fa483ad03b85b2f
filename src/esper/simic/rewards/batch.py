"""The reward of many environments at once: the same numbers as `compute_reward`, to the bit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.simic.rewards import contribution, loss
from esper.simic.rewards.components import COMPONENT_NAMES, RewardComponents
from esper.simic.rewards.config import RewardConfig

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Standings:
    """`Standing` of every env, each field (env,). What is unknown is NaN."""

    accuracy: Floats
    loss: Floats
    added_parameters: Floats
    control_accuracy: Floats
    control_loss: Floats

    @staticmethod
    def unknown(num_envs: int) -> "Standings":
        return Standings(*(np.full(num_envs, np.nan) for _ in range(5)))

    def copy(self) -> "Standings":
        return Standings(
            self.accuracy.copy(),
            self.loss.copy(),
            self.added_parameters.copy(),
            self.control_accuracy.copy(),
            self.control_loss.copy(),
        )


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """`RewardInputs` of every env. No step is truncated here that is also terminated."""

    before: Standings
    after: Standings
    host_parameters: Floats
    untrained_loss: Floats
    terminated: Flags
    rolled_back: Flags
    """Only where terminated."""


@dataclass(frozen=True, slots=True)
class ComponentBatch:
    """`RewardComponents` of every env."""

    values: Floats
    """(component, env), components in the order of COMPONENT_NAMES."""

    @property
    def total(self) -> Floats:
        final_score, final_rent, final_control, after, before, rollback = self.values
        total: Floats = final_score + final_rent + final_control + after + before + rollback
        return total

    def row(self, env_idx: int) -> RewardComponents:
        return RewardComponents(*self.values[:, env_idx].tolist())


def compute_rewards(config: RewardConfig, batch: RewardBatch) -> ComponentBatch:
    """`compute_reward` over all envs."""
    terminated, lost = batch.terminated, batch.rolled_back
    score, rent, control = _utility(config, batch.after, batch)
    score = np.where(
        lost, contribution.WORTHLESS if config.family == "contribution" else loss.WORTHLESS, score
    )
    rent = np.where(lost, 0.0, rent)
    after = score + rent + control
    _require_known(config, "after", after)
    values = np.zeros((len(COMPONENT_NAMES), len(terminated)))
    values[0], values[1], values[2] = (np.where(terminated, part, 0.0) for part in (score, rent, control))
    if config.mode == "shaped":
        before = utilities(config, batch.before, batch)
        _require_known(config, "before", before)
        values[3] = np.where(terminated, 0.0, config.gamma * after)
        values[4] = -before
    values[5] = np.where(lost, -config.rollback_penalty, 0.0)
    return ComponentBatch(values)


def utilities(config: RewardConfig, standings: Standings, batch: RewardBatch) -> Floats:
    """(env,) what each standing is worth; NaN where something it needs is unknown."""
    score, rent, control = _utility(config, standings, batch)
    worth: Floats = score + rent + control
    return worth


def _utility(config: RewardConfig, standings: Standings, batch: RewardBatch) -> tuple[Floats, Floats, Floats]:
    rent = -config.rent * (standings.added_parameters / batch.host_parameters)
    if config.family == "contribution":
        score, control = standings.accuracy, -standings.control_accuracy
    else:
        score, control = -standings.loss / batch.untrained_loss, standings.control_loss / batch.untrained_loss
    return score, rent, control if config.control_variate else np.zeros_like(control)


def _require_known(config: RewardConfig, which: str, worth: Floats) -> None:
    if np.isfinite(worth).all():
        return
    env_idx = int(np.flatnonzero(~np.isfinite(worth))[0])
    needed = "accuracy" if config.family == "contribution" else "loss"
    control = f" and the control's {needed}" if config.control_variate else ""
    raise ValueError(
        f"the utility {which} the step is {worth[env_idx]} in env {env_idx}: family {config.family!r} needs a "
        f"finite validation {needed}{control}"
    )
