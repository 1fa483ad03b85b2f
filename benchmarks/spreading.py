"""Jobs of a study over processes, until the time is up."""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from esper.simic.env.making import use_one_thread

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """One arm on some hosts, side by side in one process."""

    arm: str
    """A choice of the oracle, or the words of a rival."""
    hosts: tuple[tuple[str, int], ...]
    """(case, rng seed)"""
    device: str
    epochs: int


class Spread(Generic[Result]):
    """Plays jobs in processes of one thread each, the first ones first.

    play     what a job comes to; a function of a module, where there are processes
    workers  processes; 0 is this one
    seconds  from now on; after these nothing new is begun
    """

    def __init__(self, play: Callable[[Job], list[Result]], workers: int, seconds: float) -> None:
        self._play, self._workers = play, workers
        self._until = time.monotonic() + seconds
        context = multiprocessing.get_context("spawn")
        self._pool = (
            ProcessPoolExecutor(workers, mp_context=context, initializer=use_one_thread) if workers else None
        )
        self.left_out = 0
        """Jobs that were not begun."""

    def results(self, jobs: Iterable[Job], what: str) -> list[Result]:
        """Of all jobs that could be begun in time."""
        queue, found, began = list(jobs), list[Result](), time.monotonic()
        total, running = len(queue), set[Future[list[Result]]]()
        while queue or running:
            while queue and len(running) < max(self._workers, 1) and time.monotonic() < self._until:
                job = queue.pop(0)
                if self._pool is None:
                    found += self._play(job)
                else:
                    running.add(self._pool.submit(self._play, job))
            if queue and time.monotonic() >= self._until:
                self.left_out += len(queue)
                queue = []
            if running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    found += future.result()
        seconds = time.monotonic() - began
        print(f"{what}: {len(found)} lives of {total} jobs in {seconds:.0f} s", flush=True)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
