"""On hosts that really train: after half of the `cpu_mixers` preset growing already pays."""

from pathlib import Path
from statistics import fmean

import pytest

import esper
from esper.leyline import RoundFinished
from esper.simic.reports import News

ROUNDS = 16


@pytest.mark.slow
def test_a_controller_learns_to_grow_trained_hosts(tmp_path: Path) -> None:
    """Gain is over the same host left alone, while the policy still explores; about twelve minutes on two cores.

    At first most growth harms: the first three rounds of five seeds had -0.03 to -0.01. Rounds 11 to 16 had +0.016 to
    +0.028, each mean with a standard error of 0.0025. A policy that has learned never to grow has 0.
    """
    gains: list[float] = []

    def listen(news: News) -> None:
        if isinstance(news, RoundFinished) and news.mean_gain is not None:
            gains.append(news.mean_gain)

    whole = esper.TrainingConfig.preset("cpu_mixers").ppo()
    config = esper.TrainingConfig.preset(
        "cpu_mixers",
        rounds=ROUNDS,
        lr_anneal_steps=whole.lr_anneal_steps,
        entropy_anneal_steps=whole.entropy_anneal_steps,
        run_directory=tmp_path,
        run_tensorboard=False,
        run_telemetry="rounds",
    )
    esper.train(config, progress=listen)
    assert len(gains) == ROUNDS
    assert fmean(gains[-6:]) > 0.008
    assert fmean(gains[-6:]) > fmean(gains[:3]) + 0.01
