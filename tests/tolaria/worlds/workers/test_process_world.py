"""Hosts in processes: the same numbers, and a killed worker costs its own episodes only."""

import io
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from esper.leyline import ActionSpec, HostsLost, LifecycleOp, World
from esper.simic.env import FlatVectorEnv, GrowthVectorEnv, make_env
from esper.simic.env.episodes import Episodes
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.remote import WorkerError
from esper.tolaria.worlds.toy.host import ToyBaselines, ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case
from growth_envs import toy_space
from worker_worlds import impossible
from world_steps import act_on, begin_host, run_epoch, settle_hosts

CASES = [toy_case(draw, slots=2 + draw % 3) for draw in range(12)]
SPACE = toy_space(*CASES)


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessWorld]:
    """Starting processes is what takes time here, so most tests use the same ones."""
    with ProcessWorld(ToyWorld, num_hosts=5, workers=2) as world:
        yield world


def kill(process_id: int | None) -> None:
    assert process_id is not None
    os.kill(process_id, signal.SIGKILL)


def envs_in(world: World, num_envs: int = 5, horizon: int = 7) -> GrowthVectorEnv:
    return GrowthVectorEnv(
        Episodes(world, SPACE, CASES, num_envs=num_envs, horizon=horizon, baselines=ToyBaselines(horizon))
    )


def test_the_same_numbers_as_in_one_process(shared: ProcessWorld) -> None:
    ours, theirs = envs_in(shared), envs_in(ToyWorld(5))
    rng = np.random.default_rng(0)
    assert all(map(np.array_equal, ours.reset(seed=3)[0].values(), theirs.reset(seed=3)[0].values()))
    for _ in range(40):
        actions = theirs.sample_legal(rng)
        mine, reference = ours.step(actions), theirs.step(actions)
        assert all(map(np.array_equal, mine[0].values(), reference[0].values()))
        assert all(map(np.array_equal, mine[1:4], reference[1:4]))
        assert np.array_equal(mine[4]["action_mask"], reference[4]["action_mask"])
    assert [repr(s) for s in ours.situations()] == [repr(s) for s in theirs.situations()]


def test_state_moves_between_worlds(shared: ProcessWorld) -> None:
    ours, theirs = envs_in(shared), envs_in(ToyWorld(5))
    ours.reset(seed=4)
    rng = np.random.default_rng(1)
    for _ in range(4):
        ours.step(ours.sample_legal(rng))
    buffer = io.BytesIO()
    torch.save(ours.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    theirs.load_state_dict(state)
    rewards = []
    for envs in (ours, theirs):
        rng = np.random.default_rng(2)
        rewards.append([envs.step(envs.sample_legal(rng))[1] for _ in range(9)])
    assert np.array_equal(rewards[0], rewards[1])
    ours.load_state_dict(state)
    rng = np.random.default_rng(2)
    assert np.array_equal([ours.step(ours.sample_legal(rng))[1] for _ in range(9)], rewards[0])


def test_what_a_worker_refuses_is_said_here_and_it_goes_on(shared: ProcessWorld) -> None:
    begin_host(shared, 0, CASES[0], 1)
    with pytest.raises(
        WorkerError, match=r"worker 0 could not step: IllegalOperation: FOSSILIZE is not legal"
    ):
        act_on(shared, ActionSpec(LifecycleOp.FOSSILIZE, "blocks.0"))
    with pytest.raises(WorkerError, match="begin: ValueError: instance 'digits' is of task 'digits'"):
        begin_host(shared, 0, "digits", 1)
    begin_host(shared, 0, CASES[0], 1)
    assert shared.host(0).report.epoch == 0


def test_a_killed_worker_costs_its_own_episodes_only(shared: ProcessWorld) -> None:
    losses, restarts = shared.losses, shared.restarts
    ours, theirs = envs_in(shared), envs_in(ToyWorld(5))
    ours.reset(seed=3)
    theirs.reset(seed=3)
    wait = np.zeros((5, 8), dtype=np.int64)
    for step in range(7):
        if step == 2:
            kill(shared.process_ids[1])  # hosts 1 and 3 live there
        _, reward, terminated, truncated, info = ours.step(wait)
        _, expected, *_ = theirs.step(wait)
        lost = step == 2
        assert info["lost"].tolist() == truncated.tolist() == [False, lost, False, lost, False]
        assert np.array_equal(reward[::2], expected[::2])
    assert terminated.tolist() == [True, False, True, False, True]  # 1 and 3 began anew in the third step
    assert (shared.losses - losses, shared.restarts - restarts) == (2, 1)


@pytest.mark.slow
def test_killed_between_episodes_nobody_notices_but_the_clock(shared: ProcessWorld) -> None:
    restarts = shared.restarts
    ours, theirs = envs_in(shared), envs_in(ToyWorld(5))
    ours.reset(seed=9)
    for process_id in shared.process_ids:
        kill(process_id)
    ours.reset(seed=9)
    theirs.reset(seed=9)
    wait = np.zeros((5, 8), dtype=np.int64)
    assert np.array_equal(ours.step(wait)[1], theirs.step(wait)[1])
    assert shared.restarts == restarts + 2


@pytest.mark.slow
def test_a_world_by_itself_says_which_hosts_are_lost(shared: ProcessWorld) -> None:
    for host_idx in range(2):
        begin_host(shared, host_idx, CASES[0], 1)
    kill(shared.process_ids[0])
    with pytest.raises(HostsLost, match="lost hosts 0: their worker died") as loss:
        run_epoch(shared, [0, 1])
    assert loss.value.host_idxs == (0,)
    assert shared.host(1).report.epoch == 1
    with pytest.raises(HostsLost):
        settle_hosts(shared, 0.01)
    with pytest.raises(HostsLost):
        shared.snapshot([0])[0]
    begin_host(shared, 0, CASES[0], 1)
    run_epoch(shared, [0, 1])
    assert [shared.host(host_idx).report.epoch for host_idx in range(2)] == [1, 2]


def test_killed_before_a_hosts_first_episode_and_closed_with_the_environment() -> None:
    envs = make_env("toy", 2, workers=1)
    world = envs.episodes.world
    assert isinstance(world, ProcessWorld)
    begin_host(world, 0, CASES[0], 1)
    kill(world.process_ids[0])
    begin_host(world, 1, CASES[0], 1)  # never begun before, so it is not among those that were lost
    assert world.host(1).report.epoch == 0
    with pytest.raises(HostsLost, match="lost hosts 0"):
        run_epoch(world)
    FlatVectorEnv(envs).close()
    assert world.process_ids == ()
    with pytest.raises(RuntimeError, match="the world was closed"):
        world.host(1)


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_no_endless_loop() -> None:
    with (
        ProcessWorld(impossible, num_hosts=1, workers=1) as world,
        pytest.raises(RuntimeError, match="none of them has ever answered"),
    ):
        begin_host(world, 0, CASES[0], 1)


def test_a_worker_killed_again_before_it_answered_is_replaced_again(shared: ProcessWorld) -> None:
    begin_host(shared, 0, CASES[0], 1)
    kill(shared.process_ids[0])
    with pytest.raises(HostsLost):
        run_epoch(shared, [0])
    kill(shared.process_ids[0])
    begin_host(shared, 0, CASES[0], 1)
    assert shared.host(0).report.epoch == 0


def test_too_many_workers() -> None:
    with pytest.raises(ValueError, match=r"workers is 3; expected 1\.\.2"):
        ProcessWorld(ToyWorld, num_hosts=2, workers=3)
