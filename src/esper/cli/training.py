"""What `esper train` and `esper resume` share: the run's folder, its recorder, the trainer, and what is told."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from esper.cli.errors import INTERRUPTED, BadInput
from esper.cli.output import as_json, plain, table
from esper.cli.tasks import require_suite
from esper.leyline import AnomalyRaised, EvaluationFinished, RoundFinished, RunSink
from esper.nissa import NullSink, RunDirectory, RunError, collect_provenance, open_recorder
from esper.simic.toy.suites import TOY_SUITES
from esper.simic.training_config import TrainingConfig

WANDB_PROJECT = "esper"
GAVE_UP = 1


@dataclass(frozen=True, slots=True)
class Report:
    """What the person at the terminal is told."""

    quiet: bool
    json: bool

    def say(self, text: str) -> None:
        if not self.quiet and not self.json:
            print(text, flush=True)

    def progress(self, news: object) -> None:
        if isinstance(news, RoundFinished):
            self.say(round_line(news))
        elif isinstance(news, AnomalyRaised):
            self.say(f"  {news.name}: {news.detail} ({news.advice})")
        elif isinstance(news, EvaluationFinished):
            self.say(
                f"  judged on {news.episodes} hosts it does not train on: gain {_signed(news.mean_gain)}"
            )

    def result(self, result: object) -> None:
        if self.json:
            print(as_json(result))
        elif isinstance(numbers := plain(result), dict):
            self.say(table(("result", ""), list(numbers.items())))
        else:
            self.say(str(numbers))


def round_line(news: RoundFinished) -> str:
    """A round in one line; what is unknown is left out."""
    parts = {
        "return": _signed(news.mean_return),
        "gain": _signed(news.mean_gain),
        "accuracy": None if news.mean_accuracy is None else f"{news.mean_accuracy:.3f}",
        "KL": None if news.approx_kl is None else f"{news.approx_kl:.4f}",
        "env-epochs/s": None if news.env_epochs_per_second is None else f"{news.env_epochs_per_second:.1f}",
    }
    told = "  ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
    return f"round {news.round:4}  {news.env_steps:9,} steps  {told}".rstrip()


def train_recorded(config: TrainingConfig, report: Report, *, resume: bool = False) -> int:
    """Train under a run directory; returns the exit code."""
    _require_trainable(config)
    try:
        with _open_run(config, resume=resume) as run, _recorder(run, config) as sink:
            checkpoint = run.checkpoints.newest() if resume else None
            report.say(f"{'run' if checkpoint is None else 'resuming'} {run.path}")
            if resume and checkpoint is None:
                report.say(f"{run.path} has no checkpoint yet: it begins anew")
            return _train(config, report, run.path, sink, checkpoint)
    except RunError as error:
        raise BadInput(str(error)) from None


def _train(config: TrainingConfig, report: Report, run: Path, sink: RunSink, checkpoint: Path | None) -> int:
    from esper.simic.agent import CheckpointError, NonFiniteUpdateError
    from esper.simic.trainer import train_ppo_vectorized
    from esper.tolaria.memory import OutOfDeviceMemory

    try:
        result = train_ppo_vectorized(
            config, directory=run, resume=checkpoint, sink=sink, progress=report.progress
        )
    except KeyboardInterrupt:
        print(f"esper: interrupted; `esper resume {run}` goes on", file=sys.stderr)
        return INTERRUPTED
    except NonFiniteUpdateError as error:
        print(f"esper: {error}", file=sys.stderr)
        return GAVE_UP
    except (CheckpointError, OutOfDeviceMemory) as error:
        raise BadInput(str(error)) from None
    report.result(result)
    if result.interrupted is not None:
        print(f"esper: stopped by {result.interrupted}; `esper resume {run}` goes on", file=sys.stderr)
        return INTERRUPTED
    return 0


def _open_run(config: TrainingConfig, *, resume: bool) -> RunDirectory:
    if config.run_name is None:
        raise ValueError("run_name is None; a run directory needs a name")
    provenance = collect_provenance(
        seeds={"run": config.seed}, device=config.device, precision=config.precision
    )
    if resume:
        return RunDirectory.resume(config.run_directory, config.run_name, provenance)
    return RunDirectory.create(config.run_directory, config.run_name, config.to_dict(), provenance)


@contextlib.contextmanager
def _recorder(run: RunDirectory, config: TrainingConfig) -> Iterator[RunSink]:
    if config.run_telemetry == "off":
        yield NullSink()
        return
    wandb_project = WANDB_PROJECT if config.run_wandb else None
    with open_recorder(run, tensorboard=config.run_tensorboard, wandb_project=wandb_project) as recorder:
        yield recorder


def _require_trainable(config: TrainingConfig) -> None:
    """Refuse what this machine cannot do, before a run is begun."""
    require_suite(config.suite)
    if config.run_wandb and find_spec("wandb") is None:
        raise BadInput("run_wandb is on, and the package wandb is not installed: pip install 'esper[wandb]'")
    if config.device != "cpu":
        import torch

        if config.suite in TOY_SUITES:
            raise BadInput(
                f"device is {config.device!r}; the toy has nothing to compute there, expected 'cpu'"
            )
        if not torch.cuda.is_available():
            raise BadInput(
                f"device is {config.device!r}, and torch finds no CUDA device; `esper doctor` tells"
            )


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+.4f}"
