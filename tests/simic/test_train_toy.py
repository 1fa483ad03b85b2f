"""The whole road, from a preset to a score on unseen draws, against the exact oracle."""

from pathlib import Path
from statistics import fmean

import pytest

import esper
from esper.leyline import RoundFinished
from esper.simic.env.making import TOY_HORIZON
from esper.simic.held_out import evaluate_checkpoint, held_out_cases
from esper.simic.reports import News
from esper.tamiyo.controller import HeldOutScore
from esper.tolaria.worlds.toy.instance import toy_instance
from toy_oracle import best_plan

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


def learned(config: esper.TrainingConfig, episodes: int) -> HeldOutScore:
    """Train, and judge the best checkpoint on draws that were held out."""
    result = esper.train(config)
    assert result.directory is not None
    best = result.directory / "checkpoints" / "best.pt"
    scores = evaluate_checkpoint(config, best, episodes=episodes, policies=())
    return next(score for score in scores if score.policy == "learned")


def oracle(episodes: int) -> tuple[float, float]:
    """Mean utility and gain of the best plans for the same draws."""
    cases = [case for case, _ in held_out_cases("toy", episodes, 0)]
    plans = [best_plan(toy_instance(case), horizon=TOY_HORIZON) for case in cases]
    return fmean(plan.utility for plan in plans), fmean(plan.gain for plan in plans)


def config(folder: Path, **changes: object) -> esper.TrainingConfig:
    quiet: dict[str, object] = {"run_directory": folder, "run_tensorboard": False, "run_telemetry": "rounds"}
    return esper.TrainingConfig.preset("toy", **quiet, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_toy_preset_comes_near_the_oracle(seed: int, tmp_path: Path) -> None:
    """Never growing gains 0, where a learner ends that explores too little; growing at random loses."""
    score = learned(config(tmp_path, seed=seed), episodes=128)
    utility, gain = oracle(128)
    assert score.utility / utility >= 0.95
    assert score.gain / gain >= 0.8


@pytest.mark.slow
def test_a_few_seconds_teach_it_to_harm_less(tmp_path: Path) -> None:
    """An untrained policy loses 0.02 to 0.035; what is learned first is not to. A wrong sign loses more."""
    gains: list[float] = []

    def listen(news: News) -> None:
        if isinstance(news, RoundFinished) and news.mean_gain is not None:
            gains.append(news.mean_gain)

    esper.train(config(tmp_path, rounds=10, num_envs=32, num_minibatches=4, eval_every=0), progress=listen)
    assert len(gains) == 10
    assert fmean(gains[-5:]) > fmean(gains[:3]) + 0.015
    assert fmean(gains[-5:]) > -0.01
