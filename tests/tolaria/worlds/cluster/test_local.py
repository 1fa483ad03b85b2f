"""The one test of a real cluster that runs with the fast ones: started here, used, and gone again."""

import signal

import numpy as np
import pytest

from esper.leyline import ClusteredWorld, WorkDone
from esper.simic.env import GrowthVectorEnv, make_env
from esper.tolaria.worlds.cluster.connecting import ClusterError

ray = pytest.importorskip("ray")


def local_envs() -> GrowthVectorEnv:
    """Three toy hosts on a cluster that is started for them."""
    try:
        return make_env("toy", 3, workers=1, cluster="local", horizon=3)
    except ClusterError as error:
        if "timed out during startup" not in str(error):
            raise
        pytest.skip(f"this machine is too busy for Ray, which gives itself 30 seconds to start: {error}")


def test_a_cluster_of_one_gives_the_same_numbers_and_is_gone_afterwards() -> None:
    handler = signal.getsignal(signal.SIGTERM)
    ours, theirs = local_envs(), make_env("toy", 3, horizon=3)
    try:
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is handler
        rng = np.random.default_rng(0)
        assert all(map(np.array_equal, ours.reset(seed=3)[0].values(), theirs.reset(seed=3)[0].values()))
        for _ in range(7):
            actions = theirs.sample_legal(rng)
            mine, reference = ours.step(actions), theirs.step(actions)
            assert all(map(np.array_equal, mine[0].values(), reference[0].values()))
            assert all(map(np.array_equal, mine[1:4], reference[1:4]))
        parts = ours.episodes.stopwatch.seconds
        (name,) = (
            part.removeprefix("hosts/epoch/") for part in parts if part.startswith("hosts/epoch/worker 0 on ")
        )
        world = ours.episodes.world
        assert isinstance(world, ClusteredWorld)
        assert world.take_work() == {name: WorkDone(epochs=3 * 7)}
        assert world.take_work() == {name: WorkDone()}
    finally:
        ours.close()
    assert not ray.is_initialized()
