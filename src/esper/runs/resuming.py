"""Going on with a run: from its newest sound checkpoint, under the settings it may have."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.nissa import RunDirectory, describe_run, read_config
from esper.simic.agent import CheckpointError, DamagedCheckpoint
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.trainer import TrainingResult, read_run_checkpoint

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
