"""Two nodes: the same numbers as in one process, whatever becomes of workers and nodes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from esper.leyline import Beginning, HostEvent, HostLog, HostsLost, HostStep, Settling, World
from esper.simic.env import make_env
from esper.tolaria.worlds import worker as requests
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.remote import WorkerError, WorkerHung
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case
from tiny_tasks import advance, germinate
from worker_worlds import Deadly, Slow, impossible, reads_shared_data, tiny_engine
from world_steps import begin_host, run_epoch

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from esper.tolaria.worlds.cluster.connecting import ClusterError  # noqa: E402
from esper.tolaria.worlds.cluster.world import ClusterWorld  # noqa: E402
from ray_clusters import add_node, two_nodes  # noqa: E402

pytestmark = pytest.mark.slow
CASE, HOSTS, EPOCHS = "tiny:change=3", 5, 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with two_nodes() as started:
        yield started


def tiny_world(cluster: Cluster, log: HostLog, snapshot_every: int = 0) -> ClusterWorld:
    return ClusterWorld(
        tiny_engine,
        num_hosts=HOSTS,
        workers=2,
        cluster=cluster.address,
        events=log.sink,
        snapshot_every=snapshot_every,
    )


def live(
    world: World, log: HostLog, after: Callable[[int], None] = lambda _: None
) -> tuple[list[str], list[list[tuple[int, HostEvent]]]]:
    """An episode of five hosts, two of which grow: all that was measured, and what was reported, epoch by epoch."""
    world.begin_many([Beginning(host_idx, CASE, host_idx) for host_idx in range(HOSTS)])
    measured, told = [], []
    for epoch in range(EPOCHS):
        act = {0: germinate, 2: advance}.get(epoch)
        settling = Settling(0.01) if epoch == EPOCHS - 1 else None
        actions = {0: act(1), 3: act(0)} if act else {}
        steps = [HostStep(host_idx, settle=settling) for host_idx in range(HOSTS)]
        world.step_many([one._replace(action=actions.get(one.host_idx, one.action)) for one in steps])
        hosts = [world.host(host_idx) for host_idx in range(HOSTS)]
        measured += [repr((host.report, host.readings(), host.snapshots())) for host in hosts]
        told.append(sorted(log.take(), key=lambda each: each[0]))
        after(epoch)
    return measured, told


@cache
def expected() -> tuple[list[str], list[list[tuple[int, HostEvent]]]]:
    log = HostLog()
    return live(tiny_engine(HOSTS, log.sink), log)


def process_of(world: ClusterWorld, worker: int) -> int:
    world._links[worker].send(partial(requests.call, os.getpid, []))
    (process_id,) = world._links[worker].receive().results
    assert isinstance(process_id, int)
    return process_id


def test_serial_processes_and_cluster_give_the_same_numbers(cluster: Cluster) -> None:
    log = HostLog()
    with ProcessWorld(tiny_engine, num_hosts=HOSTS, workers=2, events=log.sink) as processes:
        assert live(processes, log) == expected()
    with tiny_world(cluster, log) as world:
        assert live(world, log) == expected()
        assert len({name.partition(" on ")[2] for name in world.worker_names}) == 2  # nodes
        assert list(world._data) == [CASE]
        for link in world._links:
            link.send(partial(requests.call, reads_shared_data, [CASE]))
            assert link.receive().results == [True]


@pytest.mark.parametrize(("snapshot_every", "replayed"), [(0, 5 * 3), (2, 5)])
def test_killed_workers_are_replayed_and_change_no_number(
    cluster: Cluster, snapshot_every: int, replayed: int
) -> None:
    log = HostLog()
    with tiny_world(cluster, log, snapshot_every) as world:

        def kill(epoch: int) -> None:
            if epoch == 2:
                for worker in range(2):
                    os.kill(process_of(world, worker), signal.SIGKILL)

        assert live(world, log, kill) == expected()
        assert (world.restarts, world.replays, world.losses) == (2, replayed, 0)
        work = world.take_work().values()
        assert sum(done.epochs for done in work) == HOSTS * EPOCHS
        assert (sum(done.replayed for done in work), sum(done.lost for done in work)) == (replayed, 0)


def test_a_worker_that_died_and_was_started_anew_between_two_requests_is_noticed(cluster: Cluster) -> None:
    log = HostLog()
    with tiny_world(cluster, log) as world:
        link = world._links[0]

        def kill_and_wait(epoch: int) -> None:
            if epoch == 3:
                before = link._incarnation
                ray.kill(link._actor, no_restart=False)
                while link._incarnation == before:
                    link.introduce()
                link._incarnation = before  # nobody has noticed

        assert live(world, log, kill_and_wait) == expected()
        assert (world.restarts, world.losses) == (1, 0)


def test_a_node_killed_in_the_middle_of_a_round_changes_no_number(cluster: Cluster) -> None:
    """Another node joins, and the worker goes on there."""
    log = HostLog()
    with tiny_world(cluster, log) as world:
        nodes = set(world.worker_names)

        def kill(epoch: int) -> None:
            if epoch == 1:
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                add_node(cluster)

        assert live(world, log, kill) == expected()
        assert (world.restarts, world.losses) == (1, 0)
        assert len(nodes - set(world.worker_names)) == 1


def test_a_worker_that_hangs_is_given_up_after_the_stated_time_and_the_others_go_on(cluster: Cluster) -> None:
    with ClusterWorld(ToyWorld, num_hosts=3, workers=2, cluster=cluster.address, timeout=60.0) as world:
        for host_idx in range(3):
            begin_host(world, host_idx, toy_case(1), host_idx)
        os.kill(process_of(world, 1), signal.SIGSTOP)
        for link in world._links:
            link._patience = 5.0
        began = time.monotonic()
        with pytest.raises(
            HostsLost, match=r"lost hosts 1: worker 1 on .* has not answered 'step' for 5 sec"
        ):
            run_epoch(world, [0, 1, 2])
        assert time.monotonic() - began >= 5.0
        assert [world.host(host_idx).report.epoch for host_idx in (0, 2)] == [1, 1]
        for link in world._links:
            link._patience = 60.0
        begin_host(world, 1, toy_case(1), 1)
        run_epoch(world, [0, 1, 2])
        assert [world.host(host_idx).report.epoch for host_idx in range(3)] == [2, 1, 2]
        os.kill(process_of(world, 1), signal.SIGSTOP)
        world._links[1]._patience = 5.0
        world._links[1].hangs = 1
        with pytest.raises(WorkerHung, match=r"worker 1 on .* has not answered 'step'"):
            run_epoch(world, [1])


def test_a_late_worker_is_given_up_at_the_deadline_and_no_other(cluster: Cluster) -> None:
    with ClusterWorld(Slow, num_hosts=3, workers=2, cluster=cluster.address) as world:
        for host_idx in range(3):
            begin_host(world, host_idx, toy_case(1), 13 * (host_idx == 1))
        began = time.monotonic()
        world.wait_until(began + 3.0)
        with pytest.raises(
            HostsLost, match=r"lost hosts 1: worker 1 on .* had not answered 'step' at the dead"
        ):
            run_epoch(world, [0, 1, 2])
        assert 3.0 <= time.monotonic() - began < 30.0
        begin_host(world, 1, toy_case(1), 1)  # by another process: this one would sleep on
        world.wait_until(None)
        run_epoch(world, [0, 1, 2])
        assert time.monotonic() - began < 60.0
        assert [world.host(host_idx).report.epoch for host_idx in range(3)] == [2, 1, 2]
        assert (world.losses, world._links[1].hangs) == (1, 0)
        assert sorted((done.epochs, done.lost) for done in world.take_work().values()) == [(1, 1), (4, 0)]


def test_hosts_that_kill_every_worker_are_lost_in_the_end(cluster: Cluster) -> None:
    with ClusterWorld(Deadly, num_hosts=2, workers=2, cluster=cluster.address) as world:
        begin_host(world, 0, toy_case(1), 13)
        begin_host(world, 1, toy_case(1), 0)
        with pytest.raises(HostsLost, match="lost hosts 0: their workers died 4 times over one request"):
            run_epoch(world, [0, 1])
        assert (world.host(1).report.epoch, world.losses, world.restarts) == (1, 1, 4)


def test_what_a_worker_refuses_is_an_error_and_its_hosts_are_not_replayed(cluster: Cluster) -> None:
    with ClusterWorld(ToyWorld, num_hosts=1, workers=1, cluster=cluster.address) as world:
        begin_host(world, 0, toy_case(1), 0)
        with pytest.raises(WorkerError, match=r"worker 0 on .* could not step: IllegalOperation"):
            world.step_many([HostStep(0, advance(0))])
        os.kill(process_of(world, 0), signal.SIGKILL)
        with pytest.raises(HostsLost, match="their worker died after a step that failed"):
            run_epoch(world, [0])


def test_baselines_are_trained_on_the_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    here = make_env("digits", 2, horizon=3)
    there = make_env("digits", 2, horizon=3, workers=2, cluster=cluster.address)
    try:
        results = []
        for envs in (there, here):
            envs.reset(seed=5)
            rng = np.random.default_rng(0)
            results.append([envs.step(envs.sample_legal(rng))[1].tolist() for _ in range(3)])
        assert results[0] == results[1]
    finally:
        there.close()


def test_no_room_no_gpu_and_a_world_that_cannot_be_made_are_errors(cluster: Cluster) -> None:
    there = cluster.address
    with pytest.raises(ClusterError, match=r"workers is 3, each with 1 CPU, .* has room for 2"):
        ClusterWorld(ToyWorld, num_hosts=4, workers=3, cluster=there)
    with pytest.raises(ClusterError, match=r"device is 'cuda', and no node of the cluster has a GPU"):
        ClusterWorld(ToyWorld, num_hosts=4, workers=1, cluster=there, device="cuda")
    with pytest.raises(ClusterError, match=r"worker 0 cannot start: .*no world of 4 hosts"):
        ClusterWorld(impossible, num_hosts=4, workers=1, cluster=there)
    assert not ray.is_initialized()
