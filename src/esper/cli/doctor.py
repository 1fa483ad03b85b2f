"""`esper doctor`: what this machine has, and what is wrong with it."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from esper.cli.common import VerbParser, as_json, table

PACKAGES = (
    "esper",
    "torch",
    "numpy",
    "gymnasium",
    "pydantic",
    "tyro",
    "duckdb",
    "tensorboard",
    "safetensors",
)


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    found: str
    advice: str | None = None
    """What to do, where something can be better."""
    broken: bool = False
    """Esper cannot work like this."""


def run(arguments: list[str]) -> int:
    parser = VerbParser("doctor", "See what this machine has, and what is wrong with it.", "esper doctor")
    parser.add_json()
    chosen = parser.parse_args(arguments)
    findings = examine()
    if chosen.json:
        print(as_json(findings))
    else:
        print(
            table(
                ("what", "found", "advice"), ((each.what, each.found, each.advice or "") for each in findings)
            )
        )
    return int(any(each.broken for each in findings))


def examine() -> list[Finding]:
    return [*_versions(), *_processor(), *_cuda(), *_data_sets(), *_folders()]


def _versions() -> list[Finding]:
    findings = [Finding("python", platform.python_version(), None, sys.version_info < (3, 11))]
    for package in PACKAGES:
        try:
            findings.append(Finding(package, version(package)))
        except PackageNotFoundError:
            findings.append(Finding(package, "not installed", f"pip install {package}", broken=True))
    return findings


def _processor() -> list[Finding]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    advice = "small hosts train fastest with OMP_NUM_THREADS=1 and workers" if threads > 1 else None
    return [
        Finding("cores", f"{usable} usable of {os.cpu_count()}"),
        Finding("torch threads", str(threads), advice),
    ]


def _cuda() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("CUDA", "no device", "--device cpu is the default")]
    findings = []
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        findings.append(Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"))
    return findings


def _data_sets() -> list[Finding]:
    from esper.tolaria.data.images import FASHION_MNIST, MNIST, read_cifar10, read_idx_set

    return [
        _data_set(MNIST.name, lambda: read_idx_set(MNIST)),
        _data_set(FASHION_MNIST.name, lambda: read_idx_set(FASHION_MNIST)),
        _data_set("cifar10", read_cifar10),
    ]


def _data_set(name: str, read: Callable[[], object]) -> Finding:
    from esper.tolaria.data.images import data_directory
    from esper.tolaria.data.splits import DatasetCorrupt, DatasetMissing

    folder = data_directory(name)
    try:
        read()
    except DatasetMissing:
        return Finding(f"data: {name}", f"not in {folder}", "docs/tasks.md says what belongs there")
    except (DatasetCorrupt, OSError) as error:
        return Finding(f"data: {name}", f"damaged: {error}", "put the published files there again")
    return Finding(f"data: {name}", f"in {folder}")


def _folders() -> list[Finding]:
    from esper.tolaria.worlds.baselines import default_directory

    return [_writable("cache", default_directory(), "set ESPER_CACHE to a folder that can be written")]


def _writable(what: str, folder: Path, advice: str) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(what, f"{folder} cannot be written: {error.strerror}", advice, broken=True)
    return Finding(what, f"{folder} can be written")
