"""A world whose hosts live in worker processes: the same numbers on several cores."""

import contextlib
import multiprocessing
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TypeVar, cast

from esper.leyline import (
    Beginning,
    HostEvent,
    HostRolledBack,
    HostSinks,
    HostsLost,
    HostState,
    HostStep,
    LegalOperations,
    SlotReading,
    SlotSnapshot,
    World,
)
from esper.tolaria.worlds import worker as requests
from esper.tolaria.worlds.worker import Answer, HostDetails, HostView, NewHost, Request, WorldFactory, serve

STOP_SECONDS = 5.0
"""How long a worker may take to stop before it is killed."""
PATIENCE_SECONDS = 1800.0
"""How long an answer may take, by default: longer than an epoch of many large hosts on a slow machine."""
T = TypeVar("T")


class WorkerDied(RuntimeError):
    """The process is gone, and its hosts with it."""


class WorkerError(RuntimeError):
    """A worker could not do what it was asked; it goes on."""


class WorkerHung(RuntimeError):
    """A worker lives, and does not answer."""


class WorkerLink:
    """One worker process and the connection to it.

    patience  seconds that an answer may take; None waits for ever
    """

    def __init__(
        self, factory: WorldFactory, worker: int, num_hosts: int, *, with_events: bool, patience: float | None
    ) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads is not safe
        ours, theirs = context.Pipe()
        self.name, self._patience = f"worker {worker}", patience
        self.process = context.Process(
            target=serve, args=(theirs, factory, num_hosts, with_events), name=self.name, daemon=True
        )
        self.process.start()
        theirs.close()  # so that its death is seen as the end of the stream
        self.connection: Connection = ours
        self._pending: deque[str] = deque()
        """Names of the requests whose answers have not been read."""
        self.answered = False
        """Whether it has ever answered."""

    def send(self, request: Request[T]) -> None:
        """Send a request without waiting for its answer."""
        # Not `connection.send`, whose pickler would pass tensors as shared memory.
        message = pickle.dumps(request)
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise WorkerDied(f"{self.name} is gone ({error})") from error
        self._pending.append(request.func.__name__)

    def receive(self) -> Answer:
        """The answer to the latest request; answers to earlier ones are not needed any more and dropped."""
        while True:
            answer = self._receive()
            self.answered = True
            name = self._pending.popleft()
            if not self._pending:
                break
        if answer.error is not None:
            raise WorkerError(f"{self.name} could not {name}: {answer.error}")
        return answer

    def ask_to_stop(self) -> None:
        """Ask the process to end, without waiting for it."""
        with contextlib.suppress(OSError):  # it may be gone already
            self.connection.send_bytes(pickle.dumps(None))
        self.connection.close()

    def stop(self) -> None:
        """End the process, gently if it listens."""
        if not self.connection.closed:
            self.ask_to_stop()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def hung(self) -> WorkerHung:
        """The error to raise when its answer has taken too long."""
        return WorkerHung(
            f"{self.name} (process {self.process.pid}) has not answered {self._pending[0]!r} for "
            f"{self._patience:g} seconds: it hangs, or worker_timeout is too short for what it was asked"
        )

    def _receive(self) -> Answer:
        try:
            if not self.connection.poll(self._patience):
                raise self.hung()
            message = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            self.process.join(STOP_SECONDS)
            raise WorkerDied(f"{self.name} died (exit code {self.process.exitcode})") from error
        answer = pickle.loads(message)
        assert isinstance(answer, Answer)
        return answer


def first_to_answer(links: Iterable[WorkerLink], patience: float | None) -> list[WorkerLink]:
    """Wait for the first of some that were asked something; returns those whose answer, or end, is there."""
    asked = {link.connection: link for link in links}
    ready = wait(list(asked), patience)
    if not ready:
        raise next(iter(asked.values())).hung()
    return [link for connection, link in asked.items() if connection in ready]


class RemoteHost:
    """A host that lives in a worker, as last reported (a `HostProtocol`)."""

    def __init__(self, new: NewHost, ask: Callable[[], Mapping[int, HostDetails]]) -> None:
        self.slot_config, self.cards, self.host_parameters = new.slot_config, new.cards, new.host_parameters
        self.update(new.view)
        self._ask = ask
        self._details: HostDetails | None = new.details

    def update(self, view: HostView) -> None:
        """Take over what the host is after a step."""
        self.added_parameters, self.training_samples = view.added_parameters, view.training_samples
        self.report, self._readings = view.report, view.readings
        self._details = None

    def readings(self) -> Sequence[SlotReading]:
        """One per slot, in the order of `slot_config`."""
        return self._readings

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        """Every slot in words; asked of the worker once after each step."""
        return self._known_details().snapshots

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        """What can be done in each slot now; asked of the worker once after each step."""
        return self._known_details().legal_operations

    def _known_details(self) -> HostDetails:
        if self._details is None:
            (self._details,) = self._ask().values()
        return self._details


class ProcessWorld:
    """`num_hosts` hosts spread over `workers` processes, one torch thread each.

    >>> with ProcessWorld(ToyWorld, num_hosts=8, workers=2) as world: ...

    factory  makes the world of each worker; it is pickled by name, so it must be importable there
    events   where what happens to each host is reported; the factory must then take `events` too
    timeout  seconds that an answer may take before the worker counts as hung; None waits for ever

    A worker that dies is started anew. Its hosts are lost: `step_many` raises `HostsLost`, after the others have
    done what was asked, until each is begun again. `losses` counts them. One that hangs raises `WorkerHung`, which
    names it.
    """

    def __init__(
        self,
        factory: WorldFactory,
        *,
        num_hosts: int,
        workers: int,
        events: HostSinks | None = None,
        timeout: float | None = PATIENCE_SECONDS,
    ) -> None:
        if not 1 <= workers <= num_hosts:
            raise ValueError(f"workers is {workers}; expected 1..{num_hosts}, the number of hosts")
        self._events, self._timeout = events, timeout
        self._start = partial(WorkerLink, factory, with_events=events is not None, patience=timeout)
        self._hosts: list[RemoteHost | None] = [None] * num_hosts
        self._lost: dict[int, str] = {}
        """Host -> why; until it is begun again."""
        self.losses = 0
        """Hosts lost so far."""
        self.restarts = 0
        """Workers started anew so far."""
        self._links: list[WorkerLink] = []
        self._answered = False
        """Whether any worker has ever answered: if none has, they may not be able to start at all."""
        try:
            for worker in range(workers):
                self._links.append(self._start(worker, len(range(worker, num_hosts, workers))))
        except BaseException:
            self.close()
            raise

    # The world

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones, in all workers at once."""
        placed = {one.host_idx: one._replace(host_idx=self._place(one.host_idx)) for one in beginnings}
        self._renew(placed, lambda mine: partial(requests.begin, [placed[index] for index in mine]))

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Step hosts, in all workers at once."""
        placed = {one.host_idx: one._replace(host_idx=self._place(one.host_idx)) for one in steps}
        alive = [index for index in placed if index not in self._lost]
        views = self._ask(alive, lambda mine: partial(requests.step, [placed[index] for index in mine]))
        for host_idx, view in views:
            self.host(host_idx).update(view)
            if view.lost is not None:
                self._lost[host_idx] = view.lost
                self.losses += 1
        self._require_alive(placed)

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """The states of these hosts, by host index."""
        return self._read(requests.snapshot, host_idxs)

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""
        self._renew(
            states,
            lambda mine: partial(requests.restore, {self._place(index): states[index] for index in mine}),
        )

    def host(self, host_idx: int) -> RemoteHost:
        """One host as last reported."""
        self._worker(host_idx)
        host = self._hosts[host_idx]
        if host is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin_many first")
        return host

    # The processes

    @property
    def process_ids(self) -> tuple[int | None, ...]:
        """Of the workers, in order; empty once the world is closed."""
        return tuple(link.process.pid for link in self._links)

    def close(self) -> None:
        """Stop the workers. The world cannot be used afterwards."""
        for link in self._links:
            link.ask_to_stop()
        for link in self._links:
            link.stop()
        self._links = []

    def __enter__(self) -> "ProcessWorld":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call_all(self, function: Callable[..., T], calls: Sequence[Sequence[object]]) -> Iterator[T]:
        """The results of an importable function for each of these arguments, in the order they are done.

        Every worker does one at a time. A call whose worker dies is made once more. A caller that stops early may
        go on with the world: answers that come late are dropped.
        """
        waiting, busy, deaths = deque(range(len(calls))), dict[int, int](), Counter[int]()
        while waiting or busy:
            for worker in range(len(self._links)):
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    request = partial(requests.call, function, calls[busy[worker]])
                    try:
                        self._links[worker].send(request)
                    except WorkerDied as death:  # since it last answered
                        self._lose(worker, death)
                        self._links[worker].send(request)
            asked = {self._links[worker]: worker for worker in busy}
            for link in first_to_answer(asked, self._timeout):
                call = busy.pop(asked[link])
                try:
                    (result,) = link.receive().results
                except WorkerDied as death:
                    deaths[call] += 1
                    if deaths[call] == 2:
                        name = function.__name__
                        raise RuntimeError(f"{death}: the second time that {name} was called") from death
                    self._lose(asked[link], death)
                    waiting.append(call)
                else:
                    yield cast(T, result)

    # Which host lives where

    def _worker(self, host_idx: int) -> int:
        if not 0 <= host_idx < len(self._hosts):
            raise ValueError(f"host_idx is {host_idx}; expected 0..{len(self._hosts) - 1}")
        if not self._links:
            raise RuntimeError("the world was closed: its workers are gone")
        return host_idx % len(self._links)

    def _place(self, host_idx: int) -> int:
        """The host's index in its worker."""
        return (host_idx - self._worker(host_idx)) // len(self._links)

    # Asking

    def _ask(
        self, host_idxs: Iterable[int], make: Callable[[list[int]], Request[T]]
    ) -> Iterator[tuple[int, T]]:
        """One request to each worker that has some of these hosts, then (host, result) of all that answered.

        All workers are at work before any is waited for. Those that died are replaced, their hosts are lost. An
        error is raised after the others' answers have been read.
        """
        shares: dict[int, list[int]] = {}
        for host_idx in host_idxs:
            shares.setdefault(self._worker(host_idx), []).append(host_idx)
        sent = []
        for worker, mine in shares.items():
            try:
                self._links[worker].send(make(mine))
                sent.append(worker)
            except WorkerDied as death:
                self._lose(worker, death)
        failures = []
        for worker in sent:
            try:
                answer = self._links[worker].receive()
            except WorkerDied as death:
                self._lose(worker, death)
            except WorkerError as error:
                failures.append(error)
            else:
                self._pass_on(worker, answer.events)
                yield from zip(shares[worker], cast("Sequence[T]", answer.results), strict=True)
        if failures:
            raise failures[0]

    def _read(
        self, question: Callable[[Sequence[int], World], list[T]], host_idxs: Sequence[int]
    ) -> dict[int, T]:
        """What a request that changes nothing finds of hosts that are not lost."""
        self._require_alive(host_idxs)
        found = dict(self._ask(host_idxs, lambda mine: partial(question, [self._place(i) for i in mine])))
        self._require_alive(host_idxs)
        return {host_idx: found[host_idx] for host_idx in host_idxs}

    def _renew(self, host_idxs: Iterable[int], make: Callable[[list[int]], Request[NewHost]]) -> None:
        """Put hosts in their places; a worker that dies of earlier troubles meanwhile is replaced once."""
        missing = list(host_idxs)
        for _ in range(2):
            for host_idx in missing:
                self._lost.pop(host_idx, None)
            renewed = dict(self._ask(missing, make))
            for host_idx, new in renewed.items():
                ask = partial(self._read, requests.read, [host_idx])
                self._hosts[host_idx] = RemoteHost(new, ask)
            missing = [host_idx for host_idx in missing if host_idx not in renewed]
            if not missing:
                return
        raise HostsLost(missing, "their workers died twice while they were to begin them")

    def _pass_on(self, worker: int, events: Sequence[tuple[int, HostEvent]]) -> None:
        if self._events is None:
            return
        for place, event in events:
            host_idx = place * len(self._links) + worker
            if isinstance(event, HostRolledBack):
                event = replace(event, host=host_idx)  # the worker knows it by another number
            self._events(host_idx).emit(event)

    # Losing hosts

    def _lose(self, worker: int, death: WorkerDied) -> None:
        link = self._links[worker]
        self._answered |= any(each.answered for each in self._links)
        if not self._answered:
            raise RuntimeError(
                f"{death}: none of them has ever answered, so another would not start either"
            ) from death
        link.stop()
        mine = range(worker, len(self._hosts), len(self._links))
        self._links[worker] = self._start(worker, len(mine))
        self.restarts += 1
        begun = {host_idx for host_idx in mine if self._hosts[host_idx] is not None}
        self.losses += len(begun - self._lost.keys())
        self._lost |= dict.fromkeys(sorted(begun), "their worker died")

    def _require_alive(self, host_idxs: Iterable[int]) -> None:
        lost = {host_idx: self._lost[host_idx] for host_idx in sorted(host_idxs) if host_idx in self._lost}
        if lost:
            raise HostsLost(list(lost), "; ".join(dict.fromkeys(lost.values())))
