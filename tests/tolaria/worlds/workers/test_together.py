"""What a world asks of its workers it asks of all before it waits for any; and what else they can be asked to do."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from esper.leyline import Beginning, HostLog, HostRolledBack, HostsLost, HostStep, Settling
from esper.simic.env import make_env
from esper.tolaria.worlds import processes as link_module
from esper.tolaria.worlds.processes import ProcessWorld, WorkerLink, first_to_answer
from esper.tolaria.worlds.remote import WorkerError, WorkerHung
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case
from esper.tolaria.worlds.worker import Answer, Request
from worker_worlds import GivenUp, doubled, fatal_once, refused, unsendable
from world_steps import begin_host, run_epoch

CASE = toy_case(1)
BOTH = [Beginning(0, CASE, 1), Beginning(1, CASE, 2)]


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld(ToyWorld, num_hosts=2, workers=2) as shared:
        yield shared


@pytest.mark.parametrize(
    "do",
    [
        lambda world: world.begin_many(BOTH),
        lambda world: run_epoch(world, [0, 1]),
        lambda world: world.step_many([HostStep(index, settle=Settling(0.01)) for index in range(2)]),
    ],
    ids=["begin", "epoch", "settle"],
)
def test_all_are_at_work_before_anyone_is_waited_for(
    world: ProcessWorld, do: Callable[[ProcessWorld], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin_many(BOTH)
    told: list[str] = []
    send, receive = WorkerLink.send, WorkerLink._receive

    def heard_send(link: WorkerLink, request: Request[object]) -> None:
        told.append(f"to {link.name}")
        send(link, request)

    def heard_receive(link: WorkerLink) -> object:
        told.append(f"from {link.name}")
        return receive(link)

    monkeypatch.setattr(WorkerLink, "send", heard_send)
    monkeypatch.setattr(WorkerLink, "_receive", heard_receive)
    do(world)
    assert told[:2] == ["to worker 0", "to worker 1"]
    assert sorted(told[2:]) == ["from worker 0", "from worker 1"]  # the first to answer is read first


def test_a_reset_and_a_step_are_one_message_each_way_for_each_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the environment as it trains: observations, masks and rewards ask nothing more of the workers."""
    sent, received = Counter[str](), Counter[str]()
    send, receive = WorkerLink.send, WorkerLink._receive

    def counted_send(link: WorkerLink, request: Request[object]) -> None:
        sent[link.name] += 1
        send(link, request)

    def counted_receive(link: WorkerLink) -> Answer:
        received[link.name] += 1
        return receive(link)

    monkeypatch.setattr(WorkerLink, "send", counted_send)
    monkeypatch.setattr(WorkerLink, "_receive", counted_receive)
    once = {"worker 0": 1, "worker 1": 1}
    envs = make_env("toy", 4, workers=2, horizon=3)
    try:
        envs.reset(seed=0)
        assert sent == received == once
        for _ in range(2):
            sent.clear()
            received.clear()
            envs.step(envs.sample_legal(np.random.default_rng(0)))
            assert sent == received == once
        sent.clear()
        received.clear()
        *_, terminated, _, _ = envs.step(np.zeros((4, 8), dtype=np.int64))
        assert terminated.all()  # the last step settles, and the same step resets
        assert sent == received == {"worker 0": 2, "worker 1": 2}
    finally:
        envs.close()


def test_a_function_is_called_in_whichever_worker_is_free(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    results = world.call_all(doubled, [[number] for number in range(7)])
    assert sorted(results) == [0, 2, 4, 6, 8, 10, 12]
    assert world.host(1).report.epoch == 0


def test_who_stops_listening_may_go_on_with_the_world(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    answers = world.call_all(doubled, [[number] for number in range(7)])
    assert next(answers) in (0, 2)
    answers.close()  # type: ignore[attr-defined]
    run_epoch(world, [0, 1])
    assert [world.host(host_idx).report.epoch for host_idx in range(2)] == [1, 1]


def test_a_result_that_cannot_be_sent_is_an_error_and_the_worker_goes_on(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    with pytest.raises(WorkerError, match=r"worker 0 could not call: .*pickle"):
        list(world.call_all(unsendable, [[3]]))
    run_epoch(world, [0, 1])
    assert world.restarts == 0


def test_what_a_function_refuses_is_said_with_the_workers_name(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    with pytest.raises(WorkerError, match=r"worker 0 could not call: ValueError: 3 is too much"):
        list(world.call_all(refused, [[3]]))
    run_epoch(world, [0, 1])


def test_a_call_that_its_worker_died_of_is_made_once_more(world: ProcessWorld, tmp_path: Path) -> None:
    world.begin_many(BOTH)
    assert list(world.call_all(fatal_once, [[str(tmp_path / "died"), 5]])) == [5]
    with pytest.raises(HostsLost, match="lost hosts 0: their worker died"):
        run_epoch(world, [0, 1])
    assert world.host(1).report.epoch == 1


def test_a_rollback_is_told_by_the_number_that_the_host_has_here(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = HostLog()
    monkeypatch.setattr(world, "_events", log.sink)
    world._pass_on(
        1, [(1, HostRolledBack(1, "tiny", 3, "diverged", 1))]
    )  # the second host of the second worker is the fourth of all
    assert log.take() == [(3, HostRolledBack(3, "tiny", 3, "diverged", 1))]


def test_a_host_that_is_given_up_in_a_worker_is_lost_and_the_others_go_on() -> None:
    with ProcessWorld(GivenUp, num_hosts=2, workers=1) as world:
        world.begin_many(BOTH)
        with pytest.raises(HostsLost, match="lost hosts 0: restored in vain"):
            run_epoch(world, [0, 1])
        assert world.losses == 1
        assert world.host(1).report.epoch == 1
        begin_host(world, 0, CASE, 0)
        assert world.host(0).report.epoch == 0


def test_a_worker_that_hangs_is_named_and_can_be_got_rid_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "STOP_SECONDS", 0.1)
    world = ProcessWorld(ToyWorld, num_hosts=2, workers=1, timeout=60.0)
    world.begin_many(BOTH)
    (hung,) = world.process_ids
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    world._timeout = world._links[0]._patience = 0.2
    with pytest.raises(WorkerHung, match=rf"worker 0 \(process {hung}\) has not answered 'step' for 0.2 sec"):
        run_epoch(world, [0, 1])
    with pytest.raises(WorkerHung, match=r"worker 0 \(process"):
        first_to_answer(world._links, 0.1)
    world.close()
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)


def test_an_end_that_was_interrupted_is_brought_about_by_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ProcessWorld(ToyWorld, num_hosts=2, workers=2)
    world.begin_many(BOTH)
    workers, stop, stopped = world.process_ids, link_module.WorkerLink.stop, list[str]()

    def interrupted(link: link_module.WorkerLink) -> None:
        if stopped:
            raise KeyboardInterrupt
        stopped.append(link.name)
        stop(link)

    monkeypatch.setattr(link_module.WorkerLink, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.close()
    monkeypatch.setattr(link_module.WorkerLink, "stop", stop)
    world.close()
    for worker in workers:
        assert worker is not None
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
