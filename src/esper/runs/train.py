"""`esper.train`: a training run with its folder and its record, as `esper train` makes it."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from esper.leyline import RunSink
from esper.nissa import NullSink, RunDirectory, collect_provenance, open_recorder
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import Progress

if TYPE_CHECKING:
    from esper.simic.trainer import TrainingResult

WANDB_PROJECT = "esper"


def train(
    config: TrainingConfig, *, resume: bool = False, progress: Progress | None = None
) -> "TrainingResult":
    """Train a controller in a folder under `config.run_directory`; returns the result, whose `interrupted` says if it
    was stopped early.

    config    its run_name names the folder; None makes a name of suite, date and time
    resume    go on with the run of that name, from its newest checkpoint or, without one, from the start
    progress  called with what happens: `progress=print` for a look
    """
    from esper.simic.trainer import train_ppo_vectorized

    config = with_name(config)
    require_trainable(config)
    with _open_run(config, resume=resume) as run, _recorder(run, config) as sink:
        checkpoint = run.checkpoints.newest() if resume else None
        return train_ppo_vectorized(
            config, checkpoints=run.checkpoints, resume=checkpoint, sink=sink, progress=progress
        )


def with_name(config: TrainingConfig) -> TrainingConfig:
    """The same settings with a run_name, made if there is none."""
    return config if config.run_name else replace(config, run_name=new_name(config.suite, datetime.now()))


def new_name(suite: str, now: datetime) -> str:
    """A run's name: the suite or task, the date and the time."""
    return f"{suite.partition(':')[0]}-{now:%Y%m%d-%H%M%S}"


def require_trainable(config: TrainingConfig) -> None:
    """Raise ConfigError for what this machine cannot do, before a run is begun."""
    from esper.simic.building import require_menu
    from esper.simic.env.making import make_world, require_device, require_suite

    require_suite(config.suite)
    require_device(config.device, config.suite)
    if config.menu is not None:
        require_menu(config, make_world(config.suite, 1).space)
    if config.run_wandb and find_spec("wandb") is None:
        raise ConfigError(
            "run_wandb is on, and the package wandb is not installed: pip install 'esper[wandb]'"
        )


def _open_run(config: TrainingConfig, *, resume: bool) -> RunDirectory:
    assert config.run_name is not None
    provenance = collect_provenance(
        seeds={"run": config.seed}, device=config.device, precision=config.precision
    )
    where, kept = (config.run_directory, config.run_name), config.run_keep_checkpoints
    if resume:
        return RunDirectory.resume(*where, provenance, kept=kept)
    return RunDirectory.create(*where, config.to_dict(), provenance, kept=kept)


@contextlib.contextmanager
def _recorder(run: RunDirectory, config: TrainingConfig) -> Iterator[RunSink]:
    if config.run_telemetry == "off":
        yield NullSink()
        return
    wandb_project = WANDB_PROJECT if config.run_wandb else None
    with open_recorder(run, tensorboard=config.run_tensorboard, wandb_project=wandb_project) as recorder:
        yield recorder
