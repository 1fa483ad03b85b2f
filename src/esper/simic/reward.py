"""The reward of one step in every environment: a pure function from `RewardInputs` to named components.

Utility is what a host is worth: score minus rent, minus the score of its baseline where that is subtracted.
The score is validation accuracy (family "contribution"; of quantities the share of their variance that is
explained, at least 0), or minus the validation loss over that of the untrained
host, at least -3 (family "loss"). The last step pays the utility of the product. Shaping (Ng, Harada and Russell
1999) adds to every step

    F(s, s') = gamma phi(s') - phi(s),  phi = U,  phi(terminal) = 0

It telescopes, so it changes no optimum: over an episode of T steps with the utility U_T paid at the end,

    sum over t of gamma^t r_t = gamma^(T-1) U_T - phi(s_0).

Where the life counts, all of this holds of the life so far in the utility's place: the sum of the utilities of all
epochs so far, over the horizon, which `Accounts` enters into the standings. An epoch then pays its own utility over
the horizon, and the whole is the mean utility of the life minus that of the baseline's.

A truncated state is not terminal: its potential stays, as the value that bootstraps from it does. Operations are no
part of the inputs: what was done is never rewarded as such.

Ending by the governor never pays. With scores in [s_min, s_max], and R the rent of the largest growth, no product is
worth less than s_min - R - s_max where the baseline is subtracted. A lost host pays, with a penalty p >= 1,

    s_min - score of the baseline now - p (s_max - s_min) - R <= s_min - R - s_max,

which is not positive, so that no discount makes going on worth less.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as checked_dataclass

from esper.leyline import HostProtocol, gate_parameters
from esper.leyline.utility import WORST_BY_LOSS, Counts, Family, rent_due
from esper.simic.config import checks
from esper.simic.config.checks import CHECKED, explained

Mode = Literal["sparse", "shaped"]
"""Utility at the end only, or the same with potential-based shaping on the way there."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

SCORES: dict[Family, tuple[float, float]] = {"contribution": (0.0, 1.0), "loss": (WORST_BY_LOSS, 0.0)}
"""The worst score, which a host has that the governor took away, and the best. A loss that is larger counts as -3."""
COMPONENT_NAMES = (
    "final_score",  # score of the product, on the last step only
    "final_rent",  # minus the rent of the product
    "final_control",  # minus the score of the baseline at the same epoch
    "potential_after",  # gamma x potential of the state after the step; 0 at a terminal state
    "potential_before",  # minus the potential of the state before the step
    "rollback",  # minus the penalty for an end by the governor
)


@explained
@checked_dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class RewardConfig:
    """Settings of a reward, checked when they are set."""

    family: Family = "contribution"
    """What utility is measured in: validation accuracy ("contribution") or validation loss ("loss")."""
    mode: Mode = "shaped"
    """Paid at the end only ("sparse"), or the same with potential-based shaping on the way ("shaped")."""
    counts: Counts = "end"
    """What counts: the utility of the product ("end"), or the mean utility over the epochs ("life")."""
    rent: checks.NotNegative = 0.01
    """Utility that it costs to add as many parameters as the host has."""
    gamma: checks.UpToOne = 0.995
    """Discount of the shaping; PPO's must be the same number."""
    control_variate: checks.Flag = True
    """Subtract the utility of the baseline: the same instance and rng seed when nothing is grown."""
    rollback_penalty: checks.AtLeastOne = 1.0
    """Beside the worst product, in ranges of scores (1 by accuracy, 3 by loss). Under 1, a crash could pay."""


@dataclass(frozen=True, slots=True)
class Standings:
    """What the utility of every host's state is made of, each field (env,). What is unknown is NaN.

    Where the life counts: the sums of these over the epochs so far, over the horizon.
    """

    accuracy: Floats
    loss: Floats
    added_parameters: Floats
    baseline_accuracy: Floats
    baseline_loss: Floats

    @staticmethod
    def unknown(num_envs: int) -> "Standings":
        """Of hosts that have not begun."""
        return Standings(*np.full((5, num_envs), np.nan))

    def copy(self) -> "Standings":
        """To write into, while these stay as they are."""
        return Standings(*(getattr(self, field.name).copy() for field in fields(self)))


@dataclass(frozen=True, slots=True)
class RewardInputs:
    """Everything the rewards of one step depend on, each field (env,)."""

    before: Standings
    after: Standings
    host_parameters: Floats
    largest_growth: Floats
    """Parameters that each host can add at most, see `largest_growth`."""
    untrained_loss: Floats
    """Validation loss of each host before its first epoch, by which losses are scaled."""
    terminated: Flags
    rolled_back: Flags
    """The governor ended the episode, which terminates it; `after` then holds the numbers that condemned the host."""


@dataclass(frozen=True, slots=True)
class RewardComponents:
    """The rewards of one step in their parts."""

    values: Floats
    """(component, env), components in the order of COMPONENT_NAMES."""

    @property
    def total(self) -> Floats:
        """(env,): the reward, which is the sum of the components."""
        final_score, final_rent, final_control, after, before, rollback = self.values
        total: Floats = final_score + final_rent + final_control + after + before + rollback
        return total

    def of(self, env_idx: int) -> dict[str, float]:
        """The components of one env by name."""
        return dict(zip(COMPONENT_NAMES, self.values[:, env_idx].tolist(), strict=True))


def compute_rewards(config: RewardConfig, inputs: RewardInputs) -> RewardComponents:
    """Sparse: the product's utility on the last step. Shaped: plus potential-based shaping.

    An end by the governor pays the worst score, the penalty, and the rent of the largest growth.
    """
    _require_possible(config, inputs)
    terminated, lost = inputs.terminated, inputs.rolled_back
    score, rent, baseline = utility_parts(config, inputs.after, inputs.host_parameters, inputs.untrained_loss)
    worst, best = SCORES[config.family]
    largest = -rent_due(config.rent, inputs.largest_growth, inputs.host_parameters)
    score, rent = np.where(lost, worst, score), np.where(lost, largest, rent)
    after = score + rent + baseline
    _require_finite(config, "after", inputs.after, after)
    values = np.zeros((len(COMPONENT_NAMES), len(terminated)))
    values[:3] = np.where(terminated, (score, rent, baseline), 0.0)
    if config.mode == "shaped":
        score, rent, baseline = utility_parts(
            config, inputs.before, inputs.host_parameters, inputs.untrained_loss
        )
        before = score + rent + baseline
        _require_finite(config, "before", inputs.before, before)
        values[3] = np.where(terminated, 0.0, config.gamma * after)
        values[4] = -before
    values[5] = np.where(lost, -config.rollback_penalty * (best - worst), 0.0)
    return RewardComponents(values)


def utility_parts(
    config: RewardConfig, standings: Standings, host_parameters: Floats, untrained_loss: Floats
) -> tuple[Floats, Floats, Floats]:
    """(score, minus rent, minus the baseline's score), each (env,); their sum is the utility that is paid.

    NaN where something it needs is unknown; the baseline's part is 0 if it is not subtracted.
    """
    rent = -rent_due(config.rent, standings.added_parameters, host_parameters)
    if config.family == "contribution":
        score, baseline = standings.accuracy, -standings.baseline_accuracy
    else:
        largest = -SCORES["loss"][0]
        score = -np.fmin(
            standings.loss / untrained_loss, largest
        )  # a NaN is the worst, as in `score_by_loss`
        baseline = np.minimum(standings.baseline_loss / untrained_loss, largest)
    return score, rent, baseline if config.control_variate else np.zeros_like(baseline)


def largest_growth(host: HostProtocol) -> int:
    """Parameters of the largest seed with a gate in every slot: no host can add more."""
    return sum(
        max((card.parameters for card in host.cards[slot.name]), default=0) + gate_parameters(slot.channels)
        for slot in host.snapshots()
    )


def _require_possible(config: RewardConfig, inputs: RewardInputs) -> None:
    if (inputs.rolled_back & ~inputs.terminated).any():
        raise ValueError("rolled_back without terminated: in the environment a rollback ends the episode")
    if (inputs.host_parameters < 1).any():
        raise ValueError(f"host_parameters is {inputs.host_parameters.min():.0f}; expected >= 1")
    if config.family == "loss" and (inputs.untrained_loss <= 0.0).any():
        raise ValueError(
            f"untrained_loss is {inputs.untrained_loss.min()}; family 'loss' scales by it and expects > 0"
        )


def _require_finite(config: RewardConfig, which: str, standings: Standings, worth: Floats) -> None:
    """Raise for the first env whose utility `worth` (env,) is not a number, and say what was missing."""
    if np.isfinite(worth).all():
        return
    env_idx = int(np.flatnonzero(~np.isfinite(worth))[0])
    measure = "accuracy" if config.family == "contribution" else "loss"
    score, baseline = (getattr(standings, name)[env_idx] for name in (measure, f"baseline_{measure}"))
    if config.family == "contribution" and math.isnan(score):
        reason = "accuracy is unknown: family 'contribution' needs it, family 'loss' does not"
    elif config.control_variate and math.isnan(baseline):
        reason = (
            f"baseline_{measure} is unknown: give the environment baselines, or set control_variate=False"
        )
    else:
        reason = f"validation {measure} is {score}, and only a rollback may end in such numbers"
    raise ValueError(f"the utility {which} the step is {worth[env_idx]} in env {env_idx}: {reason}")


class RewardTelemetry:
    """Sums components over steps; `take` gives their means and begins anew."""

    __slots__ = ("_steps", "_sums")

    def __init__(self) -> None:
        self._sums: Floats = np.zeros(len(COMPONENT_NAMES))
        self._steps = 0

    def add(self, components: RewardComponents, valid: Flags) -> None:
        """Count the steps of the envs where `valid` (env,)."""
        self._sums += components.values[:, valid].sum(axis=1)
        self._steps += int(valid.sum())

    def take(self) -> dict[str, float]:
        """Mean per step of each component and of their "total", since the last call; empty without steps."""
        if self._steps == 0:
            return {}
        means = (self._sums / self._steps).tolist()
        self._sums, self._steps = np.zeros(len(COMPONENT_NAMES)), 0
        return dict(zip(COMPONENT_NAMES, means, strict=True)) | {"total": sum(means)}
