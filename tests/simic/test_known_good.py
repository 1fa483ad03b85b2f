"""A policy that is known to be good scores well through the whole stack: what it earns is what it gained.

If it did not, nothing could be learned there: reward, settling and evaluation are checked against answers that come
from elsewhere, the toy's exact oracle and a real task on which growth is known to pay.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from esper.leyline import ActionSpec, EpisodeFinished, Situation
from esper.simic.env import GrowthVectorEnv, make_world
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import Setting
from esper.simic.evaluation import RulePlayer, play_cases
from esper.simic.reward import RewardConfig
from esper.tamiyo.rules import RulePolicy, rule_policy
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case, toy_instance
from growth_envs import toy_space
from toy_oracle import best_plan

HORIZON = 20
CASES = [toy_case(draw, slots=2 + draw % 3, change=7 * (draw % 2), noise=0.0) for draw in range(8)]
PLANS = [best_plan(toy_instance(case), horizon=HORIZON) for case in CASES]


class Reciting:
    """Does what it was told to do at each step."""

    def __init__(self, actions: Sequence[ActionSpec]) -> None:
        self._actions = actions

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        return self._actions[situation.signals.epoch]


def judged(
    setting: Setting, rules: Sequence[RulePolicy], wanted: list[tuple[str, int]]
) -> list[EpisodeFinished]:
    episodes = setting.episodes(reward=RewardConfig(gamma=1.0, rent=setting.rent))
    return play_cases(RulePlayer(rules.__getitem__), episodes, wanted)


def test_the_oracles_plans_gain_what_they_promise() -> None:
    setting = make_world("toy_slots", len(CASES), horizon=HORIZON)
    wanted = [(case, seed) for seed, case in enumerate(CASES)]
    good = judged(setting, [Reciting(plan.actions) for plan in PLANS], wanted)
    for summary, plan in zip(good, PLANS, strict=True):
        assert (summary.rolled_back, summary.illegal_actions, summary.epochs) == (None, 0, HORIZON)
        assert summary.gain == pytest.approx(plan.gain, abs=1e-9)
        assert summary.utility == pytest.approx(plan.utility, abs=1e-9)
        assert summary.episode_return == pytest.approx(plan.gain, abs=1e-9)
    rng = np.random.default_rng(0)
    chance = judged(setting, [rule_policy("random", rng=rng)] * len(CASES), wanted)
    means = [float(np.mean([one.gain or 0.0 for one in rows])) for rows in (good, chance)]
    assert means[0] > 0.05
    assert means[0] > means[1] + 0.05


@pytest.mark.parametrize("gamma", [1.0, 0.97])
def test_what_is_earned_on_the_way_telescopes(gamma: float) -> None:
    envs = GrowthVectorEnv(
        Episodes(
            ToyWorld(len(CASES)),
            toy_space(*CASES),
            CASES,
            num_envs=len(CASES),
            horizon=HORIZON,
            reward=RewardConfig(gamma=gamma, rent=0.01),
            baselines=ToyBaselines(HORIZON),
        )
    )
    envs.reset(seed=0, options={"case": CASES, "host_seed": 3})
    earned = np.zeros(len(CASES))
    for step in range(HORIZON):
        _, reward, terminated, _, info = envs.step(envs.encode([plan.actions[step] for plan in PLANS]))
        earned += gamma**step * reward
    assert terminated.all()
    gains = [plan.gain for plan in PLANS]
    assert [one.gain for one in info["final_info"]["summary"]] == pytest.approx(gains, abs=1e-9)
    assert earned == pytest.approx(gamma ** (HORIZON - 1) * np.array(gains), abs=1e-9)


def test_a_mixer_pays_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolutional host sees one pixel's neighbours only; with positions mixed it reads the digit (+0.25 at 20
    epochs, +0.37 at 5). Settling keeps it, though nobody fossilised it, and drops the seed that came too late.
    Waiting gains nothing at all."""
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    setting = make_world("digits", 2, horizon=5)
    mixer = rule_policy("schedule", schedule="germinate mixer@0 t=0; advance 0 t=1; germinate norm@2 t=4")
    grown, waited = judged(setting, [mixer, rule_policy("wait")], [("digits", 11), ("digits", 11)])
    assert (waited.gain, waited.episode_return) == (0.0, 0.0)
    assert grown.gain is not None
    assert grown.gain > 0.1
    assert grown.episode_return == pytest.approx(grown.gain, abs=1e-6)
    (offered,) = (card for card in setting.world.host(0).cards["blocks.0"] if card.name == "mixer")
    assert grown.added_parameters == offered.parameters
