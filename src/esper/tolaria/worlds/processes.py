"""A world whose hosts live in worker processes: the same numbers on several cores."""

import contextlib
import os
import pickle
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from esper.leyline import HostSinks
from esper.leyline.errors import EsperError
from esper.tolaria.worlds.remote import PATIENCE_SECONDS, RemoteWorld, WorkerDied, WorkerError, WorkerHung
from esper.tolaria.worlds.worker import (
    GUARD_IT,
    UNGUARDED,
    Answer,
    Request,
    WorldFactory,
    serve,
    worker_context,
)

STOP_SECONDS = 5.0
"""How long a worker may take to stop before it is killed."""
T = TypeVar("T")


class UnguardedScript(EsperError, RuntimeError):
    """A script that starts workers wherever it is imported, which every worker does."""

    def __init__(self) -> None:
        super().__init__(GUARD_IT)


class WorkerLink:
    """One worker process and the connection to it.

    patience  seconds that an answer may take; None waits for ever
    """

    def __init__(
        self, factory: WorldFactory, worker: int, num_hosts: int, *, with_events: bool, patience: float | None
    ) -> None:
        context = worker_context()
        ours, theirs = context.Pipe()
        self.name, self._patience = f"worker {worker}", patience
        arguments = (theirs, factory, num_hosts, with_events, dict(os.environ))
        self.process = context.Process(target=serve, args=arguments, name=self.name, daemon=True)
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
        """End the process, gently if it listens. A first time that was interrupted may be followed by another."""
        self.ask_to_stop()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

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


class ProcessWorld(RemoteWorld[WorkerLink]):
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
        self._answered = False
        """Whether any worker has ever answered: if none has, they may not be able to start at all."""
        start = partial(WorkerLink, factory, with_events=events is not None, patience=timeout)
        super().__init__(start, num_hosts=num_hosts, workers=workers, events=events, timeout=timeout)

    @property
    def process_ids(self) -> tuple[int | None, ...]:
        """Of the workers, in order; empty once the world is closed."""
        return tuple(link.process.pid for link in self._links)

    def _first_to_answer(self, workers: Collection[int]) -> Sequence[int]:
        asked = {self._links[worker]: worker for worker in workers}
        return [asked[link] for link in first_to_answer(asked, self._timeout)]

    def _replace(self, worker: int, death: WorkerDied) -> None:
        """Start another process. The hosts of the one that died are lost."""
        self._answered |= any(each.answered for each in self._links)
        if not self._answered:
            process = self._links[worker].process
            process.join(STOP_SECONDS)
            if process.exitcode == UNGUARDED:
                raise UnguardedScript from None
            raise RuntimeError(
                f"{death}: none of them has ever answered, so another would not start either"
            ) from death
        self._links[worker].stop()
        mine = self._hosts_of(worker)
        self._links[worker] = self._start(worker, len(mine))
        self.restarts += 1
        self._lose(mine, "their worker died")
