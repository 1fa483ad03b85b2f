"""What one visitor looks at. It lives in the address, so that a reload, or a new server, shows the same."""

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

from esper.karn.palette import THEMES, ThemeName
from esper.karn.watch.episodes import Frame, read_episode
from esper.karn.watch.lines import EpisodeRow, real, whole
from esper.karn.watch.state import RunState
from esper.nissa import is_being_written
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE

# The runs in one folder, and the only way to their files: by a name that is there, never by a path.


LARGEST_CONFIG = 1 << 20


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """root  a folder that holds run directories; nothing outside of it is ever opened"""

    root: Path

    def names(self) -> list[str]:
        """Of the runs, the one that was written to last first."""
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
        return name in self.names()

    def open_events(self, name: str) -> BinaryIO | None:
        """The events of a run, for reading; None when there are none."""
        return self._open(name, EVENTS_FILE)

    def config(self, name: str) -> dict[str, JsonValue]:
        """What a run was asked to do; empty when that cannot be read."""
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
        path = self._inside(name)
        return path is not None and is_being_written(path)

    def _inside(self, name: str) -> Path | None:
        """The directory of a run; None for what is no plain name, or leads out of the folder."""
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
            # Links are not followed: one could point anywhere. A pipe must not keep us waiting.
            descriptor = os.open(path / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb", buffering=0)

    def _written(self, entry: os.DirEntry[str]) -> float | None:
        """When a run was last written; None for what is no run, or no name that can be shown and chosen."""
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


# The runs that somebody watches, each read once however many watch it.


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


MOST_BESIDE = 5


@dataclass(slots=True)
class Selection:
    run: str | None = None
    beside: list[str] = field(default_factory=list)
    """Runs that are drawn beside it."""
    theme: ThemeName | None = None
    """None follows the browser."""
    env: int | None = None
    episode: int | None = None
    """None, with env, follows the last episode that ended."""
    epoch: int | None = None

    @staticmethod
    def of(query: Mapping[str, str], beside: Sequence[str]) -> "Selection":
        """From an address; what makes no sense there is left out."""
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
        parts: list[tuple[str, str | int]] = [] if self.run is None else [("run", self.run)]
        parts += [("beside", name) for name in self.beside]
        parts += [
            (name, value)
            for name, value in (
                ("theme", self.theme),
                ("env", self.env),
                ("episode", self.episode),
                ("epoch", self.epoch),
            )
            if value is not None
        ]
        return "/?" + urlencode(parts) if parts else "/"


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
