"""One writer a run: a lock that the kernel lets go of when its process dies, however it dies."""

import fcntl
import os
import time
from pathlib import Path

from esper.nissa.errors import RunError

LOCK_FILE = "writer.lock"
PATIENCE_SECONDS = 0.3
"""Whoever asks whether a run is being written holds the lock for an instant; a writer waits that out."""


class WriterLock:
    """Held from the moment it is made until `release`, or the end of the process."""

    __slots__ = ("_descriptor",)

    def __init__(self, run: Path) -> None:
        """Take the lock of a run directory, or raise RunError."""
        path = run / LOCK_FILE
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"run {run}: its lock cannot be written ({error.strerror})") from error
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _try_lock(self._descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
                os.close(self._descriptor)
                raise RunError(
                    f"run {run}: another process ({holder or 'unknown'}) is writing it; wait for it to end"
                )
            time.sleep(0.02)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let go. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_being_written(run: Path) -> bool:
    """Whether a process holds the lock of this run."""
    try:
        # Whoever only looks follows no link out of the run, and is not kept waiting by a pipe.
        descriptor = os.open(run / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
