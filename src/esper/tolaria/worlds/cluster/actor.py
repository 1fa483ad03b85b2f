"""A worker as an actor: it owns some hosts on one device and answers requests about them.

Data of task instances lie in a node's object store: one copy a node, which all of its workers read. The worker that
needs an instance first writes its data there, and Ray brings them to each other node once. A sealed test split is
never written.
"""

import logging
import pickle
import signal
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
)

from esper.leyline import HostLog
from esper.tolaria.data import Phase, SealedTest, Split, TaskData
from esper.tolaria.data.splits import SealedElsewhere
from esper.tolaria.tasks import Instance, all_tasks
from esper.tolaria.tasks.instance import give
from esper.tolaria.worlds.cluster.connecting import ClusterError, Share
from esper.tolaria.worlds.remote import WorkerDied, WorkerError, WorkerHung, WorkerLate
from esper.tolaria.worlds.worker import (
    Answer,
    HostRecord,
    Request,
    WorldFactory,
    answer,
    numeric_terms,
    replay,
)

DATA_PATIENCE_SECONDS = 120.0
"""How long a worker waits for data that another one writes, before it loads them for itself."""
_LOG = logging.getLogger("esper.cluster")
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class WrittenData:
    """The data of an instance as arrays, which Ray keeps outside of Python and maps into every process."""

    splits: tuple[tuple[Array, Array], ...]
    """Inputs and targets of each training or validation split."""
    phases: tuple[tuple[int, int, int, bool], ...]
    """Start epoch, numbers of the training and of the validation split, whether the phase has a test of its own."""
    classes: int


def write_data(case: str) -> WrittenData | None:
    """The data of a case; None if it is no task's, or cannot be loaded, which its beginning will report."""
    if case.partition(":")[0] not in {row.name for row in all_tasks()}:
        return None
    try:
        data = Instance.parse(case).load()
    except Exception:  # raised again where the host is begun
        return None
    splits = [split for phase in data.phases for split in (phase.train, phase.validation)]
    distinct = list({id(split): split for split in splits}.values())  # a state of a stream may return
    number = {id(split): place for place, split in enumerate(distinct)}
    return WrittenData(
        tuple((split.inputs.numpy(), split.targets.numpy()) for split in distinct),
        tuple(
            (each.start_epoch, number[id(each.train)], number[id(each.validation)], each.test is not None)
            for each in data.phases
        ),
        data.classes,
    )


def read_data(case: str, written: WrittenData) -> TaskData:
    """The same data without a copy; test splits are loaded when they are opened."""
    instance = Instance.parse(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes into data
        splits = [Split(torch.from_numpy(x), torch.from_numpy(y)) for x, y in written.splits]
    phases = tuple(
        Phase(start, splits[train], splits[validation], _sealed(instance, place) if tested else None)
        for place, (start, train, validation, tested) in enumerate(written.phases)
    )
    return TaskData(phases, _sealed(instance, None), written.classes)


def take_data(refs: "Mapping[str, list[ray.ObjectRef[WrittenData | None]]]") -> None:
    """Use these data in this process, case by case; what cannot be had it will load for itself."""
    taken = {}
    for case, (ref,) in refs.items():
        try:
            written = ray.get(ref, timeout=DATA_PATIENCE_SECONDS)
        except RayError as error:  # its writer died, or there is no room; GetTimeoutError is one too
            _LOG.warning("the data of %s are loaded by this worker too: %s", case, type(error).__name__)
            continue
        if written is not None:
            taken[Instance.parse(case)] = read_data(case, written)
    give(taken)


def _sealed(instance: Instance, phase: int | None) -> SealedTest:
    return SealedElsewhere(partial(_load_test, instance, phase))


def _load_test(instance: Instance, phase: int | None) -> SealedTest:
    data = instance.load_anew()
    test = data.test if phase is None else data.phases[phase].test
    assert test is not None
    return test


START_SECONDS = 300.0
"""How long a worker may take to find a place and to start there."""
_POLL_SECONDS = 0.2
T = TypeVar("T")
DataRefs = dict[str, "list[ray.ObjectRef[WrittenData | None]]"]
"""Case -> its data to come, in a list so that Ray does not wait for them before the request is begun."""
History = dict[int, HostRecord]
"""Index of a host in its worker -> how to make it again."""


class Introduction(NamedTuple):
    """Who a worker is. One that died and was started anew is another."""

    incarnation: str
    node: str
    terms: dict[str, str]
    """What the last bits of its numbers depend on."""


class HostActor:
    """Some hosts of a world, in a process of its own on some node. They depend on what it was asked alone."""

    def __init__(self, factory: bytes, num_hosts: int, with_events: bool, device: str) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner to handle
        torch.set_num_threads(1)
        make: WorldFactory = pickle.loads(factory)
        self._log = HostLog()
        self._world = make(num_hosts, events=self._log.sink) if with_events else make(num_hosts)
        node = ray.get_runtime_context().get_node_id()[:6]
        where = f"{ray.util.get_node_ip_address()} ({node})"  # type: ignore[no-untyped-call]
        self._introduction = Introduction(uuid4().hex, where, numeric_terms(device))

    def introduce(self) -> Introduction:
        """Who this is."""
        return self._introduction

    def write(self, case: str) -> WrittenData | None:
        """The data of a case, for the object store of this node."""
        return write_data(case)

    def ask(
        self, incarnation: str, message: bytes, history: bytes | None, data: DataRefs | None
    ) -> bytes | None:
        """Do what is asked; None if it was meant for an earlier incarnation, whose hosts are not here.

        history  how to make hosts again first, of which nobody is to hear
        data     where the data of hosts that are to be made are written
        """
        if incarnation != self._introduction.incarnation:
            return None
        if data is not None:
            take_data(data)
        if history is not None:
            made = answer(self._world, pickle.loads(history), self._log)
            if made.error is not None:
                return pickle.dumps(made._replace(events=[]))
        reply = answer(self._world, pickle.loads(message), self._log)
        try:
            return pickle.dumps(reply)
        except Exception as error:  # the result of a call can be anything
            return pickle.dumps(Answer([], reply.events, f"{type(error).__name__}: {error}"))


class ActorLink:
    """One actor and the way to it.

    patience  seconds that an answer may take; None waits for ever
    """

    def __init__(
        self,
        factory: bytes,
        worker: int,
        num_hosts: int,
        *,
        with_events: bool,
        device: str,
        share: Share,
        patience: float | None,
    ) -> None:
        self._number, self.name, self._patience = worker, f"worker {worker}", patience
        self.until: float | None = None
        """Moment of `time.monotonic` beyond which no answer is waited for; None: as long as patience lasts."""
        # Ray starts a dead one anew, without its hosts, and never repeats a request: replaying is for us to do.
        actor: Any = ray.remote(HostActor).options(
            **share.options(), max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._actor: ActorHandle[Any] = actor.remote(factory, num_hosts, with_events, device)
        self._share, self._incarnation = share, ""
        self.terms: dict[str, str] = {}
        self._pending: deque[tuple[str, ray.ObjectRef[bytes | None], float]] = deque()
        """Of requests whose answers have not been read: name, answer to come, when it was asked."""
        self.answered = False
        """Whether it has ever answered."""
        self.deaths = self.hangs = 0
        """Since it last answered."""

    def introduce(self) -> None:
        """Wait until the actor lives (again), wherever Ray has put it."""
        deadline, who = time.monotonic() + START_SECONDS, None
        while who is None:
            ref: ray.ObjectRef[Introduction] = self._actor.introduce.remote()
            left = deadline - time.monotonic()
            if left <= 0.0 or not ray.wait([ref], timeout=left)[0]:
                raise ClusterError(
                    f"{self.name} has had no place for {START_SECONDS:g} seconds. It needs {self._share}: add a node "
                    "with `ray start --address=HOST:PORT`, or use fewer workers (`ray status` shows what is in use)"
                )
            try:
                who = ray.get(ref)
            except ActorDiedError as error:  # its constructor failed: another try would fail too
                raise ClusterError(f"{self.name} cannot start: {_last_line(error)}") from error
            except RayActorError:  # it is being started
                time.sleep(_POLL_SECONDS)
        assert isinstance(who, Introduction)
        self._incarnation, self.terms = who.incarnation, who.terms
        self.name = f"worker {self._number} on {who.node}"
        self._pending.clear()

    def write(self, case: str) -> "ray.ObjectRef[WrittenData | None]":
        """The data of a case, to come; they stay in the object store of the worker's node while this is held."""
        ref: ray.ObjectRef[WrittenData | None] = self._actor.write.remote(case)
        return ref

    def send(self, request: Request[T], history: History | None = None, data: DataRefs | None = None) -> None:
        """Send a request without waiting for its answer, and the hosts that must be made again first.

        data  where the data of the hosts that it makes are
        """
        made = None if history is None else pickle.dumps(partial(replay, history))
        ref: ray.ObjectRef[bytes | None] = self._actor.ask.remote(
            self._incarnation, pickle.dumps(request), made, data
        )
        self._pending.append((request.func.__name__, ref, time.monotonic()))

    @property
    def answer_to_come(self) -> "ray.ObjectRef[bytes | None]":
        """Of the latest request."""
        return self._pending[-1][1]

    @property
    def seconds_left(self) -> float | None:
        """Until the worker counts as late or hung; None if it never does."""
        hung = None if self._patience is None else self._pending[-1][2] + self._patience
        ends = [moment for moment in (hung, self.until) if moment is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def receive(self) -> Answer:
        """The answer to the latest request; answers to earlier ones are not needed any more and dropped."""
        name, ref, _ = self._pending[-1]
        if not ray.wait([ref], timeout=self.seconds_left)[0]:
            if self.until is not None and time.monotonic() >= self.until:
                raise WorkerLate(f"{self.name} had not answered {name!r} at the deadline of the round")
            raise WorkerHung(
                f"{self.name} has not answered {name!r} for {self._patience:g} seconds: it hangs, or worker_timeout "
                "is too short for what it was asked"
            )
        self._pending.clear()
        message = self._fetch(ref)
        if message is None:
            raise WorkerDied(f"{self.name} died and was started anew")
        self.answered, self.deaths, self.hangs = True, 0, 0
        reply: Answer = pickle.loads(message)
        if reply.error is not None:
            raise WorkerError(f"{self.name} could not {name}: {reply.error}")
        return reply

    def _fetch(self, ref: "ray.ObjectRef[bytes | None]") -> bytes | None:
        try:
            message: bytes | None = ray.get(ref)
        except (RayActorError, ObjectLostError) as error:  # an answer can be lost with its node
            raise WorkerDied(f"{self.name} died: {_last_line(error)}") from error
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise full_store(self.name, error) from error
        except RayError as error:
            if any(kind.__name__ in str(error) for kind in (ObjectStoreFullError, OutOfDiskError)):
                raise full_store(self.name, error) from error
            raise ClusterError(f"{self.name}: {type(error).__name__}: {_last_line(error)}") from error
        return message

    def restart(self) -> None:
        """Kill the process, whatever it does; Ray starts the actor anew."""
        self._pending.clear()
        ray.kill(self._actor, no_restart=False)

    def ask_to_stop(self) -> None:
        """End the actor, without waiting for it; without a connection it has ended."""
        if ray.is_initialized():
            ray.kill(self._actor, no_restart=True)

    def stop(self) -> None:
        """Nothing is left to do: Ray sees to the end of a killed actor."""


def full_store(where: str, error: Exception) -> ClusterError:
    """The error for an object store that takes no more."""
    return ClusterError(
        f"{where}: the object store of a node is full ({type(error).__name__}): start nodes with more "
        "(`ray start --object-store-memory=BYTES`) or room on their disks, or give each worker fewer hosts"
    )


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
