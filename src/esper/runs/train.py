"""`esper.train`: a training run with its folder and its record, as `esper train` makes it."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from esper.leyline import RunSink
from esper.nissa import NullSink, Provenance, RunDirectory, collect_provenance, describe_run, open_recorder
from esper.simic.config.checks import ConfigError
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
    resume    go on with the run of that name, from its newest sound checkpoint or, without any, from the start. More
              `rounds` go on beyond those first asked for: annealing keeps the length it had. Other settings than
              rounds, workers, cluster, eval_every and those of the record must be the run's
    progress  called with what happens: `progress=print` for a look
    """
    config = with_name(config)
    require_trainable(config, resume=resume)
    if resume:
        return _resume(config, progress)
    assert config.run_name is not None
    with (
        RunDirectory.create(
            config.run_directory,
            config.run_name,
            config.to_dict(),
            _provenance(config),
            kept=config.run_keep_checkpoints,
        ) as run,
        _recorder(run, config) as sink,
    ):
        return _loop(config)(config, checkpoints=run.checkpoints, sink=sink, progress=progress)


def _resume(config: TrainingConfig, progress: Progress | None) -> "TrainingResult":
    from esper.runs.resuming import find_resume_point

    assert config.run_name is not None
    path = config.run_directory / config.run_name
    standing = describe_run(path).standing
    with RunDirectory.resume(config.run_directory, config.run_name, kept=config.run_keep_checkpoints) as run:
        point = find_resume_point(run, config)
        if point.warning is not None:
            warnings.warn(point.warning, stacklevel=3)
        if point.rounds == config.rounds:
            warnings.warn(
                f"run {path} is finished, with {point.rounds} rounds; `esper resume {path} --rounds N` goes on to N",
                stacklevel=3,
            )
            if standing == "finished":
                run.checkpoints.set_aside(point.damaged)
                return point.result(run)

        def accept() -> None:
            run.checkpoints.set_aside(point.damaged)
            run.record_start(_provenance(config), point.config.to_dict() if point.changes else None)

        with _recorder(run, point.config) as sink:
            return _loop(point.config)(
                point.config,
                checkpoints=run.checkpoints,
                resume=point.checkpoint,
                accept=accept,
                note=point.note,
                sink=sink,
                progress=progress,
            )


def _loop(config: TrainingConfig) -> "Callable[..., TrainingResult]":
    """What trains under these settings: on hosts, or from data sets alone."""
    if config.offline:
        from esper.simic.offline.trainer import train_offline

        return train_offline
    from esper.simic.trainer import train_ppo_vectorized

    return train_ppo_vectorized


def with_name(config: TrainingConfig) -> TrainingConfig:
    """The same settings with a run_name, made if there is none."""
    return config if config.run_name else replace(config, run_name=new_name(config.suite, datetime.now()))


def new_name(suite: str, now: datetime) -> str:
    """A run's name: the suite or task, the date and the time."""
    return f"{suite.partition(':')[0]}-{now:%Y%m%d-%H%M%S}"


def require_trainable(config: TrainingConfig, *, resume: bool = False) -> None:
    """Raise ConfigError for what this machine cannot do, before a run is begun or resumed."""
    from esper.simic.building import require_menu
    from esper.simic.cloning import require_warm_start
    from esper.simic.env.making import make_world, require_device, require_reparametrisable, require_suite
    from esper.tolaria.worlds.cluster.connecting import require_cluster

    require_suite(config.suite)
    require_device(config.device, config.suite, offline=bool(config.offline))
    if config.cluster is not None:
        require_cluster(config.cluster, config.device)
    if config.reparametrise:
        require_reparametrisable(config.suite)
    if config.menu is not None:
        require_menu(config, make_world(config.suite, 1).space)
    if config.offline:
        from esper.simic.offline.trainer import require_offline

        require_offline(config)
    elif not resume:
        require_warm_start(config)
    if config.run_wandb and find_spec("wandb") is None:
        raise ConfigError(
            "run_wandb is on, and the package wandb is not installed: pip install 'esper-grow[wandb]'"
        )


def _provenance(config: TrainingConfig) -> Provenance:
    return collect_provenance(seeds={"run": config.seed}, device=config.device, precision=config.precision)


@contextlib.contextmanager
def _recorder(run: RunDirectory, config: TrainingConfig) -> Iterator[RunSink]:
    if config.run_telemetry == "off":
        yield NullSink()
        return
    wandb_project = WANDB_PROJECT if config.run_wandb else None
    with open_recorder(run, tensorboard=config.run_tensorboard, wandb_project=wandb_project) as recorder:
        yield recorder
