"""Control curves: what a host does when nothing is grown. The gain of a run is measured against them."""

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from esper.leyline import BaselineCurve, Beginning, EpochReport, HostStep
from esper.leyline.files import write_bytes
from esper.tolaria.tasks import Instance
from esper.tolaria.worlds.engine import EngineWorld

_LOG = logging.getLogger("esper.controls")
NUMERICS = 2
"""Raised when the engine's numbers change, so that old curves are not compared with new runs."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
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
    def curve(self) -> BaselineCurve:
        return BaselineCurve(accuracies=self.validation_accuracy, losses=self.validation_loss)

    def gain(self, epoch: int, accuracy: float) -> float:
        """How much better than its control a run is after `epoch` epochs."""
        return accuracy - self.validation_accuracy[epoch]


_RUN = TypeAdapter(BaselineRun)


def default_directory() -> Path:
    """ESPER_CACHE, or ~/.cache/esper."""
    return Path(os.environ.get("ESPER_CACHE", Path.home() / ".cache" / "esper")) / "controls"


class BaselineCurves:
    """Computes each curve once and keeps it on disk under a hash of everything its numbers depend on.

    epochs     how long a curve must be at least
    directory  where they are kept; by default `controls` in ESPER_CACHE, or in ~/.cache/esper
    trainer    who trains what is missing; by default this process, one after another
    """

    def __init__(
        self,
        epochs: int,
        directory: Path | None = None,
        device: torch.device | str = "cpu",
        *,
        trainer: "BaselineTrainer | None" = None,
    ) -> None:
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        self.epochs = epochs
        self.directory = directory or default_directory()
        self.device = torch.device(device)
        self._trainer = trainer

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """Loss and accuracy at epochs 0, 1, ... of the host that `Beginning(_, case, seed)` makes."""
        return self.run(case, seed).curve

    def run(self, case: str, seed: int) -> BaselineRun:
        """The same with what training measured."""
        case = str(Instance.parse(case))
        found = self._find(case, seed)
        if found is None:
            self.prepare([(case, seed)])
            found = self._find(case, seed)
        assert found is not None
        return found

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """Of several (case, seed); what is missing is trained side by side where there are processes for it."""
        self.prepare(wanted)
        return [self.curve(case, seed) for case, seed in wanted]

    def prepare(
        self,
        wanted: Iterable[tuple[str, int]],
        *,
        workers: int = 1,
        progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compute what is missing, and keep each as it is done.

        workers   processes to start for it, where there is no `trainer`
        progress  called with how many of how many are done, 0 first
        stop      called after each; where it returns True the rest is left
        """
        cases = dict.fromkeys((str(Instance.parse(case)), seed) for case, seed in wanted)
        missing = [(case, seed) for case, seed in cases if self._find(case, seed) is None]
        if not missing or stop():
            return
        _LOG.info("training %s wait-only controls of %s epochs", len(missing), self.epochs)
        progress(0, len(missing))
        here = train_here if workers <= 1 or len(missing) == 1 else partial(train_in_processes, workers)
        trained = (self._trainer or here)(missing, self.epochs, self.device)
        with contextlib.closing(trained):
            for done, run in enumerate(trained, start=1):
                self._keep(run)
                progress(done, len(missing))
                if stop():
                    return

    def _find(self, case: str, seed: int) -> BaselineRun | None:
        """On disk, and long enough."""
        found = _read(self._path(case, seed))
        return None if found is None or found.epochs < self.epochs else found

    def _keep(self, run: BaselineRun) -> None:
        write_bytes(self._path(run.case, run.seed), json.dumps(asdict(run)).encode())

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


BaselineTrainer = Callable[[Sequence[tuple[str, int]], int, torch.device], Generator[BaselineRun]]
"""Trains the controls of (case, seed) for so many epochs on a device, and hands over each as it is done."""


def train_here(
    wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
) -> Generator[BaselineRun]:
    for case, seed in wanted:
        yield compute(case, seed, epochs, device)


def train_in_processes(
    workers: int, wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
) -> Generator[BaselineRun]:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=_serve_quietly) as pool:
        jobs = [pool.submit(compute, case, seed, epochs, device) for case, seed in wanted]
        try:
            for job in jobs:
                yield job.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def compute(case: str, seed: int, epochs: int, device: torch.device | str = "cpu") -> BaselineRun:
    """Train one host and do nothing else."""
    world = EngineWorld(1, device)
    world.begin_many([Beginning(0, case, seed)])
    reports = [world.host(0).report]
    for _ in range(epochs):
        world.step_many([HostStep(0)])
        reports.append(world.host(0).report)
    return BaselineRun(
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


def _serve_quietly() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's to handle
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


def _read(path: Path) -> BaselineRun | None:
    """None if there is no curve, or what is there cannot be read: it is computed again then."""
    try:
        return _RUN.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
