"""The runs of one folder as the watcher sees them: their files, what is known of each, and what a visitor chose."""

import math
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from urllib.parse import urlencode

from pydantic import JsonValue
from pydantic_core import from_json

from esper.karn.drawing import THEMES, ThemeName
from esper.karn.watch.episodes import Frame, read_episode
from esper.karn.watch.state import Watched
from esper.leyline import EpisodeFinished
from esper.nissa import is_being_written
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE

LARGEST_CONFIG = 1 << 20
"""Bytes of a configuration that are read."""
COUNTING_SECONDS = 0.3
"""Seconds of each look spent on counting the seeds of a long run."""
COUNT_ALL = math.inf
LISTING_SECONDS = 3.0
"""Seconds between two looks at which runs there are."""
FRESH_SECONDS = 0.5
"""A run that was read this many seconds ago is not read again."""
MOST_BESIDE = 5
"""Runs that can be shown beside another."""


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """The only way to the files of runs: by a name that is there, never by a path.

    root  a folder that holds run directories; nothing outside of it is ever opened
    """

    root: Path

    def names(self) -> list[str]:
        """Names of the runs, the one written last first."""
        found: list[tuple[float, str]] = []
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    written = self._written(entry)
                    if written is not None:
                        found.append((-written, entry.name))
        except OSError:  # the folder is gone, or not there yet
            return []
        return [name for _, name in sorted(found)]

    def holds(self, name: str) -> bool:
        """Whether there is a run of this name."""
        return name in self.names()

    def open_events(self, name: str) -> BinaryIO | None:
        """The events of a run, opened for reading; None if there are none."""
        return self._open(name, EVENTS_FILE)

    def config(self, name: str) -> dict[str, JsonValue]:
        """The configuration of a run; empty if it cannot be read."""
        file = self._open(name, CONFIG_FILE)
        if file is None:
            return {}
        with file:
            try:
                content = from_json(file.read(LARGEST_CONFIG))
            except (ValueError, OSError):
                return {}
        return content if isinstance(content, dict) else {}

    def is_being_written(self, name: str) -> bool:
        """Whether a process writes this run."""
        path = self._inside(name)
        return path is not None and is_being_written(path)

    def _inside(self, name: str) -> Path | None:
        """The directory of a run; None if it is no plain name, or leads out of the folder."""
        if not name or name in (".", "..") or os.sep in name or "\0" in name:
            return None
        try:
            root = self.root.resolve()
            path = (root / name).resolve()
            return path if path.is_dir() and path.is_relative_to(root) else None
        except (OSError, RuntimeError, ValueError):  # too long a name, links in a circle, half a character
            return None

    def _open(self, name: str, file: str) -> BinaryIO | None:
        path = self._inside(name)
        if path is None:
            return None
        try:
            # Links are not followed, since one could point anywhere. A pipe must not block.
            descriptor = os.open(path / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb", buffering=0)

    def _written(self, entry: os.DirEntry[str]) -> float | None:
        """When a run was last written; None if it is no run, or its name cannot be shown."""
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            return None
        path = self._inside(entry.name)
        if path is None:
            return None
        times = []
        for file in (EVENTS_FILE, CONFIG_FILE):
            try:
                times.append((path / file).lstat().st_mtime)
            except OSError:
                continue
        return max(times, default=None)


class Hub:
    """Reads runs of one folder for any number of pages, each run once. May be called from any thread."""

    def __init__(self, folder: RunsFolder, *, counting_seconds: float = COUNTING_SECONDS) -> None:
        self.folder, self._counting_seconds = folder, counting_seconds
        self._watched: dict[str, Watched] = {}
        self._names: list[str] = []
        self._listed_at = 0.0
        self._lock = Lock()

    def names(self) -> list[str]:
        """Names of the runs, the one written last first."""
        with self._lock:
            now = time.monotonic()
            if not self._names or now - self._listed_at > LISTING_SECONDS:
                self._names, self._listed_at = self.folder.names(), now
            return list(self._names)

    def look(self, name: str) -> Watched:
        """A run as it is now. One that was deleted keeps what was known of it."""
        with self._lock:
            watched = self._watched.get(name)
            if watched is None:
                watched = Watched(name)
                if self.folder.holds(name):  # a name that never existed is not kept
                    self._watched[name] = watched
            if time.monotonic() - watched.read_at >= FRESH_SECONDS:
                self._read(watched)
                watched.read_at = time.monotonic()
            return watched

    def episode(self, name: str, row: EpisodeFinished) -> list[Frame]:
        """The steps of an episode; empty if they were not recorded."""
        with self._lock:
            watched = self._watched.get(name)
            file = None if watched is None else self.folder.open_events(name)
            if watched is None or file is None:
                return []
            with file:
                return read_episode(watched.state, file, row)

    def _read(self, watched: Watched) -> None:
        # Checked first: a run that ends meanwhile is then read to its end and not called crashed.
        running = self.folder.is_being_written(watched.name)
        # Read each time: a resumed run may have more rounds, or another run may have taken the name.
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


@dataclass(slots=True)
class Selection:
    """What one visitor looks at. It is kept in the address, so that a reload or a new server shows the same."""

    run: str | None = None
    beside: list[str] = field(default_factory=list)
    """Runs that are drawn beside it."""
    theme: ThemeName | None = None
    """None follows the browser."""
    env: int | None = None
    episode: int | None = None
    """None, with env, follows the last episode that ended."""
    epoch: int | None = None
    """None is the last epoch of the episode."""

    @staticmethod
    def of(query: Mapping[str, str], beside: Sequence[str]) -> "Selection":
        """From the query of an address; what is invalid is left out."""
        theme = query.get("theme")
        env, episode, epoch = (_count(query.get(name)) for name in ("env", "episode", "epoch"))
        return Selection(
            run=query.get("run") or None,
            beside=[name for name in beside if name][:MOST_BESIDE],
            theme=next((name for name in THEMES if name == theme), None),
            env=env if episode is not None else None,
            episode=episode if env is not None else None,
            epoch=epoch,
        )

    def address(self) -> str:
        """The address that shows this."""
        chosen = {name: getattr(self, name) for name in ("run", "beside", "theme", "env", "episode", "epoch")}
        parts = {name: value for name, value in chosen.items() if value not in (None, [])}
        return "/?" + urlencode(parts, doseq=True) if parts else "/"


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
