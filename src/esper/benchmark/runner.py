"""Running a benchmark: every arm on every host, over processes, kept chunk by chunk."""

import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from esper.benchmark.arms import WAIT, Arm, Group
from esper.benchmark.playing import Chunk, play_chunk
from esper.benchmark.rows import BenchRow, RowStore
from esper.benchmark.suites import BenchSuite
from esper.leyline.errors import EsperError
from esper.simic.timing import StopRequest, stop_on_signals

SIDE_BY_SIDE = 8
"""Hosts of one chunk: they share their data, and a chunk is what a kill can cost."""
_LOOK_EVERY = 0.5
LOST_PROCESS = "the loss of a process"


class PlanError(EsperError, ValueError):
    """A benchmark that cannot be run as asked."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What is to be played."""

    suite: BenchSuite
    arms: tuple[Arm, ...]
    """In an order in which each comes after those it needs; `wait` is the first."""
    seeds: int
    reference: str
    treatments: tuple[str, ...]
    device: str = "cpu"
    first_seed: int = 0

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise PlanError(f"an arm is named twice in {', '.join(names)}")
        if not names or names[0] != WAIT:
            raise PlanError(
                f"the first arm is {names[:1]}; expected {WAIT}, which every other is compared with"
            )
        if self.seeds < 1:
            raise PlanError(f"seeds is {self.seeds}; expected >= 1")
        for name in (self.reference, *self.treatments):
            if name not in names:
                raise PlanError(f"no arm is named {name!r}; the arms are {', '.join(names)}")
        for place, arm in enumerate(self.arms):
            needs = arm.needs(0, self.suite.instances[0], self.suite.instances)
            late = [name for name, _, _ in needs if name not in names[:place]]
            if late:
                raise PlanError(f"arm {arm.name} needs {late[0]} before it; the arms are {', '.join(names)}")

    @property
    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def episodes(self) -> int:
        return len(self.suite.instances) * self.seeds * sum(arm.members for arm in self.arms)

    def groups(self) -> Iterator[tuple[Group, Arm]]:
        for arm in self.arms:
            for member in range(arm.members):
                for instance in self.suite.instances:
                    yield (arm.name, member, instance), arm


@dataclass(frozen=True, slots=True)
class BenchProgress:
    done: int
    total: int
    seconds: float
    seconds_left: float | None
    """None before anything was played."""
    latest: Group | None


@dataclass(slots=True)
class _Ledger:
    """Which rows there are."""

    rows: dict[Group, dict[int, BenchRow]] = field(default_factory=dict)

    def add(self, row: BenchRow) -> None:
        self.rows.setdefault((row.arm, row.member, row.instance), {})[row.seed] = row

    def missing(self, group: Group, seeds: Iterable[int]) -> tuple[int, ...]:
        known = self.rows.get(group, {})
        return tuple(seed for seed in seeds if seed not in known)

    def of(self, group: Group, seeds: tuple[int, ...]) -> list[BenchRow]:
        return [self.rows[group][seed] for seed in seeds]


def run_bench(
    plan: BenchPlan,
    store: RowStore,
    *,
    processes: int = 1,
    minutes: float = math.inf,
    tell: Callable[[BenchProgress], None] = lambda _: None,
) -> str | None:
    """Play what is not in the store yet; returns what stopped it (a signal, the clock, a lost process), or None.

    minutes  no chunk is begun after so long

    After a first signal the chunks that are being played are finished and kept; a second one interrupts.
    """
    ledger = _Ledger()
    for row in store.read():
        ledger.add(row)
    queue = [
        (group, arm, seeds[start : start + SIDE_BY_SIDE])
        for group, arm in plan.groups()
        for seeds in (ledger.missing(group, plan.all_seeds),)
        for start in range(0, len(seeds), SIDE_BY_SIDE)
    ]
    with stop_on_signals() as stop, _executor(processes) as executor:
        try:
            left = _play_all(plan, store, ledger, queue, executor, processes, 60 * minutes, stop, tell)
            stopped = stop.reason or ("the clock" if left else None)
        except BrokenProcessPool:  # killed, by the system for want of memory as a rule
            stopped = LOST_PROCESS
    if stopped is None:
        store.compact()
    return stopped


_Queue = list[tuple[Group, Arm, tuple[int, ...]]]


def _play_all(
    plan: BenchPlan,
    store: RowStore,
    ledger: _Ledger,
    queue: _Queue,
    executor: Executor,
    processes: int,
    seconds: float,
    stop: StopRequest,
    tell: Callable[[BenchProgress], None],
) -> int:
    """Returns how many chunks were not begun."""
    began, left = time.monotonic(), sum(len(seeds) for _, _, seeds in queue)
    played, running = 0, dict[Future[list[BenchRow]], Group]()
    tell(BenchProgress(plan.episodes - left, plan.episodes, 0.0, None, None))
    while running or (queue and not stop and time.monotonic() - began < seconds):
        while not stop and len(running) < processes and time.monotonic() - began < seconds:
            chunk = _next_ready(plan, ledger, queue)
            if chunk is None:
                break
            running[executor.submit(play_chunk, chunk)] = chunk.group
        finished, _ = wait(running, timeout=_LOOK_EVERY, return_when=FIRST_COMPLETED)
        for future in finished:
            group, rows = running.pop(future), future.result()
            store.append(rows)
            for row in rows:
                ledger.add(row)
            played += len(rows)
            elapsed = time.monotonic() - began
            still = elapsed / played * (left - played)
            tell(BenchProgress(plan.episodes - left + played, plan.episodes, elapsed, still, group))
    return len(queue)


def _next_ready(plan: BenchPlan, ledger: _Ledger, queue: _Queue) -> Chunk | None:
    """Take the first chunk out of the queue whose needs are met."""
    for place, (group, arm, seeds) in enumerate(queue):
        _, member, instance = group
        needs = arm.needs(member, instance, plan.suite.instances)
        if any(ledger.missing(need, seeds) for need in needs):
            continue
        del queue[place]
        known = {need: ledger.of(need, seeds) for need in needs}
        return Chunk(plan.suite.name, instance, arm, member, seeds, known, plan.device)
    return None


@contextmanager
def _executor(processes: int) -> Iterator[Executor]:
    if processes <= 1:
        yield _Here()
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, initializer=_prepare_process) as pool:
        yield pool


class _Here(Executor):
    """Plays in this process, at once."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def _prepare_process() -> None:
    """Hosts are small: one thread. To stop is for the process that keeps the rows: it lets chunks be finished."""
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
