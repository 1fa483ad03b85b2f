"""What a worker answers, without a process or a pipe."""

import pickle
from functools import partial

from esper.leyline import ActionSpec, Beginning, HostLog, HostStep, LifecycleOp
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.toy.instance import toy_case
from esper.tolaria.worlds.worker import (
    Answer,
    HostView,
    NewHost,
    Request,
    T,
    answer,
    begin,
    read,
    restore,
    snapshot,
    step,
)
from worker_worlds import GivenUp

CASE = toy_case(1)
BOTH = [Beginning(0, CASE, 1), Beginning(1, CASE, 2)]


def ask(world: ToyWorld, request: Request[T]) -> Answer:
    """Through pickle, as between processes."""
    received = pickle.loads(pickle.dumps(request))
    returned = pickle.loads(pickle.dumps(answer(world, received, HostLog())))
    assert isinstance(returned, Answer)
    return returned


def test_a_new_host_is_described_once_and_a_step_by_what_changes() -> None:
    world = ToyWorld(2)
    begun = ask(world, partial(begin, BOTH))
    (first, _), host = begun.results, world.host(0)
    assert isinstance(first, NewHost)
    assert (first.slot_config, first.cards) == (host.slot_config, host.cards)
    assert first.details.snapshots == host.snapshots()
    stepped = ask(world, partial(step, [HostStep(0), HostStep(1)]))
    (view, _) = stepped.results
    assert isinstance(view, HostView)
    assert (view.report, view.report.epoch, view.lost) == (host.report, 1, None)
    assert len(pickle.dumps(stepped)) < len(pickle.dumps(begun)) / 2
    assert ask(world, partial(read, [0])).results[0] == (host.snapshots(), host.legal_operations())


def test_an_error_is_an_answer() -> None:
    world = ToyWorld(1)
    ask(world, partial(begin, BOTH[:1]))
    refused = ask(world, partial(step, [HostStep(0, ActionSpec(LifecycleOp.PRUNE, "blocks.0"))]))
    assert refused.error is not None
    assert refused.error.startswith("IllegalOperation: PRUNE is not legal at slot 'blocks.0'")
    assert ask(world, partial(step, [HostStep(0)])).error is None


def test_a_host_that_the_world_gave_up_is_marked_and_the_others_go_on() -> None:
    world = GivenUp(2)
    ask(world, partial(begin, BOTH))
    lost, alive = ask(world, partial(step, [HostStep(0), HostStep(1)])).results
    assert isinstance(lost, HostView)
    assert isinstance(alive, HostView)
    assert (lost.lost, alive.lost, alive.report.epoch) == ("restored in vain", None, 1)


def test_a_saved_host_goes_on_in_another_place() -> None:
    world = ToyWorld(2)
    ask(world, partial(begin, BOTH))
    ask(world, partial(step, [HostStep(0, ActionSpec(LifecycleOp.GERMINATE, "blocks.0", "mixer"))]))
    (state,) = ask(world, partial(snapshot, [0])).results
    ask(world, partial(restore, {1: state}))  # type: ignore[dict-item]
    ask(world, partial(step, [HostStep(0), HostStep(1)]))
    assert world.host(0).report == world.host(1).report
