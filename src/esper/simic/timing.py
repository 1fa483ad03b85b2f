"""Time spent in named parts, time left, peak memory, and stopping on signals between steps."""

import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

QUIET_SECONDS = 5.0
"""How long work in progress goes on before it reports that it does."""


class Stopwatch:
    """Adds up the seconds spent in named parts. A part inside another is "outer/inner", and counted in both.

    >>> watch = Stopwatch()
    >>> with watch.part("collect"):
    ...     with watch.part("hosts"): ...
    >>> watch.seconds["collect/hosts"]

    Work left running on a device counts in the part that waits for it.
    """

    __slots__ = ("_path", "_seconds")

    def __init__(self) -> None:
        self._path = ""
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Part -> seconds so far."""
        return self._seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the seconds spent inside."""
        outer = self._path
        path = self._path = f"{outer}/{name}" if outer else name
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[path] = self._seconds.get(path, 0.0) + time.perf_counter() - began
            self._path = outer

    def add(self, seconds_by_name: Mapping[str, float]) -> None:
        """Count seconds that were measured elsewhere, such as by workers side by side, inside the present part."""
        for name, seconds in seconds_by_name.items():
            path = f"{self._path}/{name}" if self._path else name
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Part -> seconds added to it since `seconds` was `before`, for parts that took any."""
        added = {path: seconds - before.get(path, 0.0) for path, seconds in self._seconds.items()}
        return {path: seconds for path, seconds in added.items() if seconds > 0.0}

    def tree(self) -> str:
        """One line per part, indented under the part it is inside of, with its share of that."""
        lines = []
        for path in sorted(self._seconds):
            outer, _, name = path.rpartition("/")
            seconds, whole = self._seconds[path], self._seconds.get(outer)
            share = f"  {seconds / whole:5.1%}" if whole else ""
            lines.append(f"{'  ' * path.count('/')}{name:20} {seconds:9.2f} s{share}")
        return "\n".join(lines)


def seconds_in(parts: Mapping[str, float], name: str) -> float:
    """Seconds in parts of this name, whatever they are inside of."""
    return sum(seconds for path, seconds in parts.items() if path.rpartition("/")[2] == name)


# Time left: what is shown to someone who waits


class SteadyEstimate:
    """Seconds left as they are shown: half way from what was shown before to what is computed now.

    From one time to the next it grows by a quarter at most, so that nothing that is shown doubles; it falls freely.
    """

    __slots__ = ("_at", "_clock", "_shown")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = 0.0
        self._shown: float | None = None

    def take(self, seconds: float) -> float:
        """What to show for `seconds` computed now; 0 is the end and shown as such."""
        now = self._clock()
        if self._shown is not None and seconds > 0.0:
            expected = max(self._shown - (now - self._at), 0.0)
            steady = min((expected + seconds) / 2, _MOST_GROWTH * self._shown)
            seconds = max(steady, _LEAST_SECONDS)
        self._at, self._shown = now, seconds
        return seconds


_MOST_GROWTH = 1.25
_LEAST_SECONDS = 2.0
"""Shown while there is work, as nothing grows from 0."""


class UnitTimes:
    """How long a unit of work of each kind takes, from those done so far; a new kind takes the mean of all."""

    __slots__ = ("_count", "_seconds")

    def __init__(self) -> None:
        self._seconds: dict[Hashable, float] = {}
        self._count: dict[Hashable, int] = {}

    def add(self, kind: Hashable, seconds: float, units: int = 1) -> None:
        """Count so many units of a kind, which took `seconds` together."""
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
        self._count[kind] = self._count.get(kind, 0) + units

    def of(self, kind: Hashable) -> float | None:
        """Mean seconds of a unit; None before any was done."""
        if kind in self._count:
            return self._seconds[kind] / self._count[kind]
        units = sum(self._count.values())
        return sum(self._seconds.values()) / units if units else None


_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in the system's unit: kibibytes, except on macOS."""


def peak_memory_bytes() -> int:
    """Peak resident memory of this process since it began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


# Stopping when asked to: a signal is noticed between steps, so that nothing is cut in the middle.


CTRL_C = "Ctrl-C"
"""What people know SIGINT by."""


class StopRequest:
    """Whether a stop was requested; `reason` is Ctrl-C, or the name of another signal."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None


@contextmanager
def stop_on_signals(heard: Callable[[], object] = lambda: None) -> Iterator[StopRequest]:
    """Ctrl-C and SIGTERM become a request inside; a second one is an interrupt as always, which names it.

    heard  called at once, whatever goes on, when there is a request
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        name = CTRL_C if number == signal.SIGINT else signal.Signals(number).name
        if request:
            raise KeyboardInterrupt(name)
        request.reason = name
        heard()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
