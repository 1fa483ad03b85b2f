"""Provenance of a run: the versions, code and hardware it ran with."""

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

import esper

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
