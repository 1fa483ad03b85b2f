"""The reward of one environment step, from `RewardInputs` alone."""

import math
from dataclasses import replace

from esper.leyline import RewardInputs, Standing
from esper.simic.rewards import contribution, loss
from esper.simic.rewards.components import RewardComponents, Utility
from esper.simic.rewards.config import RewardConfig
from esper.simic.rewards.shaping import potentials


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
        worth = contribution.utility(
            standing, inputs.host_parameters, rent=config.rent, control_variate=config.control_variate
        )
    else:
        worth = loss.utility(
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
    score = contribution.WORTHLESS if config.family == "contribution" else loss.WORTHLESS
    return replace(utility(config, worthless, inputs), score=score, rent=0.0)
