"""What happens to hosts is heard of wherever they live, in the same order and by the same numbers."""

import math
import pickle

import pytest

from esper.leyline import ActionSpec, Beginning, HostEvent, HostLog, HostStep, Settling, StageChanged, World
from esper.tolaria.worlds.processes import ProcessWorld
from event_examples import EXAMPLES
from tiny_tasks import advance, germinate, prune
from worker_worlds import tiny_engine

HOST_EVENTS = [record.event for record in EXAMPLES.values() if isinstance(record.event, HostEvent)]


@pytest.mark.parametrize("event", HOST_EVENTS, ids=lambda event: event.kind)
def test_an_event_survives_the_journey(event: HostEvent) -> None:
    back = pickle.loads(pickle.dumps(event))
    assert back == event
    assert repr(back) == repr(event)  # enumerations are members again, not their numbers


def test_a_stage_that_changed_by_itself_has_no_operation() -> None:
    changed = next(event for event in HOST_EVENTS if isinstance(event, StageChanged))
    silent = StageChanged(changed.slot, changed.before, changed.after, None)
    assert pickle.loads(pickle.dumps(silent)) == silent


def _live(world: World, log: HostLog) -> list[list[tuple[int, HostEvent]]]:
    """Two of three hosts grow; one breaks. What was told, step by step."""
    told = []
    world.begin_many([Beginning(host_idx, "tiny", host_idx) for host_idx in range(3)])
    for step in range(6):
        act = {0: germinate, 1: advance, 4: prune}.get(step, lambda _: ActionSpec())
        settling = Settling(0.01) if step == 5 else None
        actions = (act(1), ActionSpec(), act(0))
        world.step_many([HostStep(host_idx, action, settling) for host_idx, action in enumerate(actions)])
        told.append(sorted(log.take(), key=lambda each: each[0]))
    return told


def test_workers_tell_what_a_world_of_ones_own_tells() -> None:
    here, there = HostLog(), HostLog()
    mine = _live(tiny_engine(3, here.sink), here)
    with ProcessWorld(tiny_engine, num_hosts=3, workers=2, events=there.sink) as world:
        theirs = _live(world, there)
    assert theirs == mine
    kinds = [[event.kind for _, event in step] for step in mine]
    assert kinds[0] == ["seed_germinated", "stage_changed"] * 2
    assert kinds[1] == ["stage_changed"] * 2
    assert {host_idx for step in mine for host_idx, _ in step} == {0, 2}


def test_telling_changes_no_number() -> None:
    log = HostLog()
    reports = []
    for events in (None, log.sink):
        world = tiny_engine(3, events)
        _live(world, log)
        reports.append([repr(world.host(host_idx).report) for host_idx in range(3)])
        assert not math.isnan(world.host(0).report.validation_loss)
    assert reports[0] == reports[1]
