"""The runs in one folder, and the only way to their files: by a name that is there, never by a path."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import JsonValue
from pydantic_core import from_json

from esper.nissa import is_being_written
from esper.nissa.run_directory import CONFIG_FILE, EVENTS_FILE

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
