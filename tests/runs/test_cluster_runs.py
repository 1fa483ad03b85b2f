"""Runs on a cluster: a learner that is killed goes on elsewhere, and a bench is the same wherever it is played."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import esper
from esper.benchmark import RowStore
from esper.leyline import RoundFinished
from esper.nissa import read_events
from esper.runs.train import train
from esper.simic.config.training_config import TrainingConfig

ray = pytest.importorskip("ray")
from ray_clusters import two_nodes  # noqa: E402

pytestmark = pytest.mark.slow
DIES_IN_ROUND_3 = """
import os, signal, sys
from esper.leyline import RoundFinished
from esper.runs.train import train
from esper.simic.config.training_config import TrainingConfig

def progress(news):
    if isinstance(news, RoundFinished) and news.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)

train(TrainingConfig.load(sys.argv[1]), progress=progress)
"""


def learned(run: Path) -> list[tuple[object, ...]]:
    """What every round learned, without its times; of one that was repeated, the last."""
    rounds = {
        record.event.round: (record.event.env_steps, record.event.mean_return, record.event.policy_loss)
        for record in read_events(run)
        if isinstance(record.event, RoundFinished)
    }
    return [rounds[number] for number in sorted(rounds)]


def test_a_learner_killed_and_resumed_on_a_new_cluster_learns_what_it_would_have(tmp_path: Path) -> None:
    whole = TrainingConfig(
        suite="toy",
        num_envs=4,
        num_minibatches=2,
        hidden_size=16,
        rounds=5,
        eval_every=0,
        run_tensorboard=False,
        run_directory=tmp_path,
        run_name="whole",
    )
    train(whole)
    killed = replace(whole, run_name="killed", workers=2)
    with two_nodes() as cluster:
        replace(killed, cluster=cluster.address).save(tmp_path / "config.json")
        script = [sys.executable, "-c", DIES_IN_ROUND_3, str(tmp_path / "config.json")]
        assert subprocess.run(script, check=False).returncode == -9
    assert len(learned(tmp_path / "killed")) == 3
    with two_nodes() as cluster, pytest.warns(UserWarning, match="going on from .*, after round 2"):
        train(replace(killed, cluster=cluster.address), resume=True)
    assert learned(tmp_path / "killed") == learned(tmp_path / "whole")


def test_a_bench_has_the_same_rows_wherever_it_is_played(tmp_path: Path) -> None:
    request = esper.BenchRequest(suite="toy", arms=("probe_and_keep",), seeds=3, instances=2)
    assert esper.bench(tmp_path / "here", request).interrupted is None
    with two_nodes() as cluster:
        assert esper.bench(tmp_path / "there", request, cluster=cluster.address).interrupted is None
    here, there = (
        sorted(repr(replace(row, wall_seconds=0.0)) for row in RowStore(tmp_path / name).read())
        for name in ("here", "there")
    )
    assert len(here) == 2 * 2 * 3  # arms, wait among them, instances and seeds
    assert there == here
    assert not ray.is_initialized()
