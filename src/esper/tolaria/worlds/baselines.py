"""Baseline curves: what a host does when nothing is grown. The gain of a run is measured against them."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from esper.leyline import BaselineCurve, Beginning, HostStep
from esper.leyline.files import write_bytes
from esper.tolaria.tasks import Instance
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.remote import RemoteWorld
from esper.tolaria.worlds.worker import hardware_name

_LOG = logging.getLogger("esper.baselines")
NUMERICS = 3
"""Raised when the engine's numbers change, so that old curves and benchmarks are not compared with new runs."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
    """The baseline of one (instance, rng seed). Entry e is after e epochs; entry 0 is the untrained host.

    Validation is on the half that is observed, judged numbers on the half that rewards.
    """

    case: str
    seed: int
    validation_loss: tuple[float, ...]
    validation_accuracy: tuple[float | None, ...]
    judged_loss: tuple[float, ...]
    judged_accuracy: tuple[float | None, ...]
    train_loss: tuple[float | None, ...]
    train_accuracy: tuple[float | None, ...]

    @property
    def epochs(self) -> int:
        """Epochs trained."""
        return len(self.validation_loss) - 1

    @property
    def curve(self) -> BaselineCurve:
        """What is rewarded against."""
        return BaselineCurve(accuracies=self.judged_accuracy, losses=self.judged_loss)


_RUN = TypeAdapter(BaselineRun)


def default_directory() -> Path:
    """`controls` in ESPER_CACHE, or in ~/.cache/esper."""
    return Path(os.environ.get("ESPER_CACHE", Path.home() / ".cache" / "esper")) / "controls"


class BaselineCurves:
    """Computes each curve once and keeps it on disk under a hash of everything its numbers depend on.

    epochs     how long a curve must be at least
    directory  where they are kept; by default `default_directory()`
    trainer    trains what is missing with one torch thread, as workers do; by default this process does, one after
               another, with as many threads as it has
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
        """The curve of one host with what training measured."""
        case = str(Instance.parse(case))
        found = self._find(case, seed)
        if found is None:
            self.prepare([(case, seed)])
            found = self._find(case, seed)
        assert found is not None
        return found

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """The curves of several (case, seed); what is missing is trained side by side where that is possible."""
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
        _LOG.info("training %s baselines of %s epochs", len(missing), self.epochs)
        progress(0, len(missing))
        # worker processes have one thread: a curve of several is trained here
        alone = workers <= 1 or len(missing) == 1 or torch.get_num_threads() != 1
        here = train_here if alone else partial(train_in_processes, workers)
        trained = (self._trainer or here)(missing, self.epochs, self.device)
        with contextlib.closing(trained):
            for done, run in enumerate(trained, start=1):
                write_bytes(self._path(run.case, run.seed), json.dumps(asdict(run)).encode())
                progress(done, len(missing))
                if stop():
                    return

    def _find(self, case: str, seed: int) -> BaselineRun | None:
        """On disk and long enough; what cannot be read is computed again."""
        try:
            found = _RUN.validate_json(self._path(case, seed).read_bytes())
        except (OSError, ValidationError):
            return None
        return found if found.epochs >= self.epochs else None

    def _path(self, case: str, seed: int) -> Path:
        instance, on_gpu = Instance.parse(case), self.device.type == "cuda"
        # where the last bits of the numbers come from
        versions = [NUMERICS, torch.__version__, hardware_name(self.device)]
        parts: list[object] = [_fingerprint(instance, instance.source()), seed, *versions]
        threads = 1 if on_gpu or self._trainer is not None else torch.get_num_threads()
        if threads != 1:  # which is not named: so every run of the command computes
            parts.append(threads)
        name = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
        return self.directory / f"{name}.json"


BaselineTrainer = Callable[[Sequence[tuple[str, int]], int, torch.device], Generator[BaselineRun]]
"""Trains the baselines of (case, seed) for so many epochs on a device, and yields each as it is done."""


def train_here(
    wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
) -> Generator[BaselineRun]:
    """Train in this process, one after another."""
    for case, seed in wanted:
        yield compute(case, seed, epochs, device)


def train_by_workers(
    world: RemoteWorld[Any], wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
) -> Generator[BaselineRun]:
    """Train in the workers of a world, which have nothing else to do meanwhile."""
    yield from world.call_all(compute, [(case, seed, epochs, device) for case, seed in wanted])


def train_in_processes(
    workers: int, wanted: Sequence[tuple[str, int]], epochs: int, device: torch.device
) -> Generator[BaselineRun]:
    """Train in processes that are started for it, no more than there are curves to train."""
    workers = min(workers, len(wanted))
    with ProcessWorld(EngineWorld, num_hosts=workers, workers=workers, timeout=None) as world:
        yield from train_by_workers(world, wanted, epochs, device)


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
        validation_accuracy=tuple(report.validation_accuracy for report in reports),
        judged_loss=tuple(report.judged[0] for report in reports),
        judged_accuracy=tuple(report.judged[1] for report in reports),
        train_loss=tuple(report.train_loss for report in reports),
        train_accuracy=tuple(report.train_accuracy for report in reports),
    )


@cache
def _fingerprint(instance: Instance, _source: tuple[object, ...]) -> str:
    """Hashing the data takes a while: once for each source they come from."""
    return instance.fingerprint()
