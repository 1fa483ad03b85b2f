"""`esper.train`: a training run with its folder and its record, as `esper train` makes it."""

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esper.leyline import RunSink
from esper.leyline.errors import install
from esper.nissa import (
    NullSink,
    Provenance,
    RunDirectory,
    collect_provenance,
    describe_run,
    open_recorder,
    read_config,
)
from esper.nissa.run_directory import require_free
from esper.simic.agent import CheckpointError, DamagedCheckpoint
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.reports import Progress
from esper.simic.trainer import TrainingResult, read_run_checkpoint, train_ppo_vectorized
from esper.tolaria.worlds.processes import UnguardedScript
from esper.tolaria.worlds.worker import end_if_imported

WANDB_PROJECT = "esper"


def train(
    config: TrainingConfig, *, resume: bool = False, progress: Progress | None = None
) -> TrainingResult:
    """Train a controller in a folder under `config.run_directory`; returns the result, whose `interrupted` says if it
    was stopped early.

    config    its run_name names the folder; None makes a name of suite, date and time. With workers, the calling
              script needs an `if __name__ == "__main__":`
    resume    go on with the run of that name, from its newest sound checkpoint or, without any, from the start. More
              `rounds` go on beyond those first asked for: annealing keeps the length it had. Other settings than
              rounds, workers, cluster, eval_every and those of the record must be the run's
    progress  called with what happens: `progress=print` for a look
    """
    if not isinstance(config, TrainingConfig):
        raise TypeError(
            f"config is {config!r}; expected a TrainingConfig, such as TrainingConfig.preset('demo')"
        )
    if config.workers:
        end_if_imported()  # before anything is made
    config = with_name(config)
    require_trainable(config, resume=resume)
    if resume:
        return _resume(config, progress)
    assert config.run_name is not None
    try:
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
    except UnguardedScript:  # no host was ever made, and the script, mended, wants the name
        shutil.rmtree(config.run_directory / config.run_name, ignore_errors=True)
        raise


def _resume(config: TrainingConfig, progress: Progress | None) -> TrainingResult:
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


def _loop(config: TrainingConfig) -> Callable[..., TrainingResult]:
    """What trains under these settings: on hosts, or from data sets alone."""
    if config.offline:
        from esper.simic.offline.trainer import train_offline

        return train_offline
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

    if not resume and config.run_name is not None:
        require_free(config.run_directory, config.run_name)
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
        raise ConfigError(f"run_wandb is on, and the package wandb is not installed: {install('wandb')}")


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


# Going on with a run: from its newest sound checkpoint, under the settings it may have


_PLACE = ("run_name", "run_directory")
"""Settings that say where a run is, which differ when its folder was moved."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on, and how."""

    config: TrainingConfig
    changes: dict[str, str]
    """Setting -> its values before and now, where they differ."""
    checkpoint: Path | None
    """None begins from the start."""
    rounds: int
    """Rounds that are done."""
    env_steps: int
    best_score: float | None
    damaged: tuple[Path, ...]
    """Checkpoints whose content is no longer what was written."""
    warning: str | None
    """Which checkpoints cannot be used, and what is lost."""

    @property
    def note(self) -> str | None:
        """What is to be recorded; None if nothing is unlike before."""
        changed = [f"{name} {change}" for name, change in self.changes.items()]
        return "; ".join([*changed, *([] if self.warning is None else [self.warning])]) or None

    def result(self, run: RunDirectory) -> TrainingResult:
        """Of a run that has nothing left to do."""
        return TrainingResult(
            run.path, self.rounds, self.env_steps, 0.0, None, self.best_score, self.checkpoint
        )


def find_resume_point(run: RunDirectory, config: TrainingConfig) -> ResumePoint:
    """The newest sound checkpoint, and the settings for going on from it. Changes nothing in the run.

    Raises CheckpointError where there are checkpoints and none can be used; ConfigError for settings that a run
    cannot go on under.
    """
    sound: dict[Path, dict[str, Any]] = {}
    refused: dict[Path, CheckpointError] = {}
    for path in run.checkpoints.all():
        try:
            sound[path] = read_run_checkpoint(path)
        except CheckpointError as error:
            refused[path] = error
    if refused and not sound:
        why = "; ".join(map(str, refused.values()))
        raise CheckpointError(
            f"run {run.path} has no sound checkpoint ({why}); without the folder {run.checkpoints.folder} "
            "it begins from the start"
        )
    newest = max(sound, key=lambda path: sound[path]["extra"]["round"], default=None)
    saved: dict[str, Any] = {} if newest is None else sound[newest]
    extra = saved.get("extra", {"round": 0, "best_score": None, "config": read_config(run.path)})
    before = TrainingConfig.of(extra["config"])
    config = config.continuing(before)
    if config.rounds < extra["round"]:
        raise ConfigError(f"rounds is {config.rounds}; {extra['round']} are done")
    damaged = [path for path, error in refused.items() if isinstance(error, DamagedCheckpoint)]
    best = run.checkpoints.folder / "best.pt"
    best_score = extra["best_score"] if best.is_file() and best not in damaged else None
    if newest is not None and config.rounds == extra["round"]:
        warning = f"damaged: {_names(damaged)}, set aside" if damaged else None
    else:
        anew = extra["best_score"] is not None and best_score is None
        warning = _warning(run, refused, newest, extra["round"], anew=anew)
    return ResumePoint(
        config=config,
        changes={name: change for name, change in config.changes(before).items() if name not in _PLACE},
        checkpoint=newest,
        rounds=extra["round"],
        env_steps=saved["counters"]["env_steps"] if saved else 0,
        best_score=best_score,
        damaged=tuple(damaged),
        warning=warning,
    )


def _warning(
    run: RunDirectory, refused: dict[Path, CheckpointError], newest: Path | None, rounds: int, *, anew: bool
) -> str | None:
    """Which checkpoints cannot be used, what the run goes on from, and how many rounds are lost; None if nothing is.

    anew  whether the best checkpoint is lost
    """
    recorded = describe_run(run.path).last_round
    lost = 0 if recorded is None else max(0, recorded - rounds)
    if newest is None:
        return "no checkpoint; from the start" + ("" if recorded is None else f", rounds lost: {lost}")
    if not (refused or lost or anew):
        return None
    damaged = [path for path, error in refused.items() if isinstance(error, DamagedCheckpoint)]
    return "; ".join(
        [
            *([f"damaged: {_names(damaged)}"] if damaged else []),
            *(str(error) for path, error in refused.items() if path not in damaged),
            f"going on from {newest.name}, after round {rounds}",
            "what came after is lost" if recorded is None else f"rounds lost: {lost}",
            *(["the best is chosen anew"] if anew else []),
        ]
    )


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(path.name for path in paths)
