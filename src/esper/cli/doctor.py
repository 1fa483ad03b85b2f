"""`esper doctor`: what this machine has, and what is wrong with it."""

import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from esper.cli.common import VerbParser, as_json, table
from esper.leyline.errors import install

DISTRIBUTION = "esper-grow"
PACKAGES = (DISTRIBUTION, "torch", "numpy", "gymnasium", "pydantic", "duckdb", "tensorboard", "safetensors")
EXTRAS = ("draw", "watch", "onnx", "lightning", "transformers", "peft", "wandb", "ray", "sb3", "minari")
"""Those that users ask for; the others are for work on Esper itself."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    what: str
    """What was looked at."""
    found: str
    """What is there."""
    advice: str | None = None
    """What to do, where something can be better."""
    broken: bool = False
    """Esper cannot work like this."""


def run_doctor(arguments: list[str]) -> int:
    """Print the findings; returns 1 if Esper cannot work here."""
    summary = "See what this machine has, and what is wrong with it."
    chosen = VerbParser("doctor", summary, "esper doctor", "json").parse(arguments)
    findings = [*_versions(), *_extras(), *_hardware(), *_data_sets(), _cache()]
    rows = ((each.what, each.found, each.advice or "") for each in findings)
    print(as_json(findings) if chosen.json else table(("what", "found", "advice"), rows))
    return int(any(each.broken for each in findings))


def _versions() -> Iterator[Finding]:
    yield Finding("python", platform.python_version(), None, sys.version_info < (3, 11))
    for package in PACKAGES:
        found = _version(package)
        if found is None:
            yield Finding(package, "not installed", f"pip install {package}", broken=True)
        else:
            yield Finding(package, found)


def _extras() -> Iterator[Finding]:
    """Each extra with the versions of what it installs."""
    asked = requires(DISTRIBUTION) if _version(DISTRIBUTION) else None
    for extra in EXTRAS if asked else ():
        named = (re.match(rf"[\w.-]+(?=.*extra == ['\"]{extra}['\"])", each) for each in asked or ())
        found = {package: _version(package) for package in (each.group() for each in named if each)}
        if any(found.values()):
            told = ", ".join(f"{package} {number or '(missing)'}" for package, number in found.items())
        else:
            told = "not installed"
        yield Finding(f"extra: {extra}", told, None if all(found.values()) else install(extra))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hardware() -> Iterator[Finding]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores", f"{usable} usable of {os.cpu_count()}")
    threads = torch.get_num_threads()
    advice = "small hosts train fastest with OMP_NUM_THREADS=1 and workers" if threads > 1 else None
    yield Finding("torch threads", str(threads), advice)
    if not torch.cuda.is_available():
        yield Finding("CUDA", "no device", "--device cpu is the default")
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB")


def _data_sets() -> Iterator[Finding]:
    from esper.tolaria.data.images import FASHION_MNIST, MNIST, data_directory, read_cifar10, read_idx_set
    from esper.tolaria.data.splits import DatasetCorrupt, DatasetMissing

    readers: dict[str, Callable[[], object]] = {
        MNIST.name: lambda: read_idx_set(MNIST),
        FASHION_MNIST.name: lambda: read_idx_set(FASHION_MNIST),
        "cifar10": read_cifar10,
    }
    for name, read in readers.items():
        what, folder = f"data: {name}", data_directory(name)
        try:
            read()
        except DatasetMissing:
            yield Finding(what, f"not in {folder}", "docs/tasks.md says what belongs there")
        except (DatasetCorrupt, OSError) as error:
            yield Finding(what, f"damaged: {error}", "put the published files there again")
        else:
            yield Finding(what, f"in {folder}")


def _cache() -> Finding:
    from esper.tolaria.worlds.baselines import default_directory

    folder = default_directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Finding("cache", f"{folder} can be written")
    except OSError as error:
        advice = "set ESPER_CACHE to a folder that can be written"
        return Finding("cache", f"{folder} cannot be written: {error.strerror}", advice, broken=True)
