"""The reward of one environment step, from `RewardInputs` alone."""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from esper.leyline import RewardInputs, Standing

# The dials of a reward, checked when they are set.


Family = Literal["contribution", "loss"]
"""What utility is measured in: validation accuracy, or validation loss over the untrained loss."""
Mode = Literal["sparse", "shaped"]
"""Utility at the end only, or the same with potential-based shaping on the way there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    family: Family = "contribution"
    mode: Mode = "shaped"
    rent: float = 0.01
    """Utility that added parameters cost, per host's worth of them."""
    gamma: float = 0.995
    """Discount of the shaping; PPO's must be the same number."""
    control_variate: bool = True
    """Subtract the utility of the same instance and seed when nothing is grown."""
    rollback_penalty: float = 1.0
    """On top of a worthless product. Under 1, the whole range of accuracy, losing a host could pay."""

    def __post_init__(self) -> None:
        self._require("family", self.family in get_args(Family), f"one of {', '.join(get_args(Family))}")
        self._require("mode", self.mode in get_args(Mode), f"one of {', '.join(get_args(Mode))}")
        self._require("rent", math.isfinite(self.rent) and self.rent >= 0.0, "a finite number >= 0")
        self._require("gamma", 0.0 < self.gamma <= 1.0, "in (0, 1]")
        self._require("control_variate", isinstance(self.control_variate, bool), "True or False")
        penalty = self.rollback_penalty
        self._require("rollback_penalty", math.isfinite(penalty) and penalty >= 1.0, "a finite number >= 1")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"RewardConfig.{name} is {getattr(self, name)!r}; expected {expected}")


# What a reward is made of.


@dataclass(frozen=True, slots=True)
class Utility:
    """What a state is worth, in its parts. The control's part is 0 when it is not subtracted."""

    score: float
    rent: float
    control: float

    @property
    def value(self) -> float:
        return self.score + self.rent + self.control


@dataclass(frozen=True, slots=True)
class RewardComponents:
    """The reward of one step; the components sum to it."""

    final_score: float = 0.0
    """Accuracy (or minus the scaled loss) of the product, on the last step only."""
    final_rent: float = 0.0
    """Minus the rent of the product."""
    final_control: float = 0.0
    """Minus what the wait-only control scored at the same epoch."""
    potential_after: float = 0.0
    """gamma x potential of the state after the step; 0 at a terminal state."""
    potential_before: float = 0.0
    """Minus the potential of the state before it."""
    rollback: float = 0.0
    """Minus the penalty for an end by the governor."""

    @property
    def total(self) -> float:
        before_the_end = self.final_score + self.final_rent + self.final_control
        return before_the_end + self.potential_after + self.potential_before + self.rollback


COMPONENT_NAMES = tuple(field.name for field in fields(RewardComponents))


# Utility by accuracy: U = validation accuracy - rent x added parameters / host parameters.


WORTHLESS_ACCURACY = 0.0
"""Score of a product that the governor took away."""


def accuracy_utility(
    standing: Standing, host_parameters: int, *, rent: float, control_variate: bool
) -> Utility:
    if standing.accuracy is None:
        raise ValueError("accuracy is unknown (None): family 'contribution' needs it, family 'loss' does not")
    control = 0.0
    if control_variate:
        if standing.control_accuracy is None:
            raise ValueError(
                "control_accuracy is unknown (None): give the environment controls, or set control_variate=False"
            )
        control = -standing.control_accuracy
    return Utility(standing.accuracy, -rent * (standing.added_parameters / host_parameters), control)


# Utility by loss: U = -validation loss / untrained loss - rent x added parameters / host parameters.


WORTHLESS_LOSS = -1.0
"""Score of a product that the governor took away: that of an untrained host. (0 would be a perfect one.)"""


def loss_utility(
    standing: Standing, host_parameters: int, *, untrained_loss: float, rent: float, control_variate: bool
) -> Utility:
    if not untrained_loss > 0.0:
        raise ValueError(f"untrained_loss is {untrained_loss}; family 'loss' scales by it and expects > 0")
    control = 0.0
    if control_variate:
        if standing.control_loss is None:
            raise ValueError(
                "control_loss is unknown (None): give the environment controls, or set control_variate=False"
            )
        control = standing.control_loss / untrained_loss
    score = -standing.loss / untrained_loss
    return Utility(score, -rent * (standing.added_parameters / host_parameters), control)


# Potential-based shaping (Ng, Harada and Russell 1999) with the utility as potential.
#
#     F(s, s') = gamma phi(s') - phi(s),  phi = U,  phi(terminal) = 0
#
# It telescopes, so it changes no optimum: over an episode of T steps with the utility U_T paid at the end,
#
#     sum over t of gamma^t r_t = gamma^(T-1) U_T - phi(s_0).
#
# A truncated state is no terminal one: its potential stays, as the value that bootstraps from it does.


def potentials(before: float, after: float, *, gamma: float, terminated: bool) -> tuple[float, float]:
    """(gamma phi(s'), -phi(s)) for utilities `before` and `after`."""
    return (0.0 if terminated else gamma * after), -before


def compute_reward(config: RewardConfig, inputs: RewardInputs) -> RewardComponents:
    """Sparse: the product's utility on the last step. Shaped: plus potential-based shaping.

    An end by the governor pays a worthless product, the penalty, and no rent. What was done is never
    rewarded as such, so `inputs.operation` is not looked at.
    """
    if inputs.rolled_back and not inputs.terminated:
        raise ValueError(
            "rolled_back without terminated: in the environment a rollback is the end of the episode"
        )
    if inputs.terminated and inputs.truncated:
        raise ValueError("a step cannot be both terminated and truncated")
    after = product_utility(config, inputs)
    final = after if inputs.terminated else Utility(0.0, 0.0, 0.0)
    potential_after = potential_before = 0.0
    if config.mode == "shaped":
        before = utility(config, inputs.before, inputs)
        potential_after, potential_before = potentials(
            before.value, after.value, gamma=config.gamma, terminated=inputs.terminated
        )
    return RewardComponents(
        final_score=final.score,
        final_rent=final.rent,
        final_control=final.control,
        potential_after=potential_after,
        potential_before=potential_before,
        rollback=-config.rollback_penalty if inputs.rolled_back else 0.0,
    )


def utility(config: RewardConfig, standing: Standing, inputs: RewardInputs) -> Utility:
    """What a standing is worth under this config."""
    if inputs.host_parameters < 1:
        raise ValueError(f"host_parameters is {inputs.host_parameters}; expected >= 1")
    if config.family == "contribution":
        worth = accuracy_utility(
            standing, inputs.host_parameters, rent=config.rent, control_variate=config.control_variate
        )
    else:
        worth = loss_utility(
            standing,
            inputs.host_parameters,
            untrained_loss=inputs.untrained_loss,
            rent=config.rent,
            control_variate=config.control_variate,
        )
    if not math.isfinite(worth.value):
        raise ValueError(
            f"the utility of {standing} is {worth.value}; only a rollback may end in such numbers"
        )
    return worth


def product_utility(config: RewardConfig, inputs: RewardInputs) -> Utility:
    """What the step led to; a host that the governor condemned is worthless, whatever its numbers were."""
    if not inputs.rolled_back:
        return utility(config, inputs.after, inputs)
    worthless = replace(inputs.after, accuracy=0.0, loss=0.0, added_parameters=0)
    score = WORTHLESS_ACCURACY if config.family == "contribution" else WORTHLESS_LOSS
    return replace(utility(config, worthless, inputs), score=score, rent=0.0)


# The reward of many environments at once: the same numbers as `compute_reward`, to the bit.


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
    score = np.where(lost, WORTHLESS_ACCURACY if config.family == "contribution" else WORTHLESS_LOSS, score)
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


# Where reward came from, averaged for logs.


class RewardTelemetry:
    """Sums components over steps; `take` gives their means and begins anew."""

    __slots__ = ("_steps", "_sums")

    def __init__(self) -> None:
        self._sums: NDArray[np.float64] = np.zeros(len(COMPONENT_NAMES))
        self._steps = 0

    def add(self, components: ComponentBatch, valid: NDArray[np.bool_]) -> None:
        """Count the steps of the envs where `valid` (env,)."""
        self._sums += components.values[:, valid].sum(axis=1)
        self._steps += int(valid.sum())

    def take(self) -> dict[str, float] | None:
        """Mean per step of each component and of the total, since the last call; None without steps."""
        if self._steps == 0:
            return None
        means = (self._sums / self._steps).tolist()
        averaged = {f"reward/{name}": mean for name, mean in zip(COMPONENT_NAMES, means, strict=True)}
        averaged["reward/total"] = sum(means)
        self._sums, self._steps = np.zeros(len(COMPONENT_NAMES)), 0
        return averaged
