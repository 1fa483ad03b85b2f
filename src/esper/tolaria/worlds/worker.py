"""A worker process: owns some hosts of a world and answers requests about them.

A request is a function of the world (`partial(begin, beginnings)` and the like), its answer an `Answer`. Both are
pickled and travel one message each way; `answer` knows nothing of how they travel. Hosts are named by their index in
the worker's own world. Worker processes are copies of one that has imported torch, so that each starts in
milliseconds.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from platform import python_version
from typing import NamedTuple, TypeVar

import torch

from esper import __version__
from esper.leyline import (
    Beginning,
    BlueprintCard,
    EpochReport,
    HostEvent,
    HostLog,
    HostProtocol,
    HostsLost,
    HostState,
    HostStep,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
    World,
)

T = TypeVar("T")
WorldFactory = Callable[..., World]
"""Makes a world of its first argument's number of hosts; takes `events` too where host events are wanted."""


class HostView(NamedTuple):
    """What a host is after a step: all that training and observing need."""

    added_parameters: int
    training_samples: int
    report: EpochReport
    readings: Sequence[SlotReading]
    lost: str | None = None
    """Why the world gave the host up in this step."""


class HostDetails(NamedTuple):
    """The slots of a host in words: sent at its beginning, and on request afterwards."""

    snapshots: tuple[SlotSnapshot, ...]
    legal_operations: Mapping[str, LegalOperations]


class NewHost(NamedTuple):
    """A host that has just been put in its place: what it is to its end, and how it begins."""

    slot_config: SlotConfig
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    host_parameters: int
    parameter_budget: int | None
    view: HostView
    details: HostDetails


class HostRecord(NamedTuple):
    """How to make a host again that was lost."""

    origin: Beginning | HostState
    steps: tuple[HostStep, ...]
    """What was done to it since, with whatever index it had."""
    last: HostView | None
    """What it must be then; None if it may differ, as on a GPU."""


class ReplayDiffers(RuntimeError):
    """A host that was made again is not what it was."""


class Answer(NamedTuple):
    """What came of a request."""

    results: Sequence[object]
    """One for each host that the request names, in its order; empty where it failed."""
    events: list[tuple[int, HostEvent]]
    """What happened to hosts meanwhile: (host index in this worker, event)."""
    error: str | None = None
    """The type and text of what was raised."""
    seconds: float = 0.0
    """How long the worker was at it."""


Request = partial[list[T]]
"""One of the functions below with all its arguments but the world, which comes last."""


def begin(beginnings: Sequence[Beginning], world: World) -> list[NewHost]:
    """Begin hosts."""
    world.begin_many(beginnings)
    return [_new(world.host(beginning.host_idx)) for beginning in beginnings]


def restore(states: Mapping[int, HostState], world: World) -> list[NewHost]:
    """Put hosts in their places as they were saved."""
    world.restore(states)
    return [_new(world.host(host_idx)) for host_idx in states]


def step(steps: Sequence[HostStep], world: World) -> list[HostView]:
    """Step hosts. Those that the world gave up are marked as lost."""
    lost: dict[int, str] = {}
    try:
        world.step_many(steps)
    except HostsLost as loss:  # all others had their step
        lost = dict.fromkeys(loss.host_idxs, loss.reason)
    return [_view(world.host(one.host_idx), lost.get(one.host_idx)) for one in steps]


def replay(records: Mapping[int, HostRecord], world: World) -> list[object]:
    """Make hosts again in these places, all of them side by side."""
    origins = {place: record.origin for place, record in records.items()}
    world.begin_many(
        [one._replace(host_idx=place) for place, one in origins.items() if isinstance(one, Beginning)]
    )
    world.restore({place: one for place, one in origins.items() if not isinstance(one, Beginning)})
    for number in range(max((len(record.steps) for record in records.values()), default=0)):
        world.step_many(
            [
                record.steps[number]._replace(host_idx=place)
                for place, record in records.items()
                if number < len(record.steps)
            ]
        )
    for place, record in records.items():
        now = _view(world.host(place), None)
        if record.last is not None and repr(now) != repr(
            record.last
        ):  # NaN differs from itself, its text does not
            raise ReplayDiffers(
                f"after {len(record.steps)} steps a host that was made again measures {now.report}, and measured "
                f"{record.last.report} before: the machines that trained it differ"
            )
    return []


def snapshot(host_idxs: Sequence[int], world: World) -> list[HostState]:
    """Save hosts."""
    return list(world.snapshot(host_idxs).values())


def read(host_idxs: Sequence[int], world: World) -> list[HostDetails]:
    """The slots of hosts in words."""
    return [_details(world.host(host_idx)) for host_idx in host_idxs]


def call(function: Callable[..., T], arguments: Sequence[object], world: World) -> list[T]:
    """The result of a function that has nothing to do with the world's hosts."""
    del world
    return [function(*arguments)]


def _new(host: HostProtocol) -> NewHost:
    sizes = host.host_parameters, host.parameter_budget
    return NewHost(host.slot_config, host.cards, *sizes, _view(host, None), _details(host))


def _view(host: HostProtocol, lost: str | None) -> HostView:
    return HostView(host.added_parameters, host.training_samples, host.report, host.readings(), lost)


def _details(host: HostProtocol) -> HostDetails:
    return HostDetails(host.snapshots(), host.legal_operations())


def answer(world: World, request: Request[object], log: HostLog) -> Answer:
    """Do what is asked. An error is part of the answer: the caller decides what to do about it."""
    began = time.perf_counter()
    try:
        results = request(world)
        return Answer(results, log.take(), seconds=time.perf_counter() - began)
    except Exception as error:
        return Answer([], log.take(), f"{type(error).__name__}: {error}", time.perf_counter() - began)


def hardware_name(device: torch.device | str) -> str:
    """Of what computes on this device: the instructions of a CPU, the name of a GPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    capability: str = torch.backends.cpu.get_cpu_capability()
    return capability


def numeric_terms(device: str) -> dict[str, str]:
    """What the last bits of a host's numbers depend on, by name."""
    return {
        "Python": python_version(),
        "esper": __version__,
        "torch": torch.__version__,
        "hardware": hardware_name(device),
    }


def serve(
    connection: Connection,
    factory: WorldFactory,
    num_hosts: int,
    with_events: bool,
    environment: Mapping[str, str],
) -> None:
    """The main loop of a worker process; it ends when its parent sends None or is gone."""
    take_environment(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    torch.set_num_threads(1)
    log = HostLog()
    world = factory(num_hosts, events=log.sink) if with_events else factory(num_hosts)
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        if request is None:
            return
        reply = answer(world, request, log)
        try:
            message = pickle.dumps(reply)
        except Exception as error:  # the result of a call can be anything
            message = pickle.dumps(Answer([], reply.events, f"{type(error).__name__}: {error}"))
        try:
            connection.send_bytes(message)
        except BrokenPipeError:
            return


# How worker processes are started


PRELOADED = ["esper.tolaria.worlds.worker", "esper.tolaria.worlds.engine", "torch._dynamo"]
"""Modules that a worker finds imported; the first step of any optimiser imports the last, which takes a second.

Importing them computes nothing and touches no GPU, so that copying is safe.
"""


UNGUARDED = 78
"""Exit code of a process whose script starts workers as it is imported."""
GUARD_IT = (
    "workers import the script that starts them, and this one starts workers as soon as it is imported: put what it "
    'does below `if __name__ == "__main__":`, or take workers=0'
)


def end_if_imported() -> None:
    """End this process, and say why, if it is one that still imports the script that started it.

    A script that starts workers at its top level starts them in its workers as well, which cannot be. The exit code
    tells a world that waits for the worker, whose error then says the same.
    """
    if getattr(
        multiprocessing.current_process(), "_inheriting", False
    ):  # as multiprocessing itself finds it out
        print(f"A process of the script ends: {GUARD_IT}", file=sys.stderr, flush=True)
        os._exit(UNGUARDED)


def worker_context() -> ForkServerContext | SpawnContext:
    """The start method of workers.

    Copying this process is not safe, as it has threads; on Linux another is kept for it, which imports and does
    nothing else. Elsewhere every worker imports for itself. Copies have the environment variables of the first
    start: send those of now with each worker, for `take_environment`. Ctrl-C reaches neither it nor them: a terminal
    sends it to all, and one that arrived during the imports ended them with a traceback.
    """
    end_if_imported()
    if sys.platform != "linux":  # system libraries of macOS do not survive a copy
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # by itself: it unblocks the signal once it runs
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which what is started inherits
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def take_environment(variables: Mapping[str, str]) -> None:
    """Make the environment variables of this process these."""
    os.environ.clear()
    os.environ.update(variables)
