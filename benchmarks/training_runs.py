"""What the trainer's benchmarks share: runs that are taken one round at a time, and where their time went."""

import dataclasses
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esper.nissa import Checkpoints, RunDirectory, collect_provenance, open_recorder
from esper.simic.building import build, prepare_baselines
from esper.simic.config.training_config import TrainingConfig
from esper.simic.timing import StopRequest, Stopwatch, seconds_in
from esper.simic.trainer import VectorizedPPOTrainer


class Rounds:
    """A run that is moved on by hand."""

    def __init__(self, trainer: VectorizedPPOTrainer) -> None:
        self.trainer, self._stop = trainer, StopRequest()

    @property
    def stopwatch(self) -> Stopwatch:
        return self.trainer.stopwatch

    def one(self) -> None:
        with self.stopwatch.part("round"):
            self.trainer._run_round(self._stop)


@contextmanager
def begun(config: TrainingConfig, folder: Path) -> Iterator[Rounds]:
    """A run with everything that a real one has: checkpoints, and what its telemetry asks for."""
    training = build(config)
    try:
        prepare_baselines(training, config)
        if config.run_telemetry == "off":
            trainer = VectorizedPPOTrainer(config, training, checkpoints=Checkpoints(folder / "checkpoints"))
            trainer.begin()
            yield Rounds(trainer)
            return
        provenance = collect_provenance(seeds={"run": 0}, device=config.device, precision=config.precision)
        name = config.run_name or "run"
        with (
            RunDirectory.create(folder, name, config.to_dict(), provenance) as run,
            open_recorder(run) as recorder,
        ):
            trainer = VectorizedPPOTrainer(config, training, checkpoints=run.checkpoints, sink=recorder)
            trainer.begin()
            yield Rounds(trainer)
    finally:
        training.envs.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of some rounds."""

    whole: float
    hosts: float
    """Hosts training, validated, settled and begun."""
    begin: float
    """Of that, making new hosts."""
    act: float
    learn: float
    log: float
    save: float

    @property
    def outside(self) -> float:
        """The share that is no work of hosts."""
        return 1.0 - self.hosts / self.whole


def spent(watch: Stopwatch, before: "Spent | None" = None) -> Spent:
    """So far, or since."""
    now = Spent(
        whole=seconds_in(watch.seconds, "round"),
        **{
            part: seconds_in(watch.seconds, part)
            for part in ("hosts", "begin", "act", "learn", "log", "save")
        },
    )
    if before is None:
        return now
    return Spent(**{name: getattr(now, name) - getattr(before, name) for name in Spent.__slots__})


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="esper-bench-") as folder:
        yield Path(folder)


def peak_mebibytes() -> float:
    """Of this process, since it began (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
