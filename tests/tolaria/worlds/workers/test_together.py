"""What a world asks of its workers it asks of all before it waits for any; and what else they can be asked to do."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper.leyline import Beginning, HostLog, HostRolledBack, HostsLost
from esper.tolaria.worlds import processes as link_module
from esper.tolaria.worlds.processes import ProcessWorld, WorkerError, WorkerHung, WorkerLink, first_to_answer
from esper.tolaria.worlds.toy import toy_case
from esper.tolaria.worlds.worker import event_to_plain

TOY = "esper.tolaria.worlds.toy.world:ToyWorld"
CASE = toy_case(1)
BOTH = [Beginning(0, CASE, 1), Beginning(1, CASE, 2)]


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld(TOY, num_hosts=2, workers=2) as shared:
        yield shared


@pytest.mark.parametrize(
    "do",
    [
        lambda world: world.begin_many(BOTH),
        lambda world: world.epoch([0, 1]),
        lambda world: world.settle_many([0, 1], 0.01, committed_only=False),
    ],
    ids=["begin", "epoch", "settle"],
)
def test_all_are_at_work_before_anyone_is_waited_for(
    world: ProcessWorld, do: Callable[[ProcessWorld], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin_many(BOTH)
    told: list[str] = []
    send, receive = WorkerLink.send, WorkerLink._receive

    def heard_send(link: WorkerLink, *request: object) -> None:
        told.append(f"to {link.name}")
        send(link, *request)  # type: ignore[arg-type]

    def heard_receive(link: WorkerLink) -> object:
        told.append(f"from {link.name}")
        return receive(link)

    monkeypatch.setattr(WorkerLink, "send", heard_send)
    monkeypatch.setattr(WorkerLink, "_receive", heard_receive)
    do(world)
    assert told == ["to worker 0", "to worker 1", "from worker 0", "from worker 1"]


def test_a_function_is_called_in_whichever_worker_is_free(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    doubled = world.call_all("worker_worlds:doubled", [[number] for number in range(7)])
    assert sorted(map(int, map(str, doubled))) == [0, 2, 4, 6, 8, 10, 12]
    assert world.host(1).report.epoch == 0


def test_who_stops_listening_may_go_on_with_the_world(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    answers = world.call_all("worker_worlds:doubled", [[number] for number in range(7)])
    assert next(answers) in (0, 2)
    answers.close()  # type: ignore[attr-defined]
    world.epoch([0, 1])
    assert [world.host(host_idx).report.epoch for host_idx in range(2)] == [1, 1]


def test_what_a_function_refuses_is_said_with_the_workers_name(world: ProcessWorld) -> None:
    world.begin_many(BOTH)
    with pytest.raises(WorkerError, match=r"worker 0 could not call: ValueError: 3 is too much"):
        list(world.call_all("worker_worlds:refused", [[3]]))
    world.epoch([0, 1])


def test_a_call_that_its_worker_died_of_is_made_once_more(world: ProcessWorld, tmp_path: Path) -> None:
    world.begin_many(BOTH)
    assert list(world.call_all("worker_worlds:fatal_once", [[str(tmp_path / "died"), 5]])) == [5]
    with pytest.raises(HostsLost, match="lost hosts 0: their worker died"):
        world.epoch([0, 1])
    assert world.host(1).report.epoch == 1


def test_a_rollback_is_told_by_the_number_that_the_host_has_here(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = HostLog()
    monkeypatch.setattr(world, "_events", log.sink)
    told = event_to_plain(HostRolledBack(1, "tiny", 3, "diverged", 1))
    world._pass_on(1, [[1, told]])  # the second host of the second worker is the fourth of all
    assert log.take() == [(3, HostRolledBack(3, "tiny", 3, "diverged", 1))]


def test_a_host_that_is_given_up_in_a_worker_is_lost_and_the_others_go_on() -> None:
    with ProcessWorld("worker_worlds:GivenUp", num_hosts=2, workers=1) as world:
        world.begin_many(BOTH)
        with pytest.raises(HostsLost, match="lost hosts 0: restored in vain"):
            world.epoch([0, 1])
        assert world.losses == 1
        assert world.host(1).report.epoch == 1
        world.begin(0, CASE, 0)
        assert world.host(0).report.epoch == 0


def test_a_worker_that_hangs_is_named_and_can_be_got_rid_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "STOP_SECONDS", 0.1)
    world = ProcessWorld(TOY, num_hosts=2, workers=1, timeout=60.0)
    world.begin_many(BOTH)
    (hung,) = world.process_ids
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    world._links[0]._patience = 0.2
    with pytest.raises(
        WorkerHung, match=rf"worker 0 \(process {hung}\) has not answered 'epoch' for 0.2 sec"
    ):
        world.epoch([0, 1])
    with pytest.raises(WorkerHung, match=r"worker 0 \(process"):
        first_to_answer(world._links, 0.1)
    world.close()
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
