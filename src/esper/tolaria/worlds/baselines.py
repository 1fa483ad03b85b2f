"""Baseline curves: what a host does when nothing is grown. The gain of a run is measured against them."""

import contextlib
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from pydantic import TypeAdapter, ValidationError

from esper.leyline import BaselineCurve, Beginning, EpochReport, HostsLost, HostStep
from esper.leyline.files import write_bytes
from esper.tolaria.tasks import Instance
from esper.tolaria.worlds.engine import EngineWorld
from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.remote import RemoteWorld
from esper.tolaria.worlds.worker import hardware_name

Number = TypeVar("Number")
_LOG = logging.getLogger("esper.baselines")
NUMERICS = 6
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
        self._unwritten: dict[Path, BaselineRun] = {}
        """What could not be written stays here."""

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
        """The curves of several (case, seed).

        A `trainer` trains what is missing side by side. Without one each is trained as far as it is looked at, and
        kept when it is whole: an episode pays for its baseline epoch by epoch, not before it begins.
        """
        if self._trainer is not None:
            self.prepare(wanted)
        curves = []
        for case, seed in wanted:
            case = str(Instance.parse(case))
            found = self._find(case, seed)
            training = BaselineInTraining(case, seed, self.epochs, self.device, keep=self._keep)
            curves.append(training.curve if found is None else found.curve)
        return curves

    def prepare(
        self,
        wanted: Iterable[tuple[str, int]],
        *,
        workers: int = 1,
        progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
        looking: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compute what is missing, and keep each as it is done.

        workers   processes to start for it, where there is no `trainer`
        progress  called with how many of how many are there, first of all with those that were kept
        looking   called before that with how many of how many were looked for: data are made for it, which takes time
        stop      called before each is looked for and after each is made; where it returns True the rest is left
        """
        cases = dict.fromkeys((str(Instance.parse(case)), seed) for case, seed in wanted)
        missing = []
        for looked, (case, seed) in enumerate(cases):
            looking(looked, len(cases))
            if stop():
                return
            missing += [] if self._find(case, seed) is not None else [(case, seed)]
        if not missing or stop():
            return
        kept, total = len(cases) - len(missing), len(cases)
        _LOG.info("training %s baselines of %s epochs", len(missing), self.epochs)
        progress(kept, total)
        # worker processes have one thread: a curve of several is trained here
        alone = workers <= 1 or len(missing) == 1 or torch.get_num_threads() != 1
        here = train_here if alone else partial(train_in_processes, workers)
        trained = (self._trainer or here)(missing, self.epochs, self.device)
        with contextlib.closing(trained):
            for done, run in enumerate(trained, start=kept + 1):
                self._keep(run)
                progress(done, total)
                if stop():
                    return

    def _keep(self, run: BaselineRun) -> None:
        path = self._path(run.case, run.seed)
        try:
            write_bytes(path, json.dumps(asdict(run)).encode())
        except OSError as error:
            if not self._unwritten:
                warnings.warn(
                    f"the cache {self.directory} cannot be written ({error.strerror}); set ESPER_CACHE to a folder "
                    "that can",
                    stacklevel=2,
                )
            self._unwritten[path] = run

    def _find(self, case: str, seed: int) -> BaselineRun | None:
        """On disk, or not written, and long enough; what cannot be read is computed again."""
        path = self._path(case, seed)
        try:
            found = self._unwritten.get(path) or _RUN.validate_json(path.read_bytes())
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
    return BaselineInTraining(case, seed, epochs, device).run()


class BaselineInTraining:
    """A host that nothing is done to, trained as far as somebody has looked.

    One that the governor gives up is worth nothing from then on: a score of 0, and the loss of the untrained host.

    epochs  how far it goes
    keep    called with the whole run when it is there
    """

    def __init__(
        self,
        case: str,
        seed: int,
        epochs: int,
        device: torch.device | str = "cpu",
        *,
        keep: Callable[[BaselineRun], None] = lambda run: None,  # noqa: ARG005
    ) -> None:
        self.epochs, self._case, self._seed, self._device = epochs, case, seed, device
        self._keep = keep
        self._world: EngineWorld | None = None
        self._reports: list[EpochReport] = []
        self._lost: EpochReport | None = None

    def report(self, epoch: int) -> EpochReport:
        """What the host showed after so many epochs."""
        while len(self._reports) <= epoch:
            if self._world is None:
                self._world = EngineWorld(1, self._device)
                self._world.begin_many([Beginning(0, self._case, self._seed)])
            else:
                self._train()
            self._reports.append(self._world.host(0).report if self._lost is None else self._lost)
            if len(self._reports) > self.epochs:
                self._world = None
                self._keep(self.run())
        return self._reports[epoch]

    def _train(self) -> None:
        """One more epoch, if the host can still be trained."""
        if self._lost is not None:
            return
        assert self._world is not None
        try:
            self._world.step_many([HostStep(0)])
        except HostsLost as lost:
            _LOG.warning("the baseline of %s, seed %s, is given up: %s", self._case, self._seed, lost.reason)
            untrained = self._reports[0]
            self._lost = replace(untrained, validation_accuracy=0.0, judged_accuracy=0.0)

    @property
    def curve(self) -> BaselineCurve:
        """What is rewarded against, epoch by epoch."""
        return BaselineCurve(
            accuracies=_Column(self, lambda report: report.judged[1]),
            losses=_Column(self, lambda report: report.judged[0]),
        )

    def run(self) -> BaselineRun:
        """All of it."""
        reports = [self.report(epoch) for epoch in range(self.epochs + 1)]
        return BaselineRun(
            case=self._case,
            seed=self._seed,
            validation_loss=tuple(report.validation_loss for report in reports),
            validation_accuracy=tuple(report.validation_accuracy for report in reports),
            judged_loss=tuple(report.judged[0] for report in reports),
            judged_accuracy=tuple(report.judged[1] for report in reports),
            train_loss=tuple(report.train_loss for report in reports),
            train_accuracy=tuple(report.train_accuracy for report in reports),
        )


class _Column(Sequence[Number]):
    """One number of each epoch, for which the baseline is trained when it is looked at."""

    def __init__(self, training: BaselineInTraining, read: Callable[[EpochReport], Number]) -> None:
        self._training, self._read = training, read

    def __len__(self) -> int:
        return self._training.epochs + 1

    @overload
    def __getitem__(self, index: int) -> Number: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Number]: ...
    def __getitem__(self, index: int | slice) -> Number | Sequence[Number]:
        epochs = range(len(self))[index]
        if isinstance(epochs, int):
            return self._read(self._training.report(epochs))
        return tuple(self[epoch] for epoch in epochs)


@cache
def _fingerprint(instance: Instance, _source: tuple[object, ...]) -> str:
    """Hashing the data takes a while: once for each source they come from."""
    return instance.fingerprint()
