"""Training a controller: observe, mask, act, step, store; at the end of a rollout learn, tell, remember."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper import __version__
from esper.leyline import (
    CheckpointReason,
    CheckpointSaved,
    DecisionTaken,
    EvaluationFinished,
    RunEvent,
    RunFinished,
    RunSink,
    RunStarted,
    RunStatus,
)
from esper.simic.agent.checkpoint import CheckpointError
from esper.simic.building import (
    Training,
    build,
    evaluation_episodes,
    prepare_controls,
    selection_cases,
)
from esper.simic.decisions import DecisionLog
from esper.simic.env import EpisodeSummary
from esper.simic.evaluation import LearnedPlayer, play_cases
from esper.simic.interrupts import StopRequest, stop_on_signals
from esper.simic.memory import peak_memory_bytes
from esper.simic.progress import Progress
from esper.simic.reports import anomalies_raised, episode_finished, mean_of_known, round_finished
from esper.simic.rounds import BatchSummary
from esper.simic.statistics import mean_interval
from esper.simic.training_config import TrainingConfig

CHECKPOINTS = "checkpoints"
FAILED = "failed.pt"
"""The agent as it gave up; for looking into, not for going on."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    directory: Path | None
    """The run's folder; None if none was asked for."""
    rounds: int
    env_steps: int
    seconds: float
    interrupted: str | None
    """The signal that ended it; None if it came to its end."""
    best_score: float | None
    """Mean validation gain that the best checkpoint was chosen by."""
    last_checkpoint: Path | None


class VectorizedPPOTrainer:
    """The loop. Everything it moves was built from a config; everything it tells goes to a sink.

    directory  where checkpoints go (`checkpoints/last.pt`, `best.pt`, `round-<n>.pt`); None keeps none
    sink       where events go; nothing that happens there can change the training
    progress   is shown what is prepared and every event but single decisions
    """

    def __init__(
        self,
        config: TrainingConfig,
        training: Training,
        *,
        directory: Path | None = None,
        sink: RunSink | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config, self.training = config, training
        self.agent, self.envs = training.agent, training.envs
        self.directory, self._sink, self._progress = directory, sink, progress
        self.round, self._began = 0, time.perf_counter()
        self.best_score: float | None = None
        self._episode_counts = [0] * config.num_envs
        self._epochs = [0] * config.num_envs
        self._tells_decisions = sink is not None and config.run_telemetry in ("full", "debug")
        self._info: dict[str, Any] = {}

    # The loop

    def train(self) -> TrainingResult:
        """Round after round, until the config's rounds are done or somebody asks to stop."""
        with stop_on_signals() as stop:
            while self.round < self.config.rounds and not stop:
                self._run_round(stop)
            stopped = stop.reason
        seconds = time.perf_counter() - self._began
        status: RunStatus = "finished" if stopped is None else "interrupted"
        self._tell(RunFinished(status, stopped, self.round, self.agent.env_steps, seconds))
        return TrainingResult(
            directory=self.directory,
            rounds=self.round,
            env_steps=self.agent.env_steps,
            seconds=seconds,
            interrupted=stopped,
            best_score=self.best_score,
            last_checkpoint=self._last_checkpoint(),
        )

    def begin(self) -> None:
        """A new run: every env begins an episode."""
        _, self._info = self.envs.reset(seed=self.config.seed)
        self.agent.begin_episodes()

    def _run_round(self, stop: StopRequest) -> None:
        """Collect a rollout, learn from it, tell, remember. A stop drops what was collected since the last round:
        the checkpoint is of that round's end, and going on from it repeats the rollout exactly."""
        began = time.perf_counter()
        decisions = DecisionLog(self.envs, observations=self.config.run_telemetry == "debug")
        batch = self._collect(stop, decisions)
        if batch is None:
            return
        if self._tells_decisions:
            for event in decisions.events(self.round + 1, self.agent):
                self._tell(event)
        learning_rate = self.agent.config.lr_at(self.agent.updates)
        metrics = self.agent.update(self.envs.flat_observation)
        self.round += 1
        self._tell(
            round_finished(
                self.round,
                metrics,
                batch.episodes,
                env_steps=self.agent.env_steps,
                seconds=time.perf_counter() - began,
                learning_rate=learning_rate,
                operations=batch.operations,
                reward_components=self.envs.telemetry.take(),
                peak_memory_bytes=peak_memory_bytes(),
            )
        )
        for anomaly in anomalies_raised(metrics.anomalies, round_number=self.round):
            self._tell(anomaly)
        self._remember(batch)

    def _collect(self, stop: StopRequest, decisions: DecisionLog) -> BatchSummary | None:
        """A full rollout; None if somebody asked to stop before it was full."""
        batch = BatchSummary()
        while not self.agent.ready:
            if stop:
                return None
            mask = torch.from_numpy(self._info["action_mask"])
            actions = self.agent.act(self.envs.flat_observation, mask).cpu().numpy()
            if self._tells_decisions:
                decisions.before()
            _, reward, terminated, truncated, self._info = self.envs.step(actions)
            self._store(reward, terminated, truncated)
            if self._tells_decisions:
                self._log(decisions, terminated | truncated)
            batch.count(actions, self._info["lost"])
            self._finish_episodes(batch, terminated | truncated)
        return batch

    def _store(
        self, reward: NDArray[np.float64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
    ) -> None:
        """A lost episode has no final state: its last step is invalid, and what was collected of it is dropped."""
        lost: NDArray[np.bool_] = self._info["lost"]
        self.agent.observe(
            torch.from_numpy(reward),
            terminated | lost,
            truncated & ~lost,
            valid=~lost if lost.any() else None,
        )
        for env_idx in map(int, np.flatnonzero(lost)):
            self.agent.drop_episode(env_idx)

    def _finish_episodes(self, batch: BatchSummary, ended: NDArray[np.bool_]) -> None:
        for env_idx in map(int, np.flatnonzero(ended)):
            summary: EpisodeSummary = self._info["final_info"]["summary"][env_idx]
            batch.episodes.append(summary)
            episode = self._episode_counts[env_idx]
            self._tell(episode_finished(summary, round_number=self.round + 1, env=env_idx, episode=episode))
            self._episode_counts[env_idx] += 1

    def _log(self, decisions: DecisionLog, ended: NDArray[np.bool_]) -> None:
        """The accuracy after the step is that of the product where an episode ended."""
        accuracies = [
            self._info["final_info"]["summary"][env_idx].validation_accuracy
            if ended[env_idx]
            else self.envs.episodes.host(env_idx).report.validation_accuracy
            for env_idx in range(self.envs.num_envs)
        ]
        self._epochs = [epoch + 1 for epoch in self._epochs]
        decisions.after(self._episode_counts, self._epochs, accuracies)
        self._epochs = [0 if over else epoch for epoch, over in zip(self._epochs, ended, strict=True)]

    # What is told

    def start(self, *, resumed_from: int | None) -> None:
        """The first word of a run."""
        self._tell(RunStarted(self.config.run_name or self.config.suite, __version__, resumed_from))

    def _tell(self, event: RunEvent) -> None:
        if self._sink is not None:
            self._sink.emit(event)
        if self._progress is not None and not isinstance(event, DecisionTaken):  # there are too many to show
            self._progress(event)

    # What is remembered

    def _remember(self, batch: BatchSummary) -> None:
        every = self.config.eval_every
        last = self.round == self.config.rounds
        evaluated = bool(every) and (self.round % every == 0 or last)
        score = self.evaluate() if evaluated else (None if every else batch.mean_gain)
        if self.directory is None:
            return
        if score is not None and (self.best_score is None or score > self.best_score):
            self.best_score = score
            self._save("best", score)
        if self.round % self.config.run_checkpoint_every == 0:
            self._save("periodic", score)
        self._save("last", score)

    def evaluate(self) -> float | None:
        """The mean gain of the greedy policy on hosts it does not train on; by this the best checkpoint is chosen."""
        wanted = selection_cases(self.training, self.config.eval_episodes)
        episodes = evaluation_episodes(self.training, self.config, min(len(wanted), self.config.num_envs))
        judged = play_cases(LearnedPlayer(self.agent.actor), episodes, wanted)
        summaries = [one.summary for one in judged]
        gains = [summary.gain for summary in summaries if summary.gain is not None]
        gain = mean_of_known(gains)
        low, high = mean_interval(gains) if len(gains) > 1 else (None, None)  # one says nothing of its spread
        self._tell(
            EvaluationFinished(
                round=self.round,
                env_steps=self.agent.env_steps,
                policy="learned",
                suite=self.config.suite,
                episodes=len(summaries),
                mean_return=mean_of_known(summary.episode_return for summary in summaries),
                mean_utility=mean_of_known(summary.utility for summary in summaries),
                mean_gain=gain,
                gain_low=low,
                gain_high=high,
                mean_accuracy=mean_of_known(summary.validation_accuracy for summary in summaries),
            )
        )
        return gain

    def _last_checkpoint(self) -> Path | None:
        """None without a directory, and before the end of the first round."""
        path = None if self.directory is None else self._path("last")
        return path if path is not None and path.exists() else None

    def _path(self, kind: CheckpointReason) -> Path:
        assert self.directory is not None
        name = f"round-{self.round:06}" if kind == "periodic" else kind
        return self.directory / CHECKPOINTS / f"{name}.pt"

    def _save(self, reason: CheckpointReason, score: float | None) -> None:
        path = self._path(reason)
        self.agent.save(path, extra=self._extra())
        assert self.directory is not None
        if reason != "last":  # that one is saved every round
            self._tell(CheckpointSaved(self.round, reason, str(path.relative_to(self.directory)), score))

    def _extra(self) -> dict[str, Any]:
        """What the agent does not own."""
        return {
            "round": self.round,
            "best_score": self.best_score,
            "episode_counts": list(self._episode_counts),
            "epochs": list(self._epochs),
            "config": self.config.to_dict(),
            "envs": self.envs.state_dict(),
        }

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; on the CPU the run is then the same, bit for bit, as if it had never stopped."""
        extra: dict[str, Any] = self.agent.load(path)
        missing = {"round", "best_score", "episode_counts", "epochs", "config", "envs"} - set(extra)
        if missing:
            raise CheckpointError(
                f"{path} is no checkpoint of a training run: it has no {', '.join(sorted(missing))}"
            )
        self.round, self.best_score = extra["round"], extra["best_score"]
        self._episode_counts, self._epochs = list(extra["episode_counts"]), list(extra["epochs"])
        _, self._info = self.envs.load_state_dict(extra["envs"])


def train_ppo_vectorized(
    config: TrainingConfig,
    *,
    directory: Path | None = None,
    resume: Path | None = None,
    sink: RunSink | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a controller as the config says; `resume` is a checkpoint to go on from.

    However it ends, the sink is told: a failure, too, is the last word of a run.
    """
    began, trainer = time.perf_counter(), None
    failed = None if directory is None else directory / CHECKPOINTS / FAILED
    try:
        training = build(config, failure_checkpoint=failed)
        trainer = VectorizedPPOTrainer(config, training, directory=directory, sink=sink, progress=progress)
        if resume is not None:
            trainer.resume(resume)
        trainer.start(resumed_from=None if resume is None else trainer.round)
        prepare_controls(training, config, (lambda _: None) if progress is None else progress)
        if resume is None:
            trainer.begin()
        return trainer.train()
    except BaseException as error:
        if sink is not None:
            sink.emit(_failure(error, trainer, time.perf_counter() - began))
        raise
    finally:
        if trainer is not None:
            trainer.envs.close()


def _failure(error: BaseException, trainer: VectorizedPPOTrainer | None, seconds: float) -> RunFinished:
    return RunFinished(
        status="interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
        reason=f"{type(error).__name__}: {error}".rstrip(": "),
        rounds=0 if trainer is None else trainer.round,
        env_steps=0 if trainer is None else trainer.agent.env_steps,
        seconds=seconds,
    )
