"""A host is what was done to it: begun or restored elsewhere and stepped as before, it is the same, bit for bit."""

import pytest

from esper.leyline import ActionSpec, Beginning, HostStep, Settling, World
from esper.tolaria.worlds.worker import HostRecord, HostView, ReplayDiffers, replay
from tiny_tasks import advance, germinate
from worker_worlds import tiny_engine

pytest.importorskip("ray")
from esper.tolaria.worlds.cluster.world import Journal

HOSTS = (0, 2)


def steps(epoch: int) -> list[HostStep]:
    """One grows; the other joins in one epoch later."""
    act = {1: germinate, 3: advance}.get(epoch, lambda _: ActionSpec())
    settling = Settling(0.01) if epoch == 5 else None
    return [HostStep(0, act(1), settling), *([HostStep(2, settle=settling)] if epoch else [])]


def view(world: World, host_idx: int) -> HostView:
    host = world.host(host_idx)
    return HostView(host.added_parameters, host.training_samples, host.report, host.readings())


def lived(epochs: int, *, saved_after: int | None = None) -> tuple[World, dict[int, HostRecord]]:
    """Two hosts of a world of three, and how to make them again in other places."""
    world, journal = tiny_engine(3), Journal()
    beginnings = [Beginning(host_idx, "tiny:change=2", host_idx) for host_idx in HOSTS]
    world.begin_many(beginnings)
    for one in beginnings:
        journal.begin(one.host_idx, one)
    for epoch in range(epochs):
        world.step_many(steps(epoch))
        for step in steps(epoch):
            journal.add(step)
        if epoch == saved_after:
            for host_idx, state in world.snapshot(HOSTS).items():
                journal.begin(host_idx, state)
    return world, {2 - host_idx: journal.record(host_idx, view(world, host_idx)) for host_idx in HOSTS}


@pytest.mark.parametrize("saved_after", [None, 2])
@pytest.mark.parametrize("epochs", [0, 4, 6])
def test_a_replayed_host_goes_on_as_the_lost_one_would_have(epochs: int, saved_after: int | None) -> None:
    lost, records = lived(epochs, saved_after=saved_after)
    assert len(records[2].steps) == epochs - (0 if saved_after is None or epochs == 0 else 3)
    other = tiny_engine(3)
    replay(records, other)
    for world, places in ((lost, HOSTS), (other, HOSTS[::-1])):
        world.step_many([HostStep(place) for place in places])
    assert [repr(view(lost, place)) for place in HOSTS] == [repr(view(other, 2 - place)) for place in HOSTS]


def test_a_replay_that_measures_something_else_is_an_error() -> None:
    _, records = lived(4)
    other = Beginning(0, "tiny:change=2", 7)
    with pytest.raises(ReplayDiffers, match="after 4 steps a host that was made again measures EpochReport"):
        replay({2: records[2]._replace(origin=other)}, tiny_engine(3))
    replay({2: records[2]._replace(origin=other, last=None)}, tiny_engine(3))
