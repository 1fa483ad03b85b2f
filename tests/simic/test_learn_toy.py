"""End to end: environment, observation, masks, reward, policy and PPO together learn to grow."""

import pytest

from esper.tolaria.worlds.toy.instance import TOY_SUITES
from learn_toy import Examiner, train


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")
def test_ppo_comes_near_the_oracle_on_unseen_draws() -> None:
    """Never growing gains 0 and is where a learner ends that explores too little; growing at random -0.1."""
    score = train(200, seed=0, examiner=Examiner(TOY_SUITES["toy"].held_out(128)))
    assert score.gain >= 0.9
    assert score.utility >= 0.95
