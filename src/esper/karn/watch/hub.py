"""The runs that somebody watches, each read once however many watch it."""

import math
import time
from dataclasses import dataclass, field
from threading import Lock

from pydantic import JsonValue

from esper.karn.watch.episodes import Frame, read_episode
from esper.karn.watch.folder import RunsFolder
from esper.karn.watch.rows import EpisodeRow, real, whole
from esper.karn.watch.state import RunState

COUNTING_SECONDS = 0.3
"""Of each look, to count the seeds of what a long run did before it was opened."""
COUNT_ALL = math.inf
LISTING_SECONDS = 3.0
"""Between two looks at which runs there are."""
FRESH_SECONDS = 0.5
"""A run that was read this lately is not read again."""


@dataclass(slots=True)
class Watched:
    """A run and how it stands."""

    name: str
    state: RunState = field(default_factory=RunState)
    config: dict[str, JsonValue] = field(default_factory=dict)
    standing: str = "unknown"
    """running, finished, interrupted, failed, crashed, or gone."""
    read_at: float = 0.0

    @property
    def planned_rounds(self) -> int | None:
        return whole(self.config.get("rounds"))

    @property
    def target_kl(self) -> float | None:
        return real(self.config.get("target_kl"))


class Hub:
    """Reads runs of one folder for any number of pages. Its methods may be called from any thread."""

    def __init__(self, folder: RunsFolder, *, counting_seconds: float = COUNTING_SECONDS) -> None:
        self.folder, self._counting_seconds = folder, counting_seconds
        self._watched: dict[str, Watched] = {}
        self._names: list[str] = []
        self._listed_at = 0.0
        self._lock = Lock()

    def names(self) -> list[str]:
        """The runs that are there, the one written last first."""
        with self._lock:
            now = time.monotonic()
            if not self._names or now - self._listed_at > LISTING_SECONDS:
                self._names, self._listed_at = self.folder.names(), now
            return list(self._names)

    def look(self, name: str) -> Watched:
        """A run as it is now. One that is gone keeps what was known of it."""
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                watched = Watched(name)
                if self.folder.holds(name):  # what was never there is not remembered
                    self._watched[name] = watched
            if time.monotonic() - watched.read_at >= FRESH_SECONDS:
                self._read(watched)
                watched.read_at = time.monotonic()
            return watched

    def episode(self, name: str, row: EpisodeRow) -> list[Frame]:
        with self._lock:
            watched = self._watched.get(name)
            file = None if watched is None else self.folder.open_events(name)
            if watched is None or file is None:
                return []
            with file:
                return read_episode(watched.state, file, row)

    def _read(self, watched: Watched) -> None:
        # Asked first: a run that ends meanwhile is then read to its end, and not called crashed.
        running = self.folder.is_being_written(watched.name)
        # Read anew each time: a run that goes on may have been given more rounds, or another its name.
        watched.config = self.folder.config(watched.name) or watched.config
        file = self.folder.open_events(watched.name)
        if file is not None:
            with file:
                watched.state.read(file)
                watched.state.count_seeds(file, self._counting_seconds)
        standing = self._standing(watched, running, there=file is not None)
        if standing != watched.standing:
            watched.standing = standing
            watched.state.version += 1

    def _standing(self, watched: Watched, running: bool, *, there: bool) -> str:
        if running:
            return "running"
        if not there:
            return "not begun" if self.folder.holds(watched.name) else "gone"
        finished = watched.state.finished
        return "crashed" if finished is None else finished.status
