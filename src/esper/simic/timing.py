"""Where the time goes: a tree of parts, by the CPU's clock."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Stopwatch:
    """Adds up the seconds spent in named parts. A part inside another is "outer/inner", and counted in both.

    >>> watch = Stopwatch()
    >>> with watch.part("collect"):
    ...     with watch.part("hosts"): ...
    >>> watch.seconds["collect/hosts"]

    What is left running on a device is not waited for: it counts where somebody waits for it.
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
        outer = self._path
        path = self._path = f"{outer}/{name}" if outer else name
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[path] = self._seconds.get(path, 0.0) + time.perf_counter() - began
            self._path = outer

    def total(self, name: str) -> float:
        """Seconds in parts of this name, wherever they are."""
        return sum(seconds for path, seconds in self._seconds.items() if path.rpartition("/")[2] == name)

    def tree(self) -> str:
        """A line a part, with its share of what it is in; those inside are set in."""
        lines = []
        for path in sorted(self._seconds):
            outer, _, name = path.rpartition("/")
            seconds, whole = self._seconds[path], self._seconds.get(outer)
            share = f"  {seconds / whole:5.1%}" if whole else ""
            lines.append(f"{'  ' * path.count('/')}{name:20} {seconds:9.2f} s{share}")
        return "\n".join(lines)
