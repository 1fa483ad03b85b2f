"""A world whose hosts live in workers: which host lives where, asking them, and what is lost with a worker.

How a worker is reached and what its death costs is for the worlds derived from it: processes of this machine, or
actors of a cluster.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, Self, TypeVar, cast

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
from esper.tolaria.worlds.worker import Answer, HostDetails, HostView, NewHost, Request

PATIENCE_SECONDS = 1800.0
"""How long an answer may take, by default: longer than an epoch of many large hosts on a slow machine."""
T = TypeVar("T")


class WorkerDied(RuntimeError):
    """The worker is gone, and its hosts with it."""


class WorkerError(RuntimeError):
    """A worker could not do what it was asked; it goes on."""


class WorkerHung(RuntimeError):
    """A worker lives, and does not answer."""


class WorkerLate(WorkerHung):
    """A worker had not answered when nobody was to be waited for any longer."""


class Link(Protocol):
    """One worker, and the way to it."""

    name: str
    answered: bool
    """Whether it has ever answered."""

    def send(self, request: Request[T]) -> None:
        """Send a request without waiting for its answer."""

    def receive(self) -> Answer:
        """The answer to the latest request; raises WorkerDied, WorkerError or WorkerHung where there is none."""

    def ask_to_stop(self) -> None:
        """Ask the worker to end, without waiting for it."""

    def stop(self) -> None:
        """End the worker."""


L = TypeVar("L", bound=Link)


class RemoteHost:
    """A host that lives in a worker, as last reported (a `HostProtocol`)."""

    def __init__(self, new: NewHost, ask: Callable[[], Mapping[int, HostDetails]]) -> None:
        self.slot_config, self.cards, self.host_parameters = new.slot_config, new.cards, new.host_parameters
        self.parameter_budget = new.parameter_budget
        self.update(new.view)
        self._ask = ask
        self._details: HostDetails | None = new.details

    def update(self, view: HostView) -> None:
        """Take over what the host is after a step."""
        self.added_parameters, self.training_samples = view.added_parameters, view.training_samples
        self.report, self._readings = view.report, view.readings
        self._details = None

    @property
    def view(self) -> HostView:
        """What the host is after its last step."""
        return HostView(self.added_parameters, self.training_samples, self.report, self._readings)

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


class RemoteWorld(ABC, Generic[L]):
    """`num_hosts` hosts spread over workers: host i lives in worker i % workers.

    start    makes the link to worker number `worker`, which has so many hosts
    events   where what happens to each host is reported
    timeout  seconds that an answer may take before the worker counts as hung; None waits for ever
    """

    def __init__(
        self,
        start: Callable[[int, int], L],
        *,
        num_hosts: int,
        workers: int,
        events: HostSinks | None,
        timeout: float | None,
    ) -> None:
        if not 1 <= workers <= num_hosts:
            raise ValueError(f"workers is {workers}; expected 1..{num_hosts}, the number of hosts")
        self.workers, self._start, self._events, self._timeout = workers, start, events, timeout
        self._hosts: list[RemoteHost | None] = [None] * num_hosts
        self._lost: dict[int, str] = {}
        """Host -> why; until it is begun again."""
        self.losses = 0
        """Hosts lost so far."""
        self.restarts = 0
        """Workers started anew so far."""
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._links: list[L] = []
        try:
            for worker in range(workers):
                self._links.append(self._start(worker, len(self._hosts_of(worker))))
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
                self._lose([host_idx], view.lost)
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

    # The workers

    def take_worker_seconds(self) -> dict[str, float]:
        """Worker -> seconds it spent on requests about hosts since this was last asked."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken

    def close(self) -> None:
        """Stop the workers. The world cannot be used afterwards."""
        for link in self._links:
            link.ask_to_stop()
        for link in self._links:
            link.stop()
        self._links = []

    def __enter__(self) -> Self:
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
                        self._replace(worker, death)
                        self._links[worker].send(request)
            for worker in self._first_to_answer(busy):
                call = busy.pop(worker)
                try:
                    (result,) = self._links[worker].receive().results
                except WorkerDied as death:
                    deaths[call] += 1
                    if deaths[call] == 2:
                        name = function.__name__
                        raise RuntimeError(f"{death}: the second time that {name} was called") from death
                    self._replace(worker, death)
                    waiting.append(call)
                else:
                    yield cast(T, result)

    # What depends on how workers are reached

    @abstractmethod
    def _first_to_answer(self, workers: Collection[int]) -> Sequence[int]:
        """Wait for the first of some that were asked; returns those whose answer, or end, is there."""

    @abstractmethod
    def _replace(self, worker: int, death: WorkerDied) -> None:
        """See to it that there is a worker again in the place of one that died."""

    def _send(self, worker: int, request: Request[T], host_idxs: Sequence[int]) -> bool:
        """Send a request about these hosts; returns whether an answer is to be expected."""
        del host_idxs
        try:
            self._links[worker].send(request)
        except WorkerDied as death:
            self._replace(worker, death)
            return False
        return True

    def _after_death(self, worker: int, death: WorkerDied, request: Request[T], mine: Sequence[int]) -> bool:
        """Replace a worker that died over a request; returns whether another answer to it is to be expected."""
        del request, mine
        self._replace(worker, death)
        return False

    def _give_up(self, worker: int, hang: WorkerHung) -> None:
        """What is to be done about a worker that hangs, if it is not an error."""
        del worker
        raise hang

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

    def _hosts_of(self, worker: int) -> range:
        return range(worker, len(self._hosts), self.workers)

    # Asking

    def _ask(
        self, host_idxs: Iterable[int], make: Callable[[list[int]], Request[T]]
    ) -> Iterator[tuple[int, T]]:
        """One request to each worker that has some of these hosts, then (host, result) of all that answered.

        All workers are at work before any is waited for, and the first to answer is the first to be read. An error is
        raised after the others' answers have been read.
        """
        shares: dict[int, list[int]] = {}
        for host_idx in host_idxs:
            shares.setdefault(self._worker(host_idx), []).append(host_idx)
        made = {worker: make(mine) for worker, mine in shares.items()}
        asked = {worker for worker, request in made.items() if self._send(worker, request, shares[worker])}
        failures: dict[int, WorkerError] = {}
        while asked:
            for worker in self._first_to_answer(asked):
                try:
                    answer = self._links[worker].receive()
                except WorkerDied as death:
                    if not self._after_death(worker, death, made[worker], shares[worker]):
                        asked.remove(worker)
                    continue
                except WorkerHung as hang:
                    self._give_up(worker, hang)
                except WorkerError as error:
                    failures[worker] = error
                else:
                    self._seconds[self._links[worker].name] += answer.seconds
                    self._pass_on(worker, answer.events)
                    yield from zip(shares[worker], cast("Sequence[T]", answer.results), strict=True)
                asked.remove(worker)
        if failures:
            raise failures[min(failures)]

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

    def _lose(self, host_idxs: Iterable[int], reason: str) -> None:
        """Count those of these hosts that have begun as lost."""
        begun = [host_idx for host_idx in host_idxs if self._hosts[host_idx] is not None]
        self.losses += len(set(begun) - self._lost.keys())
        self._lost |= dict.fromkeys(begun, reason)

    def _require_alive(self, host_idxs: Iterable[int]) -> None:
        lost = {host_idx: self._lost[host_idx] for host_idx in sorted(host_idxs) if host_idx in self._lost}
        if lost:
            raise HostsLost(list(lost), "; ".join(dict.fromkeys(lost.values())))
