"""No sequence of operations earns without improving the product (DESIGN section 7)."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from esper.kasmina import GrowthRules
from esper.leyline import ActionSpec, DecisionSettings, EpisodeFinished, LifecycleOp
from esper.simic.env import GrowthVectorEnv
from esper.simic.reward import RewardConfig
from esper.tolaria.worlds.toy.instance import toy_case
from growth_envs import encoded, toy_envs
from toy_lives import legal_actions

HORIZON, DRAW = 6, 9
HASTY = GrowthRules(min_prune_age=1, embargo_epochs=1)
"""Everything can be undone and done again within the horizon."""


def _envs(reward: RewardConfig) -> GrowthVectorEnv:
    case = toy_case(DRAW, slots=1, noise=0.0)
    decisions = DecisionSettings(retire=True)
    return toy_envs([case], horizon=HORIZON, rules=HASTY, reward=reward, decisions=decisions)


def structural(envs: GrowthVectorEnv) -> list[ActionSpec]:
    """One of each kind of operation that is legal now, alpha targets up and down included."""
    return [
        action
        for action in legal_actions(envs.episodes.host(0), tempos=(3,), speeds=(0,))
        if action.op is not LifecycleOp.GERMINATE
        or (action.blueprint == "norm" and action.style == "linear_add" and action.alpha_target == 1.0)
        if action.op is not LifecycleOp.SET_ALPHA_TARGET or action.style == "linear_add"
    ]


def every_life(envs: GrowthVectorEnv) -> Iterator[tuple[list[LifecycleOp], list[float], EpisodeFinished]]:
    """Every sequence of operations to the horizon, with its rewards and what it came to."""

    def search(
        state: dict[str, object], ops: list[LifecycleOp], rewards: list[float]
    ) -> Iterator[tuple[list[LifecycleOp], list[float], EpisodeFinished]]:
        envs.load_state_dict(state)
        for action in structural(envs):
            envs.load_state_dict(state)
            _, reward, terminated, _, info = envs.step(encoded(envs, action))
            done = ([*ops, action.op], [*rewards, float(reward[0])])
            if terminated[0]:
                yield *done, info["final_info"]["summary"][0]
            else:
                yield from search(envs.state_dict(), *done)

    envs.reset(seed=1)
    yield from search(envs.state_dict(), [], [])


@pytest.mark.parametrize("gamma", [1.0, 0.995])
def test_what_is_earned_is_what_the_product_gained(gamma: float) -> None:
    config = RewardConfig(gamma=gamma)
    envs = _envs(config)
    lives = list(every_life(envs))
    done = {tuple(pair) for ops, _, _ in lives for pair in pairwise(ops)}
    # The search does what has been farmed elsewhere: germinating, pruning and germinating again, pumping alpha.
    assert (LifecycleOp.GERMINATE, LifecycleOp.PRUNE) in done
    assert any(ops.count(LifecycleOp.GERMINATE) > 1 for ops, _, _ in lives)
    assert any(LifecycleOp.SET_ALPHA_TARGET in ops for ops, _, _ in lives)
    assert any(LifecycleOp.RETIRE in ops for ops, _, _ in lives)
    assert len(lives) > 80
    earned = []
    for _, rewards, summary in lives:
        assert summary.gain is not None
        discounted = sum(gamma**step * reward for step, reward in enumerate(rewards))
        # phi(s_0) is 0: at epoch 0 nothing is grown, and the control is the host itself.
        assert discounted == pytest.approx(gamma ** (HORIZON - 1) * summary.gain, abs=1e-6)
        earned.append((discounted, summary.gain))
    best_paid, best_product = max(earned), max(earned, key=lambda pair: pair[1])
    assert best_paid[1] == pytest.approx(best_product[1], abs=1e-9)
    assert best_product[1] > 0.001  # there was something to gain


def test_a_way_back_to_where_one_was_earns_nothing() -> None:
    """Without noise: a seed that came and went in isolation leaves the product and the return of waiting."""
    envs = _envs(RewardConfig(gamma=1.0))
    returns = {
        tuple(ops): (sum(rewards), summary.gain)
        for ops, rewards, summary in every_life(envs)
        if set(ops) <= {LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.PRUNE}
    }
    assert len(returns) > 10
    assert np.allclose([value or 0.0 for pair in returns.values() for value in pair], 0.0, atol=1e-9)
