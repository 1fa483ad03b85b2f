"""Control curves trained by the workers of a world, which have nothing else to do while one waits for them."""

import contextlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import NamedTuple, Protocol

import torch

from esper.leyline import (
    ActionSpec,
    Beginning,
    BlueprintCard,
    EpochReport,
    HostRolledBack,
    HostSinks,
    HostsLost,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)
from esper.tolaria.worlds.baselines import BaselineRun, run_from_plain
from esper.tolaria.worlds.worker import (
    HostFacts,
    HostView,
    Plain,
    action_to_plain,
    event_from_plain,
    facts_from_plain,
    legal_from_plain,
    pack,
    serve,
    snapshot_from_plain,
    state_from_plain,
    state_to_plain,
    unpack,
    view_from_plain,
)

# One worker as its world sees it: a process, a connection, and the answers that are still to come.


STOP_SECONDS = 5.0
"""How long a worker may take to stop before it is killed."""
PATIENCE_SECONDS = 1800.0
"""How long an answer may take, by default: longer than an epoch of many large hosts on a slow machine."""


class WorkerDied(RuntimeError):
    """The process is gone, and its hosts with it."""


class WorkerError(RuntimeError):
    """A worker could not do what it was asked; it goes on."""


class WorkerHung(RuntimeError):
    """A worker lives, and does not answer."""


class Answer(NamedTuple):
    verb: str
    result: Plain
    events: list[Plain]
    """What happened to hosts meanwhile."""


class WorkerLink:
    """Sends requests without waiting; `answers` collects what came of them, in order.

    patience  seconds that an answer may take; None waits for ever
    """

    __slots__ = ("_patience", "_pending", "answered", "connection", "name", "process")

    def __init__(
        self,
        name: str,
        factory: str,
        num_hosts: int,
        options: dict[str, Plain],
        *,
        tells: bool,
        patience: float | None,
    ) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads is not safe
        ours, theirs = context.Pipe()
        self.name, self._patience = name, patience
        self.process = context.Process(
            target=serve, args=(theirs, factory, num_hosts, options, tells), name=name, daemon=True
        )
        self.process.start()
        theirs.close()  # so that its death is seen as the end of the stream
        self.connection: Connection = ours
        self._pending: deque[str] = deque()
        self.answered = False
        """Whether it has ever answered: one that has not may not be able to start at all."""

    def send(self, *request: Plain) -> None:
        try:
            self.connection.send_bytes(pack(list(request)))
        except OSError as error:
            raise WorkerDied(f"{self.name} is gone ({error})") from error
        self._pending.append(str(request[0]))

    def answers(self) -> list[Answer]:
        """What all requests so far came to; an error is raised after the others have been read."""
        collected: list[Answer] = []
        failures: list[str] = []
        while self._pending:
            answer = self._receive()
            verb = self._pending.popleft()
            self.answered = True
            events = answer[-1]
            assert isinstance(events, list)
            if answer[0] == "done":
                collected.append(Answer(verb, answer[1], events))
            else:
                failures.append(f"{verb}: {answer[1]}: {answer[2]}")
        if failures:
            raise WorkerError(f"{self.name} could not {'; '.join(failures)}")
        return collected

    def ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # it may be gone already
            self.connection.send_bytes(pack(["stop"]))
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
        """What is to be said of one whose answer has been waited for too long."""
        return WorkerHung(
            f"{self.name} (process {self.process.pid}) has not answered {self._pending[0]!r} for "
            f"{self._patience:g} seconds: it hangs, or worker_timeout is too short for what it was asked"
        )

    def _receive(self) -> list[Plain]:
        try:
            if not self.connection.poll(self._patience):
                raise self.hung()
            answer = unpack(self.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerDied(f"{self.name} died (exit code {self._exit_code()})") from error
        assert isinstance(answer, list)
        return answer

    def _exit_code(self) -> int | None:
        self.process.join(STOP_SECONDS)
        return self.process.exitcode


def first_to_answer(links: Iterable[WorkerLink], patience: float | None) -> list[WorkerLink]:
    """Those of some that were asked something whose answer, or end, is there; waits for the first."""
    asked = {link.connection: link for link in links}
    ready = wait(list(asked), patience)
    if not ready:
        raise next(iter(asked.values())).hung()
    return [link for connection, link in asked.items() if connection in ready]


# A host that lives elsewhere, as last reported.


class Asked(Protocol):
    """Whoever can be asked about what is seldom needed."""

    def ask(self, host_idx: int, verb: str) -> Plain: ...


class HostMirror:
    """A host that lives in a worker, as last reported."""

    __slots__ = ("_facts", "_host_idx", "_world", "view")

    def __init__(self, world: Asked, host_idx: int, facts: HostFacts, view: HostView) -> None:
        self._world, self._host_idx, self._facts = world, host_idx, facts
        self.view = view

    @property
    def slot_config(self) -> SlotConfig:
        return self._facts.slot_config

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        return self._facts.cards

    @property
    def host_parameters(self) -> int:
        return self._facts.host_parameters

    @property
    def added_parameters(self) -> int:
        return self.view.added_parameters

    @property
    def training_samples(self) -> int:
        return self.view.training_samples

    @property
    def report(self) -> EpochReport:
        return self.view.report

    def readings(self) -> Sequence[SlotReading]:
        return self.view.readings

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        answer = self._world.ask(self._host_idx, "snapshots")
        assert isinstance(answer, list)
        return tuple(map(snapshot_from_plain, answer))

    def legal_operations(self) -> dict[str, LegalOperations]:
        answer = self._world.ask(self._host_idx, "legal")
        assert isinstance(answer, dict)
        return {slot: legal_from_plain(plain) for slot, plain in answer.items()}


# A world whose hosts live in worker processes: the same numbers, several cores.


Requests = Mapping[int, Sequence[Plain]]
"""Host -> what else there is to say of what is wanted of it."""


class ProcessWorld:
    """`num_hosts` hosts spread over `workers` processes, one torch thread each.

    >>> with ProcessWorld("esper.tolaria.worlds.toy.world:ToyWorld", num_hosts=8, workers=2) as world: ...

    factory  "module:callable" that makes a world of its first argument's number of hosts; it is found by name in
             each worker, and everything that travels is plain data, so nothing here needs one machine
    options  further arguments of the factory
    events   where what happens to each host is told; the factory must then take `events` too
    timeout  seconds that an answer may take before the worker counts as hung; None waits for ever

    A worker that dies is started anew. Its hosts are lost: `epoch` and `settle` raise `HostsLost`, after the
    others have done what was asked, until each is begun again. `losses` counts them. One that hangs ends it all
    with `WorkerHung`, which names it.
    """

    def __init__(
        self,
        factory: str,
        *,
        num_hosts: int,
        workers: int,
        options: Mapping[str, Plain] | None = None,
        events: HostSinks | None = None,
        timeout: float | None = PATIENCE_SECONDS,
    ) -> None:
        if not 1 <= workers <= num_hosts:
            raise ValueError(f"workers is {workers}; expected 1..{num_hosts}, the number of hosts")
        self._factory, self._options = factory, dict(options or {})
        self._events, self._timeout = events, timeout
        self._shares = [len(range(worker, num_hosts, workers)) for worker in range(workers)]
        self._links: list[WorkerLink] = []
        try:
            for worker in range(workers):
                self._links.append(self._start(worker))
        except BaseException:
            self.close()
            raise
        self._hosts: list[HostMirror | None] = [None] * num_hosts
        self._lost: dict[int, str] = {}
        """Host -> why; until it is begun again."""
        self.losses = 0
        """Hosts lost so far."""
        self.restarts = 0
        """Workers started anew so far."""

    # The world

    def begin(self, host_idx: int, case: str, seed: int) -> None:
        self.begin_many([Beginning(host_idx, case, seed)])

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        self._renew("begin", {host_idx: [case, seed] for host_idx, case, seed in beginnings})

    def host(self, host_idx: int) -> HostMirror:
        self._collect(self._worker(host_idx))
        mirror = self._hosts[host_idx]
        if mirror is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin({host_idx}, case, seed) first")
        return mirror

    def apply(self, host_idx: int, action: ActionSpec) -> None:
        self._send(host_idx, "apply", action_to_plain(action))

    def epoch(self, host_idxs: Sequence[int]) -> None:
        self._share_out("epoch", self._alive(host_idxs))
        self._require_alive(host_idxs)

    def settle(self, host_idx: int, rent: float, *, committed_only: bool) -> None:
        self.settle_many([host_idx], rent, committed_only=committed_only)

    def settle_many(self, host_idxs: Sequence[int], rent: float, *, committed_only: bool) -> None:
        self._share_out("settle", self._alive(host_idxs), rent, committed_only)
        self._require_alive(host_idxs)

    def state_dict(self, host_idx: int) -> dict[str, object]:
        return state_from_plain(self.ask(host_idx, "save"))

    def load_state_dict(self, host_idx: int, state: Mapping[str, object]) -> None:
        self._renew("load", {host_idx: [state_to_plain(state)]})

    # The processes

    @property
    def process_ids(self) -> tuple[int | None, ...]:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, host_idx: int, verb: str) -> Plain:
        """A question about one host, answered at once."""
        worker = self._worker(host_idx)
        self._collect(worker)
        self._require_alive([host_idx])
        try:
            self._links[worker].send(verb, self._place(host_idx))
            (answer,) = self._links[worker].answers()
        except WorkerDied as death:
            self._lose(worker, death)
            raise HostsLost([host_idx], str(death)) from death
        return answer.result

    def call_all(self, function: str, calls: Sequence[Sequence[Plain]]) -> Iterator[Plain]:
        """What a function by name ("module:callable") makes of each of these arguments, in the order they are done.

        Every worker does one at a time. A call whose worker dies is made once more. Whoever stops listening early
        may go on with the world: answers that come late are passed over.
        """
        for worker in range(len(self._links)):
            self._collect(worker)
        waiting, busy, deaths = deque(range(len(calls))), dict[int, int](), Counter[int]()
        while waiting or busy:
            for worker in range(len(self._links)):
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    self._call(worker, function, calls[busy[worker]])
            asked = {self._links[worker]: worker for worker in busy}
            for link in first_to_answer(asked, self._timeout):
                call = busy.pop(asked[link])
                try:
                    (answer,) = link.answers()
                except WorkerDied as death:
                    deaths[call] += 1
                    if deaths[call] == 2:
                        raise RuntimeError(f"{death}: the second time that {function} was called") from death
                    self._lose(asked[link], death)
                    waiting.append(call)
                else:
                    yield answer.result

    def _call(self, worker: int, function: str, arguments: Sequence[Plain]) -> None:
        """One that died since it last answered is replaced first."""
        try:
            self._links[worker].send("call", function, list(arguments))
        except WorkerDied as death:
            self._lose(worker, death)
            self._links[worker].send("call", function, list(arguments))

    def _start(self, worker: int) -> WorkerLink:
        return WorkerLink(
            f"worker {worker}",
            self._factory,
            self._shares[worker],
            self._options,
            tells=self._events is not None,
            patience=self._timeout,
        )

    def _worker(self, host_idx: int) -> int:
        if not 0 <= host_idx < len(self._hosts):
            raise ValueError(f"host_idx is {host_idx}; expected 0..{len(self._hosts) - 1}")
        if not self._links:
            raise RuntimeError("the world was closed: its workers are gone")
        return host_idx % len(self._links)

    def _place(self, host_idx: int) -> int:
        """The host's index in its worker."""
        return host_idx // len(self._links)

    def _alive(self, host_idxs: Sequence[int]) -> Requests:
        return {host_idx: [] for host_idx in host_idxs if host_idx not in self._lost}

    def _renew(self, verb: str, wanted: Requests) -> None:
        """Put hosts in their places; a worker that dies of old troubles meanwhile is replaced once."""
        for _ in range(2):
            for host_idx in wanted:
                self._lost.pop(host_idx, None)
            links = {host_idx: self._links[self._worker(host_idx)] for host_idx in wanted}
            self._share_out(verb, wanted)
            wanted = {
                host_idx: request
                for host_idx, request in wanted.items()
                if self._links[self._worker(host_idx)] is not links[host_idx]
            }
            if not wanted:
                return
        raise HostsLost(list(wanted), f"their workers died twice while they were to {verb} them")

    def _share_out(self, verb: str, wanted: Requests, *common: Plain) -> None:
        """Ask for something of each host; all workers are at work before anyone is waited for."""
        by_worker: dict[int, list[Plain]] = {}
        for host_idx, request in wanted.items():
            by_worker.setdefault(self._worker(host_idx), []).append([self._place(host_idx), *request])
        for worker, requests in by_worker.items():
            self._send_to(worker, verb, requests, *common)
        for worker in by_worker:
            self._collect(worker)

    def _send(self, host_idx: int, verb: str, *arguments: Plain) -> None:
        if host_idx not in self._lost:
            self._send_to(self._worker(host_idx), verb, self._place(host_idx), *arguments)

    def _send_to(self, worker: int, *request: Plain) -> None:
        try:
            self._links[worker].send(*request)
        except WorkerDied as death:
            self._lose(worker, death)

    def _collect(self, worker: int) -> None:
        """Read the answers that are still to come, and what they say of the hosts."""
        try:
            answers = self._links[worker].answers()
        except WorkerDied as death:
            self._lose(worker, death)
            return
        for answer in answers:
            self._pass_on(worker, answer.events)
            if answer.verb != "call":  # of which nobody waits for the result any longer
                assert isinstance(answer.result, list)
                for change in answer.result:
                    self._take(worker, change)

    def _take(self, worker: int, change: Plain) -> None:
        assert isinstance(change, list)
        place, view, facts, lost = change
        assert isinstance(place, int)
        host_idx = place * len(self._links) + worker
        mirror = self._hosts[host_idx]
        if facts is not None:
            self._hosts[host_idx] = HostMirror(self, host_idx, facts_from_plain(facts), view_from_plain(view))
        elif mirror is not None:
            mirror.view = view_from_plain(view)
        if lost is not None:
            self._lost[host_idx] = str(lost)
            self.losses += 1

    def _pass_on(self, worker: int, events: list[Plain]) -> None:
        if self._events is None:
            return
        for told in events:
            assert isinstance(told, list)
            place, plain = told
            assert isinstance(place, int)
            host_idx, event = place * len(self._links) + worker, event_from_plain(plain)
            if isinstance(event, HostRolledBack):
                event = replace(event, host=host_idx)  # the worker knows it by another number
            self._events(host_idx).emit(event)

    def _lose(self, worker: int, death: WorkerDied) -> None:
        link = self._links[worker]
        if not link.answered:
            raise RuntimeError(
                f"{death}: it has never answered, so another would not start either"
            ) from death
        link.stop()
        self._links[worker] = self._start(worker)
        self.restarts += 1
        mine = range(worker, len(self._hosts), len(self._links))
        begun = {host_idx for host_idx in mine if self._hosts[host_idx] is not None}
        self.losses += len(begun - self._lost.keys())
        self._lost |= dict.fromkeys(sorted(begun), "their worker died")

    def _require_alive(self, host_idxs: Sequence[int]) -> None:
        lost = {
            host_idx: self._lost[host_idx] for host_idx in sorted(set(host_idxs)) if host_idx in self._lost
        }
        if lost:
            raise HostsLost(list(lost), "; ".join(dict.fromkeys(lost.values())))


class BaselinesByWorkers:
    """A `BaselineTrainer` of `BaselineCurves`."""

    __slots__ = ("_world",)

    def __init__(self, world: ProcessWorld) -> None:
        self._world = world

    def __call__(
        self, wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
    ) -> Generator[BaselineRun]:
        calls: list[list[Plain]] = [[case, seed, epochs, str(device)] for case, seed in wanted]
        for plain in self._world.call_all("esper.tolaria.worlds.baselines:compute_plain", calls):
            yield run_from_plain(plain)
