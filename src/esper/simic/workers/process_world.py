"""A world whose hosts live in worker processes: the same numbers, several cores."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from esper.leyline import (
    ActionSpec,
    BlueprintCard,
    EpochReport,
    HostsLost,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)
from esper.simic.workers.link import WorkerDied, WorkerLink
from esper.simic.workers.messages import (
    HostFacts,
    HostView,
    Plain,
    action_to_plain,
    facts_from_plain,
    legal_from_plain,
    snapshot_from_plain,
    state_from_plain,
    state_to_plain,
    view_from_plain,
)


class ProcessWorld:
    """`num_hosts` hosts spread over `workers` processes, one torch thread each.

    >>> with ProcessWorld("esper.simic.toy.world:ToyWorld", num_hosts=8, workers=2) as world: ...

    factory  "module:callable" that makes a world of its first argument's number of hosts; it is found by name in
             each worker, and everything that travels is plain data, so nothing here needs one machine
    options  further arguments of the factory

    A worker that dies is started anew. Its hosts are lost: `epoch` and `settle` raise `HostsLost`, after the
    others have done what was asked, until each is begun again. `losses` counts them.
    """

    def __init__(
        self, factory: str, *, num_hosts: int, workers: int, options: Mapping[str, Plain] | None = None
    ) -> None:
        if not 1 <= workers <= num_hosts:
            raise ValueError(f"workers is {workers}; expected 1..{num_hosts}, the number of hosts")
        self._factory, self._options = factory, dict(options or {})
        shares = [len(range(worker, num_hosts, workers)) for worker in range(workers)]
        self._links = [self._start(worker, share) for worker, share in enumerate(shares)]
        self._shares = shares
        self._hosts: list[HostMirror | None] = [None] * num_hosts
        self._lost: set[int] = set()
        self.losses = 0
        """Hosts lost so far."""
        self.restarts = 0
        """Workers started anew so far."""

    # The world

    def begin(self, host_idx: int, case: str, seed: int) -> None:
        self._renew(host_idx, "begin", case, seed)

    def host(self, host_idx: int) -> "HostMirror":
        self._collect(self._worker(host_idx))
        mirror = self._hosts[host_idx]
        if mirror is None:
            raise RuntimeError(f"host {host_idx} has not begun: call begin({host_idx}, case, seed) first")
        return mirror

    def apply(self, host_idx: int, action: ActionSpec) -> None:
        self._send(host_idx, "apply", action_to_plain(action))

    def epoch(self, host_idxs: Sequence[int]) -> None:
        by_worker: dict[int, list[Plain]] = {}
        for host_idx in host_idxs:
            if host_idx not in self._lost:
                by_worker.setdefault(self._worker(host_idx), []).append(self._place(host_idx))
        for worker, places in by_worker.items():  # all at work before anyone is waited for
            self._send_to(worker, "epoch", places)
        for worker in by_worker:
            self._collect(worker)
        self._require_alive(host_idxs)

    def settle(self, host_idx: int, rent: float, *, committed_only: bool) -> None:
        self._send(host_idx, "settle", rent, committed_only)
        self._collect(self._worker(host_idx))
        self._require_alive([host_idx])

    def state_dict(self, host_idx: int) -> dict[str, object]:
        return state_from_plain(self.ask(host_idx, "save"))

    def load_state_dict(self, host_idx: int, state: Mapping[str, object]) -> None:
        self._renew(host_idx, "load", state_to_plain(state))

    # The processes

    @property
    def process_ids(self) -> tuple[int | None, ...]:
        return tuple(link.process.pid for link in self._links)

    def close(self) -> None:
        """Stop the workers. The world cannot be used afterwards."""
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
        return answer

    def _start(self, worker: int, hosts: int) -> WorkerLink:
        return WorkerLink(f"worker {worker}", self._factory, hosts, self._options)

    def _worker(self, host_idx: int) -> int:
        if not 0 <= host_idx < len(self._hosts):
            raise ValueError(f"host_idx is {host_idx}; expected 0..{len(self._hosts) - 1}")
        if not self._links:
            raise RuntimeError("the world was closed: its workers are gone")
        return host_idx % len(self._links)

    def _place(self, host_idx: int) -> int:
        """The host's index in its worker."""
        return host_idx // len(self._links)

    def _renew(self, host_idx: int, verb: str, *arguments: Plain) -> None:
        """Put a host in its place; a worker that dies of old troubles meanwhile is replaced once."""
        worker = self._worker(host_idx)
        for _ in range(2):
            self._lost.discard(host_idx)
            link = self._links[worker]
            self._send(host_idx, verb, *arguments)
            self._collect(worker)
            if self._links[worker] is link:
                return
        raise HostsLost([host_idx], f"worker {worker} died twice while it was to {verb} it")

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
            assert isinstance(answer, list)
            for update in answer:
                assert isinstance(update, list)
                place, view, *facts = update
                assert isinstance(place, int)
                host_idx = place * len(self._links) + worker
                mirror = self._hosts[host_idx]
                if facts:
                    self._hosts[host_idx] = HostMirror(
                        self, host_idx, facts_from_plain(facts[0]), view_from_plain(view)
                    )
                elif mirror is not None:
                    mirror.view = view_from_plain(view)

    def _lose(self, worker: int, death: WorkerDied) -> None:
        link = self._links[worker]
        if not link.answered:
            raise RuntimeError(
                f"{death}: it has never answered, so another would not start either"
            ) from death
        link.stop()
        self._links[worker] = self._start(worker, self._shares[worker])
        self.restarts += 1
        mine = range(worker, len(self._hosts), len(self._links))
        begun = {host_idx for host_idx in mine if self._hosts[host_idx] is not None}
        self.losses += len(begun - self._lost)
        self._lost |= begun

    def _require_alive(self, host_idxs: Sequence[int]) -> None:
        lost = sorted(self._lost & set(host_idxs))
        if lost:
            raise HostsLost(lost, "their worker died")


class HostMirror:
    """A host that lives in a worker, as last reported."""

    __slots__ = ("_facts", "_host_idx", "_world", "view")

    def __init__(self, world: ProcessWorld, host_idx: int, facts: HostFacts, view: HostView) -> None:
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
