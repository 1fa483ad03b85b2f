"""One worker as its world sees it: a process, a connection, and the answers that are still to come."""

import contextlib
import multiprocessing
from collections import deque
from multiprocessing.connection import Connection

from esper.simic.workers.messages import Plain, pack, unpack
from esper.simic.workers.worker import serve

STOP_SECONDS = 5.0
"""How long a worker may take to stop before it is killed."""


class WorkerDied(RuntimeError):
    """The process is gone, and its hosts with it."""


class WorkerError(RuntimeError):
    """A worker could not do what it was asked; it goes on."""


class WorkerLink:
    """Sends requests without waiting; `answers` collects what came of them, in order."""

    __slots__ = ("_connection", "_pending", "answered", "name", "process")

    def __init__(self, name: str, factory: str, num_hosts: int, options: dict[str, Plain]) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads is not safe
        ours, theirs = context.Pipe()
        self.name = name
        self.process = context.Process(
            target=serve, args=(theirs, factory, num_hosts, options), name=name, daemon=True
        )
        self.process.start()
        theirs.close()  # so that its death is seen as the end of the stream
        self._connection: Connection = ours
        self._pending: deque[str] = deque()
        self.answered = False
        """Whether it has ever answered: one that has not may not be able to start at all."""

    def send(self, *request: Plain) -> None:
        try:
            self._connection.send_bytes(pack(list(request)))
        except OSError as error:
            raise WorkerDied(f"{self.name} is gone ({error})") from error
        self._pending.append(str(request[0]))

    def answers(self) -> list[Plain]:
        """What all requests so far came to; an error is raised after the others have been read."""
        collected: list[Plain] = []
        failures: list[str] = []
        while self._pending:
            try:
                answer = unpack(self._connection.recv_bytes())
            except (EOFError, OSError) as error:
                raise WorkerDied(f"{self.name} died (exit code {self._exit_code()})") from error
            verb = self._pending.popleft()
            self.answered = True
            assert isinstance(answer, list)
            if answer[0] == "done":
                collected.append(answer[1])
            else:
                failures.append(f"{verb}: {answer[1]}: {answer[2]}")
        if failures:
            raise WorkerError(f"{self.name} could not {'; '.join(failures)}")
        return collected

    def stop(self) -> None:
        """End the process, gently if it listens."""
        with contextlib.suppress(OSError):  # it may be gone already
            self._connection.send_bytes(pack(["stop"]))
        self._connection.close()
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def _exit_code(self) -> int | None:
        self.process.join(STOP_SECONDS)
        return self.process.exitcode
