"""The directory of a run: everything about it in one place, written by one process at a time; its provenance.

runs/<name>/config.json  provenance.json  events.jsonl  checkpoints/  tensorboard/  writer.lock
"""

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue

import esper
from esper.leyline import CheckpointReason
from esper.leyline.errors import EsperError
from esper.leyline.files import PARTIAL, write_atomically, write_json

GIT_SECONDS = 5.0


class Provenance(BaseModel):
    """What is needed to run a run again. What could not be found out is None."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    started: float
    """Seconds since the epoch."""
    esper: str
    """Version of Esper."""
    python: str
    """Version of Python."""
    torch: str | None
    """Version of PyTorch."""
    numpy: str | None
    """Version of NumPy."""
    git_commit: str | None
    """Commit of the repository that esper's code is in; None outside a repository."""
    git_dirty: bool | None
    """Whether that repository had uncommitted changes."""
    platform: str
    """Operating system and machine."""
    cpus: int | None
    """CPU cores of the machine."""
    device: str
    """Device hosts train on, such as cpu or cuda:0."""
    device_name: str | None
    """Name of the CUDA device; None for others."""
    precision: str
    """Numeric precision of host training."""
    seeds: dict[str, int]
    """Name of a random stream -> its rng seed."""


def collect_provenance(*, seeds: Mapping[str, int], device: str, precision: str) -> Provenance:
    """The provenance of a run that starts now."""
    commit, dirty = _git(Path(esper.__file__).parent)
    return Provenance(
        started=time.time(),
        esper=esper.__version__,
        python=platform.python_version(),
        torch=_version("torch"),
        numpy=_version("numpy"),
        git_commit=commit,
        git_dirty=dirty,
        platform=platform.platform(),
        cpus=os.cpu_count(),
        device=device,
        device_name=_device_name(device),
        precision=precision,
        seeds=dict(seeds),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.get_device_name(device)


def _git(folder: Path) -> tuple[str | None, bool | None]:
    """Commit and dirtiness of the repository that tracks `folder`, not of one that merely contains it."""
    if _run_git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit, changes = _run_git(folder, "rev-parse", "HEAD"), _run_git(folder, "status", "--porcelain")
    return commit, None if changes is None else bool(changes)


def _run_git(folder: Path, *arguments: str) -> str | None:
    command = ("git", "--no-optional-locks", "-C", str(folder), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


EVENTS_FILE, CONFIG_FILE, PROVENANCE_FILE = "events.jsonl", "config.json", "provenance.json"
LOCK_FILE = "writer.lock"
LOCK_PATIENCE_SECONDS = 0.3
"""A reader that calls `is_being_written` holds the lock for an instant; a writer waits that long for it."""
KEPT = 3
"""Periodic checkpoints kept by default; older ones are removed."""
PREVIOUS = "previous.pt"
LONGEST_NAME = 100
"""Characters in the name of a run, at most."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RunError(EsperError, RuntimeError):
    """A run that cannot be started, resumed or read; the message says which and what to do."""


class WriterLock:
    """The lock of a run's one writer, held until `release` or the end of the process, however it ends.

    `filelock` would do for writers, but it truncates the file, which names the process that holds it, and has no way
    to ask whether a lock is held without write access to the run.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, run: Path) -> None:
        """Take the lock of a run directory, or raise RunError."""
        try:
            self._descriptor = os.open(run / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(f"run {run}: its lock cannot be written ({error.strerror})") from error
        deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
        while not _try_lock(self._descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
                os.close(self._descriptor)
                raise RunError(
                    f"{run}: another process ({holder or 'unknown'}) is writing it; wait for it to end"
                )
            time.sleep(0.02)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Release the lock. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_being_written(run: Path) -> bool:
    """Whether a process holds the lock of this run. Needs no write access, follows no link and never blocks."""
    try:
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


class Checkpoints:
    """The checkpoints of a run: `round-000040.pt`, ..., `best.pt`, `last.pt` and `previous.pt`, the last before it.

    Each is written whole or not at all.

    kept  periodic checkpoints to keep
    """

    __slots__ = ("folder", "kept")

    def __init__(self, folder: Path, *, kept: int = KEPT) -> None:
        if kept < 1:
            raise ValueError(f"kept is {kept}; expected >= 1")
        self.folder, self.kept = folder, kept

    def save(
        self, write: Callable[[Path], object], *, round_number: int, reason: CheckpointReason = "periodic"
    ) -> Path:
        """Let `write` (such as `PPOAgent.write`) fill a file and move it into place; returns its path."""
        path = self.folder / (f"round-{round_number:06d}.pt" if reason == "periodic" else f"{reason}.pt")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, write, previous=self.folder / PREVIOUS if reason == "last" else None)
        except (OSError, RuntimeError) as error:  # torch raises the latter on a full disk
            raise RunError(f"checkpoint {path} cannot be written (is the disk full?): {error}") from error
        for old in self.periodic()[: -self.kept]:
            old.unlink(missing_ok=True)
        return path

    def periodic(self) -> list[Path]:
        """The periodic checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("round-*.pt") if path.is_file())

    def all(self) -> list[Path]:
        """Every checkpoint that a run can go on from, in the order of preference among those of one round."""
        named = (self.folder / name for name in ("last.pt", PREVIOUS, "best.pt"))
        return [*(path for path in named if path.is_file()), *self.periodic()]

    def set_aside(self, damaged: Iterable[Path]) -> None:
        """Keep damaged checkpoints under names by which they are not used."""
        for path in damaged:
            path.replace(path.with_suffix(".damaged"))

    def remove_partial(self) -> None:
        """Delete files that a process that died left half-written."""
        for partial in self.folder.glob(f".*{PARTIAL}"):
            partial.unlink()


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
        root: Path, name: str, config: Mapping[str, JsonValue], provenance: Provenance, *, kept: int = KEPT
    ) -> "RunDirectory":
        """A new run that keeps `kept` periodic checkpoints. Raises RunError if the name is taken."""
        require_run_name(name)
        path = root / name
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir(exist_ok=_was_never_made(path))
        except FileExistsError as error:
            require_free(root, name)
            raise RunError(f"{root} is not a folder; runs cannot be kept there") from error
        except OSError as error:
            raise RunError(f"run {path} cannot be made ({error.strerror}); choose another folder") from error
        lock = WriterLock(path)
        try:
            write_json(path / CONFIG_FILE, dict(config))
            write_json(path / PROVENANCE_FILE, provenance.model_dump(mode="json"))
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)  # a run that was never made does not take its name
            lock.release()
            if isinstance(error, OSError):
                raise RunError(f"run {path} cannot be written ({error.strerror})") from error
            raise
        return RunDirectory(path, lock, kept=kept)

    @staticmethod
    def resume(root: Path, name: str, *, kept: int = KEPT) -> "RunDirectory":
        """A run that exists and that no process is writing."""
        require_run_name(name)
        path = root / name
        if not (path / CONFIG_FILE).is_file():
            raise RunError(f"{path} is not a run that can be resumed: it has no {CONFIG_FILE}")
        run = RunDirectory(path, WriterLock(path), kept=kept)
        run.checkpoints.remove_partial()
        return run

    def record_start(self, provenance: Provenance, config: Mapping[str, JsonValue] | None = None) -> None:
        """Record that the run goes on: where its second start was made as provenance.2.json, and other settings."""
        files = (self.path / f"provenance.{start}.json" for start in count(2))
        try:
            if config is not None:
                write_json(self.path / CONFIG_FILE, dict(config))
            write_json(next(file for file in files if not file.exists()), provenance.model_dump(mode="json"))
        except OSError as error:
            raise RunError(f"run {self.path} cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Release the run for other writers. May be called again."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_free(root: Path, name: str) -> None:
    """Raise RunError if a run has this name already."""
    path = root / name
    if path.exists() and not _was_never_made(path):
        raise RunError(f"run {path} exists; `esper resume {path}` goes on with it, or choose another name")


def _was_never_made(path: Path) -> bool:
    """Whether it is the folder of a process that was killed before the run had its settings: it holds nothing yet."""
    return path.is_dir() and all(
        each.name == LOCK_FILE or each.name.endswith(PARTIAL) for each in path.iterdir()
    )


def read_config(run: Path) -> dict[str, JsonValue]:
    """The configuration a run was started with, and with what it was resumed with since."""
    content = _read_json(run / CONFIG_FILE)
    if not isinstance(content, dict):
        raise RunError(f"{run / CONFIG_FILE} is a {type(content).__name__}; expected an object")
    return content


def read_provenance(run: Path) -> Provenance:
    """The provenance of a run's first start."""
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
