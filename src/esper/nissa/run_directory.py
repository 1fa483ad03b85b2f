"""The directory of a run: everything about it in one place, written by one process at a time.

runs/<name>/config.json  provenance.json  events.jsonl  checkpoints/  tensorboard/
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from pydantic import JsonValue

from esper.leyline import CheckpointReason
from esper.leyline.errors import EsperError
from esper.leyline.files import PARTIAL, write_atomically, write_json
from esper.nissa.provenance import Provenance

# What can be wrong with a run before any work is done.


class RunError(EsperError, RuntimeError):
    """A run that cannot be begun, resumed or read; the message says which and what to do."""


# One writer a run: a lock that the kernel lets go of when its process dies, however it dies.


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


# The checkpoints of a run: periodic ones, the best and the last. Each is whole or not there.


KEPT = 3
"""Periodic checkpoints, by default; older ones are removed."""


class Checkpoints:
    """`checkpoints/round-000040.pt`, `best.pt` and `last.pt`."""

    __slots__ = ("folder", "kept")

    def __init__(self, folder: Path, *, kept: int = KEPT) -> None:
        if kept < 1:
            raise ValueError(f"kept is {kept}; expected >= 1")
        self.folder, self.kept = folder, kept

    def save(
        self, write: Callable[[Path], None], *, round_number: int, reason: CheckpointReason = "periodic"
    ) -> Path:
        """Have `write` (such as `PPOAgent.save`) fill a file, and put it in its place; returns where."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / (f"round-{round_number:06d}.pt" if reason == "periodic" else f"{reason}.pt")
        write_atomically(path, write)
        for old in self.periodic()[: -self.kept]:
            old.unlink()
        return path

    def periodic(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.folder.glob("round-*.pt"))

    def newest(self) -> Path | None:
        """What a resumed run goes on from; the best one is for use, not for going on."""
        candidates = [*self.periodic(), *self.folder.glob("last.pt")]
        return max(candidates, key=lambda path: path.stat().st_mtime_ns, default=None)

    def remove_partial(self) -> None:
        """Clear away what a process that died had not finished writing."""
        for partial in self.folder.glob(f".*{PARTIAL}"):
            partial.unlink()


EVENTS_FILE, CONFIG_FILE, PROVENANCE_FILE = "events.jsonl", "config.json", "provenance.json"
LONGEST_NAME = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def require_run_name(name: str) -> None:
    """Raise RunError unless `name` can be the name of a run and of its directory."""
    if not name:
        raise RunError("the run's name is empty; expected something like digits-1")
    if len(name) > LONGEST_NAME:
        raise RunError(f"the run's name has {len(name)} characters; expected at most {LONGEST_NAME}")
    if "/" in name or "\\" in name:
        raise RunError(f"the run's name {name!r} is a path; expected a name, the folder is given apart")
    if name in (".", ".."):
        raise RunError(f"the run's name {name!r} means another folder; expected a name")
    if _NAME.fullmatch(name) is None:
        raise RunError(
            f"the run's name {name!r} has other characters than letters, digits, '.', '_' and '-', "
            "or does not begin with a letter or digit"
        )


class RunDirectory:
    """A run that this process writes. Make it with `create` or `resume`; close it when done.

    >>> with RunDirectory.create(Path("runs"), "digits-1", config, provenance) as run:
    ...     with open_recorder(run) as recorder:
    ...         train(config, events=recorder)
    """

    __slots__ = ("_lock", "checkpoints", "name", "path")

    def __init__(self, path: Path, lock: WriterLock, *, kept: int = KEPT) -> None:
        self.path, self.name, self._lock = path, path.name, lock
        self.checkpoints = Checkpoints(path / "checkpoints", kept=kept)

    @staticmethod
    def create(
        root: Path,
        name: str,
        config: Mapping[str, JsonValue],
        provenance: Provenance,
        *,
        kept: int = KEPT,
    ) -> "RunDirectory":
        """A new run, of whose periodic checkpoints so many are kept. A name that is taken is refused; nothing is
        ever overwritten."""
        require_run_name(name)
        path = root / name
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError as error:
            if path.exists():
                raise RunError(f"run {path} exists; resume it or choose another name") from error
            raise RunError(f"{root} is not a folder; runs cannot be kept there") from error
        except OSError as error:
            raise RunError(f"run {path} cannot be made ({error.strerror}); choose another folder") from error
        lock = WriterLock(path)
        try:
            write_json(path / CONFIG_FILE, dict(config))
            write_json(path / PROVENANCE_FILE, provenance.model_dump(mode="json"))
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)  # the name is not taken by a run that never was
            lock.release()
            if isinstance(error, OSError):
                raise RunError(f"run {path} cannot be written ({error.strerror})") from error
            raise
        return RunDirectory(path, lock, kept=kept)

    @staticmethod
    def resume(root: Path, name: str, provenance: Provenance, *, kept: int = KEPT) -> "RunDirectory":
        """A run that is there and that nobody is writing; its second start is kept as provenance.2.json."""
        require_run_name(name)
        path = root / name
        if not (path / CONFIG_FILE).is_file():
            raise RunError(f"{path} is not a run that can be resumed: it has no {CONFIG_FILE}")
        lock = WriterLock(path)
        start = 2
        while (path / f"provenance.{start}.json").exists():
            start += 1
        try:
            write_json(path / f"provenance.{start}.json", provenance.model_dump(mode="json"))
        except OSError as error:
            lock.release()
            raise RunError(f"run {path} cannot be written ({error.strerror})") from error
        run = RunDirectory(path, lock, kept=kept)
        run.checkpoints.remove_partial()
        return run

    @property
    def events_path(self) -> Path:
        return self.path / EVENTS_FILE

    @property
    def tensorboard_path(self) -> Path:
        return self.path / "tensorboard"

    def close(self) -> None:
        """Let another process write. Harmless when repeated."""
        self._lock.release()

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_config(run: Path) -> dict[str, JsonValue]:
    """What a run was asked to do."""
    content = _read_json(run / CONFIG_FILE)
    if not isinstance(content, dict):
        raise RunError(f"{run / CONFIG_FILE} is a {type(content).__name__}; expected an object")
    return content


def read_provenance(run: Path) -> Provenance:
    """Of a run's first start."""
    try:
        return Provenance.model_validate(_read_json(run / PROVENANCE_FILE))
    except ValueError as error:
        raise RunError(f"{run / PROVENANCE_FILE} is damaged: {error}") from error


def _read_json(path: Path) -> JsonValue:
    try:
        content: JsonValue = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}") from error
    return content
