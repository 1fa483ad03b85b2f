"""Control curves: what a host does when nothing is grown. The gain of a run is measured against them."""

import hashlib
import json
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from esper.leyline import ControlCurve, EpochReport
from esper.tolaria.tasks import Instance
from esper.tolaria.world import EngineWorld

_LOG = logging.getLogger("esper.controls")
NUMERICS = 2
"""Raised when the engine's numbers change, so that old curves are not compared with new runs."""


@dataclass(frozen=True, slots=True)
class ControlRun:
    """The wait-only run of one (instance, seed). Entry e is after e epochs; entry 0 is the untrained host."""

    case: str
    seed: int
    validation_loss: tuple[float, ...]
    validation_accuracy: tuple[float, ...]
    train_loss: tuple[float | None, ...]
    train_accuracy: tuple[float | None, ...]

    @property
    def epochs(self) -> int:
        return len(self.validation_loss) - 1

    @property
    def curve(self) -> ControlCurve:
        return ControlCurve(accuracies=self.validation_accuracy, losses=self.validation_loss)

    def gain(self, epoch: int, accuracy: float) -> float:
        """How much better than its control a run is after `epoch` epochs."""
        return accuracy - self.validation_accuracy[epoch]


_RUN = TypeAdapter(ControlRun)


def default_directory() -> Path:
    """ESPER_CACHE, or ~/.cache/esper."""
    return Path(os.environ.get("ESPER_CACHE", Path.home() / ".cache" / "esper")) / "controls"


class ControlCurves:
    """Computes each curve once and keeps it on disk under a hash of everything its numbers depend on.

    epochs     how long a curve must be at least
    directory  where they are kept; by default `controls` in ESPER_CACHE, or in ~/.cache/esper
    """

    def __init__(
        self, epochs: int, directory: Path | None = None, device: torch.device | str = "cpu"
    ) -> None:
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        self.epochs = epochs
        self.directory = directory or default_directory()
        self.device = torch.device(device)

    def curve(self, case: str, seed: int) -> ControlCurve:
        """Loss and accuracy at epochs 0, 1, ... of the host that `EngineWorld.begin(_, case, seed)` makes."""
        return self.run(case, seed).curve

    def run(self, case: str, seed: int) -> ControlRun:
        """The same with what training measured."""
        case = str(Instance.parse(case))
        found = self._find(case, seed)
        if found is None:
            _LOG.info("training the wait-only control of %s, seed %s: %s epochs", case, seed, self.epochs)
            found = compute(case, seed, self.epochs, self.device)
            self._keep(found)
        return found

    def prepare(
        self,
        wanted: Iterable[tuple[str, int]],
        *,
        processes: int = 1,
        tell: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
    ) -> None:
        """Compute what is missing, over several processes; `tell` hears how many of how many are done, 0 first."""
        cases = dict.fromkeys((str(Instance.parse(case)), seed) for case, seed in wanted)
        missing = [(case, seed) for case, seed in cases if self._find(case, seed) is None]
        if not missing:
            return
        tell(0, len(missing))
        if processes <= 1 or len(missing) == 1:
            for done, (case, seed) in enumerate(missing, start=1):
                self.run(case, seed)
                tell(done, len(missing))
            return
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, spawn, initializer=_one_thread) as pool:
            jobs = [pool.submit(compute, case, seed, self.epochs, self.device) for case, seed in missing]
            for done, job in enumerate(jobs, start=1):
                self._keep(job.result())
                tell(done, len(missing))

    def _find(self, case: str, seed: int) -> ControlRun | None:
        """On disk, and long enough."""
        found = _read(self._path(case, seed))
        return None if found is None or found.epochs < self.epochs else found

    def _keep(self, run: ControlRun) -> None:
        _write(self._path(run.case, run.seed), run)

    def _path(self, case: str, seed: int) -> Path:
        instance = Instance.parse(case)
        parts = (
            _fingerprint(instance, instance.source()),
            seed,
            NUMERICS,
            torch.__version__,
            _hardware(self.device),
        )
        name = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        return self.directory / f"{name}.json"


def compute(case: str, seed: int, epochs: int, device: torch.device | str = "cpu") -> ControlRun:
    """Train one host and do nothing else."""
    world = EngineWorld(1, device)
    world.begin(0, case, seed)
    reports = [world.host(0).report]
    for _ in range(epochs):
        world.epoch([0])
        reports.append(world.host(0).report)
    return ControlRun(
        case=case,
        seed=seed,
        validation_loss=tuple(report.validation_loss for report in reports),
        validation_accuracy=tuple(_accuracy(report) for report in reports),
        train_loss=tuple(report.train_loss for report in reports),
        train_accuracy=tuple(report.train_accuracy for report in reports),
    )


def _accuracy(report: EpochReport) -> float:
    assert report.validation_accuracy is not None  # the engine always measures it
    return report.validation_accuracy


def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def _fingerprint(instance: Instance, _source: tuple[object, ...]) -> str:
    """Hashing the data takes a while: once for each source they come from."""
    return instance.fingerprint()


def _hardware(device: torch.device) -> str:
    """Where the last bits of the numbers come from."""
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )


def _read(path: Path) -> ControlRun | None:
    """None if there is no curve, or what is there cannot be read: it is computed again then."""
    try:
        return _RUN.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, run: ControlRun) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}.", delete=False) as file:
        file.write(json.dumps(asdict(run)).encode())
    os.replace(file.name, path)
