"""Running a plan: every arm on every host, here or over worker processes, with the rows kept chunk by chunk."""

import math
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from esper.benchmark.arms import Arm, Group, Hosts
from esper.benchmark.planning import BenchPlan
from esper.benchmark.playing import EpisodeFile, play_chunk, play_recorded
from esper.benchmark.rows import BenchRow, RowStore
from esper.leyline.files import write_bytes
from esper.simic.timing import QUIET_SECONDS, SteadyEstimate, UnitTimes, stop_on_signals
from esper.tolaria.worlds.cluster.connecting import require_cluster
from esper.tolaria.worlds.worker import take_environment, worker_context

SIDE_BY_SIDE = 8
"""Hosts of one chunk. They share their data; a kill costs at most the chunks that are being played."""
LOST_PROCESS = "its process died; what it said last is on stderr"
ATTEMPTS = 3
"""Times that a chunk is played before its episodes are given up."""
Chunk = tuple[Arm, Hosts]
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """How far a benchmark is."""

    done: int
    """Episodes played, in earlier calls too."""
    total: int
    """Episodes of the plan."""
    seconds: float
    """Seconds since this call began."""
    seconds_left: float | None
    """An estimate, by how long each arm takes; None before anything was played. It never doubles."""
    latest: Group | None
    """(arm, member, instance) of the chunk that has just been finished; None where none was for a while."""
    stopping: bool = False
    """Whether a signal has just asked for an end; the chunks that are being played are still finished."""


def run_bench(
    plan: BenchPlan,
    store: RowStore,
    *,
    workers: int = 0,
    cluster: str | None = None,
    minutes: float = math.inf,
    episodes: Path | None = None,
    progress: Callable[[BenchProgress], None] = lambda _: None,
) -> str | None:
    """Play what is not in the store yet. Returns what stopped it (a signal, the clock, lost episodes), or None.

    workers   processes to play in; 0 plays in this one, or on a cluster in as many as it has CPUs
    cluster   a Ray cluster to play on: "local" starts one, "auto" joins that of this machine; or HOST:PORT
    minutes   no chunk is begun after so long
    episodes  a folder to keep every episode in that is played now, as a data set; None keeps none
    progress  called at the start, after each chunk, where processes play on for `QUIET_SECONDS`, and when a signal
              asks for an end

    A chunk that fails, or whose process dies, is played again, `ATTEMPTS` times in all; then its episodes are lost,
    and the others are played. After a first signal the chunks that are being played are finished and kept; a second
    one interrupts, and ends the processes.
    """
    work, began = _Work(plan, store), time.monotonic()
    reported, shown = began, SteadyEstimate()
    progress(BenchProgress(plan.episodes - work.episodes, plan.episodes, 0.0, None, None))

    def heard() -> None:
        done, seconds = plan.episodes - work.episodes, time.monotonic() - began
        progress(BenchProgress(done, plan.episodes, seconds, None, None, stopping=True))

    with stop_on_signals(heard) as stop:

        def may_begin() -> bool:
            return not stop and time.monotonic() - began < 60 * minutes

        def report(latest: Group | None) -> None:
            nonlocal reported
            reported = time.monotonic()
            seconds_left = work.seconds_left()
            if seconds_left is not None:
                seconds_left = shown.take(seconds_left)
            done = plan.episodes - work.episodes
            progress(BenchProgress(done, plan.episodes, reported - began, seconds_left, latest))

        def keep(chunk: Chunk, played: Played) -> None:
            arm, hosts = chunk
            # before the rows: what has rows is not played again
            if episodes is not None and played.file is not None:
                write_bytes(episodes / played.file.name, played.file.content)
            store.append(played.rows)
            work.keep(chunk, played)
            report((arm.name, hosts.member, hosts.instance))

        def poll() -> None:
            if not stop and time.monotonic() - reported >= QUIET_SECONDS:
                report(None)

        barren = 0  # executors in a row that died before anything was played
        while work.queue and may_begin() and barren < ATTEMPTS:
            before = work.episodes
            with _executor(workers, cluster, plan.device) as (executor, at_once):
                if not _play(work, executor, at_once, may_begin, keep, poll, record=episodes is not None):
                    break
            barren = barren + 1 if work.episodes == before else 0
        stopped = stop.reason or work.losses() or ("the clock" if work.queue else None)
    if stopped is None:
        store.compact()
    return stopped


def _play(
    work: "_Work",
    executor: Executor,
    at_once: int,
    may_begin: Callable[[], bool],
    keep: Callable[[Chunk, "Played"], None],
    poll: Callable[[], None],
    *,
    record: bool,
) -> bool:
    """Play until nothing is left or nothing may begin. Returns whether another executor is needed: a process died.

    keep    called with each chunk and what was played
    poll    called while there is none
    """
    running: dict[Future[Played], Chunk] = {}
    died = False
    work.at_once = at_once
    while running or (work.queue and may_begin() and not died):
        while not died and may_begin() and len(running) < at_once and (chunk := work.take()) is not None:
            try:
                running[executor.submit(_played, *chunk, record)] = chunk
            except BrokenExecutor:
                died = True
                work.put_back(chunk)
        if not running:
            return died  # what is left needs what was lost
        finished, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        if not finished:
            poll()
        for future in finished:
            chunk = running.pop(future)
            try:
                played = future.result()
            except BrokenExecutor:  # killed, as a rule by the system for want of memory
                died = True
                work.put_back(chunk, LOST_PROCESS)
            except Exception as error:
                work.put_back(chunk, f"{type(error).__name__}: {error}")
            else:
                keep(chunk, played)
    return died


@dataclass(frozen=True, slots=True)
class Played:
    """A chunk that was played."""

    rows: list[BenchRow]
    file: EpisodeFile | None
    """Its episodes, if they are recorded."""
    seconds: float
    """From its first epoch to its last, where it was played."""


def _played(arm: Arm, hosts: Hosts, record: bool) -> Played:
    began = time.monotonic()
    rows, file = play_recorded(arm, hosts) if record else (play_chunk(arm, hosts), None)
    return Played(rows, file, time.monotonic() - began)


class _Work:
    """The rows that there are, and the chunks that are not begun."""

    def __init__(self, plan: BenchPlan, store: RowStore) -> None:
        self._instances = plan.suite.instances
        self._rows: dict[Group, dict[int, BenchRow]] = defaultdict(dict)
        self.add(store.read())
        self.queue: list[Chunk] = []
        self._failures: dict[object, list[str]] = defaultdict(list)
        self._lost: list[tuple[Chunk, str]] = []
        for group, arm in plan.groups():
            _, member, instance = group
            seeds = [seed for seed in plan.all_seeds if seed not in self._rows[group]]
            for start in range(0, len(seeds), SIDE_BY_SIDE):
                chosen = tuple(seeds[start : start + SIDE_BY_SIDE])
                hosts = Hosts(plan.suite.name, instance, chosen, member=member, device=plan.device)
                self.queue.append((arm, hosts))
        self.episodes = sum(len(hosts.seeds) for _, hosts in self.queue)
        """Episodes that are not in the store."""
        self.at_once = 1
        """Chunks that are played side by side."""
        self._times, self._kept_at = UnitTimes(), time.monotonic()
        self._left = Counter[str]()
        """Arm that trains hosts -> episodes that are not in the store."""
        for arm, hosts in self.queue:
            self._left[arm.name] += arm.trains * len(hosts.seeds)

    def keep(self, chunk: Chunk, played: "Played") -> None:
        """Count a chunk that was played."""
        arm, _ = chunk
        self._kept_at = time.monotonic()
        self.add(played.rows)
        self.episodes -= len(played.rows)
        if arm.trains:
            self._left[arm.name] -= len(played.rows)
            self._times.add(arm.name, played.seconds, len(played.rows))

    def seconds_left(self) -> float | None:
        """By how long episodes of each arm took; None before any was played."""
        if not self.episodes:
            return 0.0
        times = {name: self._times.of(name) for name in self._left}
        known = [each * self._left[name] for name, each in times.items() if each is not None]
        if len(known) < len(times):
            return None
        seconds = sum(known) / self.at_once
        return max(seconds - (time.monotonic() - self._kept_at), seconds / 10)

    def add(self, rows: Iterable[BenchRow]) -> None:
        for row in rows:
            self._rows[row.arm, row.member, row.instance][row.seed] = row

    def put_back(self, chunk: Chunk, failure: str | None = None) -> None:
        """Take a chunk back that was not played; after too many failures it is lost."""
        arm, hosts = chunk
        attempts = self._failures[arm.name, hosts.member, hosts.instance, hosts.seeds]
        if failure is not None:
            attempts.append(failure)
        if len(attempts) < ATTEMPTS:
            self.queue.insert(0, chunk)
        else:
            self._lost.append((chunk, attempts[-1]))

    def losses(self) -> str | None:
        """What to say of episodes that could not be played; None if there are none."""
        if not self._lost:
            return None
        (arm, hosts), cause = self._lost[0]
        episodes = sum(len(lost.seeds) for (_, lost), _ in self._lost)
        return f"{episodes} lost episodes, the first by {arm.name} on {hosts.instance} ({cause})"

    def take(self) -> Chunk | None:
        """Take the first chunk out of the queue whose needs are met, with the rows that it needs."""
        for place, (arm, hosts) in enumerate(self.queue):
            needs = arm.needs(hosts.instance, self._instances)
            if all(self._rows[need].keys() >= set(hosts.seeds) for need in needs):
                del self.queue[place]
                known = {need: [self._rows[need][seed] for seed in hosts.seeds] for need in needs}
                return arm, replace(hosts, known=known)
        return None


@contextmanager
def _executor(workers: int, cluster: str | None, device: str) -> Iterator[tuple[Executor, int]]:
    """What plays chunks, and how many at once."""
    if cluster is not None:
        require_cluster(cluster, device)
        from esper.tolaria.worlds.cluster.executor import cluster_executor

        with cluster_executor(cluster, workers=workers, device=device) as spread:
            yield spread, spread.workers
        return
    if workers == 0:
        yield _Here(), 1
        return
    environment = dict(os.environ)
    with ProcessPoolExecutor(workers, worker_context(), _prepare_process, (environment,)) as pool:
        try:
            yield pool, workers
        except KeyboardInterrupt:
            for process in list(
                (pool._processes or {}).values()
            ):  # they heed no signal, and may play for long
                process.kill()
            raise


class _Here(Executor):
    """Plays in this process, at once."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def _prepare_process(environment: Mapping[str, str]) -> None:
    """One thread, as hosts are small. Signals are left to the process that keeps the rows, so that chunks finish."""
    take_environment(environment)
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
