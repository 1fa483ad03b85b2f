"""Going on with a run: from its newest sound checkpoint, under the settings it may have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.nissa import RunDirectory, describe_run, read_config
from esper.simic.agent import CheckpointError, DamagedCheckpoint
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
    damage: str | None
    """Which they are, and what is lost."""

    @property
    def note(self) -> str | None:
        """What is to be recorded; None if nothing is unlike before."""
        changed = [f"{name} {change}" for name, change in self.changes.items()]
        return "; ".join([*changed, *([] if self.damage is None else [self.damage])]) or None

    def result(self, run: RunDirectory) -> TrainingResult:
        """Of a run that has nothing left to do."""
        return TrainingResult(
            run.path, self.rounds, self.env_steps, 0.0, None, self.best_score, self.checkpoint
        )


def find_resume_point(run: RunDirectory, config: TrainingConfig) -> ResumePoint:
    """The newest sound checkpoint, and the settings for going on from it. Changes nothing in the run.

    Raises CheckpointError where no checkpoint is sound, or one is not for this code; ConfigError for settings that a
    run cannot go on under.
    """
    sound: dict[Path, dict[str, Any]] = {}
    damaged: dict[Path, DamagedCheckpoint] = {}
    for path in run.checkpoints.all():
        try:
            sound[path] = read_run_checkpoint(path)
        except DamagedCheckpoint as error:
            damaged[path] = error
    if damaged and not sound:
        why = "; ".join(map(str, damaged.values()))
        raise CheckpointError(
            f"run {run.path} has no sound checkpoint ({why}); without the folder {run.checkpoints.folder} "
            "it begins from the start"
        )
    newest = max(sound, key=lambda path: sound[path]["extra"]["round"], default=None)
    saved: dict[str, Any] = {} if newest is None else sound[newest]
    extra = saved.get("extra", {"round": 0, "best_score": None, "config": read_config(run.path)})
    before = TrainingConfig.of(extra["config"])
    config = config.continuing(before)
    changes = {name: change for name, change in config.changes(before).items() if name not in _PLACE}
    return ResumePoint(
        config=config,
        changes=changes,
        checkpoint=newest,
        rounds=extra["round"],
        env_steps=saved["counters"]["env_steps"] if saved else 0,
        best_score=extra["best_score"],
        damaged=tuple(damaged),
        damage=None if newest is None or not damaged else _damage(run, list(damaged), newest, extra["round"]),
    )


def _damage(run: RunDirectory, damaged: list[Path], newest: Path, rounds: int) -> str:
    """Which checkpoints are damaged, what the run goes on from, and how many rounds are lost."""
    names = ", ".join(path.name for path in damaged)
    recorded = describe_run(run.path).last_round
    lost = "what came after is lost" if recorded is None else f"rounds lost: {max(0, recorded - rounds)}"
    best = "; the best is chosen anew" if any(path.name == "best.pt" for path in damaged) else ""
    return f"damaged: {names}; going on from {newest.name}, after round {rounds}; {lost}{best}"
