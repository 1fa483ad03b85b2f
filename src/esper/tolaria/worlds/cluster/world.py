"""A world whose hosts live in actors of a cluster: the same numbers on many machines, whatever becomes of them."""

import contextlib
import logging
import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import ray
import torch

from esper.leyline import Beginning, HostSinks, HostsLost, HostState, HostStep, WorkDone
from esper.tolaria.worlds import worker as requests
from esper.tolaria.worlds.cluster.actor import ActorLink, DataRefs, History, WrittenData
from esper.tolaria.worlds.cluster.connecting import (
    ClusterError,
    alive_nodes,
    join,
    leave,
    share_of_a_worker,
    workers_by_default,
)
from esper.tolaria.worlds.remote import (
    PATIENCE_SECONDS,
    RemoteWorld,
    WorkerDied,
    WorkerError,
    WorkerHung,
    WorkerLate,
)
from esper.tolaria.worlds.worker import HostRecord, HostView, Request, WorldFactory, numeric_terms

MOST_DEATHS = 3
"""Workers that may die over one request before its hosts are lost: they are what kills them."""
_LOG = logging.getLogger("esper.cluster")
T = TypeVar("T")


class ClusterWorld(RemoteWorld[ActorLink]):
    """`num_hosts` hosts spread over the actors of a Ray cluster, one torch thread each.

    >>> with ClusterWorld(ToyWorld, num_hosts=8, workers=2, cluster="local") as world: ...

    factory  makes the world of each worker; it is pickled by name, so it must be importable on every node
    workers  actors; 0 is one for each CPU (with device "cuda": each GPU), at most one for each host
    cluster  "local" starts one on this machine, "auto" joins the one that it is part of; or HOST:PORT of a head node
    device   where the factory's hosts compute
    events   where what happens to each host is reported; the factory must then take `events` too
    timeout  seconds that an answer may take before the worker counts as hung; None waits for ever
    snapshot_every  steps of a host between two states that are kept of it here, to replay it from; 0 keeps none

    A worker that dies is started anew by Ray on any node with room, and its hosts are made again: begun with the same
    case and rng seed (or restored), and stepped as before, which on the CPU gives the same bits. `replays` counts the
    steps repeated so. A worker that hangs is killed, and its hosts are lost: `step_many` raises `HostsLost` after the
    others have done what was asked; `wait_until` gives up late ones in the same way. One that hangs again before it
    has answered anything raises `WorkerHung`.
    """

    def __init__(
        self,
        factory: WorldFactory,
        *,
        num_hosts: int,
        workers: int = 0,
        cluster: str,
        device: str = "cpu",
        events: HostSinks | None = None,
        timeout: float | None = PATIENCE_SECONDS,
        snapshot_every: int = 0,
    ) -> None:
        self._device, self._snapshot_every = device, snapshot_every
        self._journal = Journal()
        self._unknown: set[int] = set()
        """Hosts that cannot be made again: a step failed, and how far it came is not known."""
        self._absent: set[int] = set()
        """Workers whose hosts must be made again before they are asked for."""
        self.replays = 0
        """Steps of hosts that were done again so far."""
        self._cases: dict[int, str] = {}
        """Host -> the case that it has begun, or is to begin."""
        self._data: dict[str, ray.ObjectRef[WrittenData | None]] = {}
        """Case -> its data, written once for all workers of a node; of cases that hosts have."""
        self._work: defaultdict[str, WorkDone] = defaultdict(WorkDone)
        self._until: float | None = None
        self._links: list[ActorLink] = []
        join(cluster, device=device, cpus=workers)
        self._joined = True
        try:
            nodes = alive_nodes()
            workers = workers or min(num_hosts, workers_by_default(nodes, device))
            share = share_of_a_worker(nodes, device, workers=workers, num_hosts=num_hosts)
            if device != "cpu" and not torch.cuda.is_available():
                raise ClusterError(
                    f"device is {device!r}, and this machine, where the policy computes, has no GPU"
                )
            start = partial(
                ActorLink,
                pickle.dumps(factory),
                with_events=events is not None,
                device=device,
                share=share,
                patience=timeout,
            )
            super().__init__(start, num_hosts=num_hosts, workers=workers, events=events, timeout=timeout)
            for link in self._links:
                self._welcome(link)
        except BaseException:
            self.close()
            raise

    def wait_until(self, moment: float | None) -> None:
        """Let steps wait for no worker beyond this moment of `time.monotonic`: its hosts are lost. None waits."""
        self._until = moment

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones, in all workers at once."""
        self._forget([one.host_idx for one in beginnings])
        self._will_have({one.host_idx: one.case for one in beginnings})
        super().begin_many(beginnings)
        for one in beginnings:
            self._journal.begin(one.host_idx, one)

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""
        self._forget(states)
        self._will_have({index: str(state["case"]) for index, state in states.items() if "case" in state})
        super().restore(states)
        for host_idx, state in states.items():
            self._journal.begin(host_idx, state)

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Step hosts, in all workers at once."""
        stepped = [step.host_idx for step in steps]
        try:
            with (
                self._not_beyond(self._until),
                contextlib.suppress(HostsLost),
            ):  # raised below, with all noted
                super().step_many(steps)
        except WorkerError:
            self._forget(stepped)
            self._unknown.update(stepped)
            raise
        for step in steps:
            if step.host_idx in self._journal:
                self._journal.add(step)
            if step.action is not None and step.host_idx not in self._lost:
                self._work_of(step.host_idx).epochs += 1
        with contextlib.suppress(HostsLost):
            self._keep_states(stepped)
        self._require_alive(stepped)

    def close(self) -> None:
        """Stop the workers, and the cluster if it was started for this. The world cannot be used afterwards."""
        if not self._joined:
            return
        self._joined = False
        try:
            super().close()
        finally:
            leave()

    @property
    def worker_names(self) -> tuple[str, ...]:
        """Of the workers, with the nodes that they are on."""
        return tuple(link.name for link in self._links)

    def take_work(self) -> dict[str, WorkDone]:
        """Worker with its node -> what it did since this was last asked; of those that died there too."""
        taken = {**{name: WorkDone() for name in self.worker_names}, **self._work}
        self._work.clear()
        return taken

    def _work_of(self, host_idx: int) -> WorkDone:
        return self._work[self._links[self._worker(host_idx)].name]

    # Asking

    @contextlib.contextmanager
    def _not_beyond(self, moment: float | None) -> Iterator[None]:
        """Wait for no answer beyond this moment inside."""
        for link in self._links:
            link.until = moment
        try:
            yield
        finally:
            for link in self._links:
                link.until = None

    def _first_to_answer(self, workers: Collection[int]) -> Sequence[int]:
        asked = {self._links[worker].answer_to_come: worker for worker in workers}
        times = [self._links[worker].seconds_left for worker in workers]
        left = min((seconds for seconds in times if seconds is not None), default=None)
        if ray.wait(list(asked), timeout=left)[0]:
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
            return [asked[ref] for ref in ready]
        return [worker for worker in workers if self._links[worker].seconds_left == 0.0]

    def _send(self, worker: int, request: Request[T], host_idxs: Sequence[int]) -> bool:
        """Send a request, and with it the hosts that are not there any more."""
        history: History | None = None
        if worker in self._absent:
            self._absent.remove(worker)
            history = self._history(worker) or None
        if history is not None:
            steps = sum(len(record.steps) for record in history.values())
            self.replays += steps
            self._work[self._links[worker].name].replayed += steps
            _LOG.warning("%s replays %s steps of %s hosts", self._links[worker].name, steps, len(history))
        makes = request.func in (requests.begin, requests.restore)
        making = [*(host_idxs if makes else ()), *(self._hosts_of(worker) if history else ())]
        self._links[worker].send(request, history, self._data_for(worker, making) if making else None)
        return True

    def _will_have(self, cases: Mapping[int, str]) -> None:
        """Note what hosts are to begin; data that no host has any more are let go."""
        self._cases.update(cases)
        used = set(self._cases.values())
        self._data = {case: ref for case, ref in self._data.items() if case in used}

    def _data_for(self, worker: int, host_idxs: Iterable[int]) -> DataRefs:
        """The data of these hosts; a worker that needs some first writes them."""
        wanted = sorted({self._cases[index] for index in host_idxs if index in self._cases})
        for case in wanted:
            if case not in self._data:
                self._data[case] = self._links[worker].write(case)
        return {case: [self._data[case]] for case in wanted}

    def _history(self, worker: int) -> History:
        exact = self._device == "cpu"  # elsewhere sums may come in another order
        return {
            self._place(host_idx): self._journal.record(host_idx, self.host(host_idx).view if exact else None)
            for host_idx in self._hosts_of(worker)
            if host_idx in self._journal
        }

    def _keep_states(self, host_idxs: Sequence[int]) -> None:
        every = self._snapshot_every
        due = [host_idx for host_idx in host_idxs if every and self._journal.steps(host_idx) >= every]
        for host_idx, state in self.snapshot(due).items() if due else ():
            self._journal.begin(host_idx, state)

    # Losing workers

    def _replace(self, worker: int, death: WorkerDied) -> None:
        """Wait until Ray has started the worker anew."""
        link = self._links[worker]
        _LOG.warning("%s", death)
        link.deaths += 1
        self._welcome(link)
        self.restarts += 1
        self._absent.add(worker)
        self._data.clear()  # some may have been lost with it
        gone = self._unknown.intersection(self._hosts_of(worker))
        self._lose(gone, "their worker died after a step that failed")

    def _after_death(self, worker: int, death: WorkerDied, request: Request[T], mine: Sequence[int]) -> bool:
        self._replace(worker, death)
        if self._links[worker].deaths > MOST_DEATHS:
            self._links[worker].deaths = 0
            self._lose(self._hosts_of(worker), f"their workers died {MOST_DEATHS + 1} times over one request")
        return not self._lost.keys() & set(mine) and self._send(worker, request, mine)

    def _give_up(self, worker: int, hang: WorkerHung) -> None:
        """Kill a worker that hangs or is late; the round goes on without its hosts. To hang twice is an error.

        A late one is killed too: its next hosts would wait for what is not needed any more.
        """
        link = self._links[worker]
        link.hangs += not isinstance(hang, WorkerLate)
        if link.hangs > 1:
            raise hang
        _LOG.warning("%s; its hosts are lost", hang)
        link.restart()
        self._lose(self._hosts_of(worker), str(hang))

    def _lose(self, host_idxs: Iterable[int], reason: str) -> None:
        host_idxs = list(host_idxs)
        for host_idx in set(host_idxs) - self._lost.keys():
            self._work_of(host_idx).lost += self._hosts[host_idx] is not None
        super()._lose(host_idxs, reason)
        self._forget(host_idxs)

    def _forget(self, host_idxs: Iterable[int]) -> None:
        """Hosts that are to be replaced."""
        host_idxs = set(host_idxs)
        self._journal.forget(host_idxs)
        self._unknown -= host_idxs

    def _welcome(self, link: ActorLink) -> None:
        """Wait for a worker, and refuse one whose numbers would differ from those of this process."""
        link.introduce()
        ours = numeric_terms(self._device)
        other = [
            f"{name} {link.terms[name]} (here {ours[name]})"
            for name in ours
            if link.terms[name] != ours[name]
        ]
        if other:
            raise ClusterError(
                f"{link.name} would compute other numbers: it has {', '.join(other)}. Install the same versions on "
                "every node; where CPUs differ, set ATEN_CPU_CAPABILITY (such as avx2) for all of them"
            )


class Journal:
    """How each host began, or a state it was saved in, and every step since."""

    def __init__(self) -> None:
        self._origins: dict[int, Beginning | HostState] = {}
        self._steps: dict[int, list[HostStep]] = {}

    def __contains__(self, host_idx: int) -> bool:
        return host_idx in self._origins

    def begin(self, host_idx: int, origin: Beginning | HostState) -> None:
        """Forget what was done to a host before: it is made from this."""
        self._origins[host_idx], self._steps[host_idx] = origin, []

    def add(self, step: HostStep) -> None:
        """One more step of a host."""
        self._steps[step.host_idx].append(step)

    def forget(self, host_idxs: Iterable[int]) -> None:
        """Hosts that cannot, or need not, be made again."""
        for host_idx in host_idxs:
            self._origins.pop(host_idx, None)
            self._steps.pop(host_idx, None)

    def steps(self, host_idx: int) -> int:
        """Steps that a replay of this host would take; of one that cannot be replayed, 0."""
        return len(self._steps.get(host_idx, ()))

    def record(self, host_idx: int, last: HostView | None) -> HostRecord:
        """All that is needed to make a host again, and what it must then be; None where that may differ."""
        return HostRecord(self._origins[host_idx], tuple(self._steps[host_idx]), last)
