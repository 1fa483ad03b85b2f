"""One worker as its world sees it: a process, a connection, and the answers that are still to come."""

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from esper.simic.workers.messages import Plain, pack, unpack
from esper.simic.workers.worker import serve

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
