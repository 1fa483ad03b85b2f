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
    NOWHERE,
    CheckpointReason,
    CheckpointSaved,
    CheckpointStore,
    DecisionTaken,
    EvaluationFinished,
    Event,
    HostEvent,
    Place,
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
    prepare_baselines,
    selection_cases,
)
from esper.simic.cloning import require_warm_start, warm_start
from esper.simic.config.training_config import TrainingConfig
from esper.simic.decision_log import RoundLog
from esper.simic.env import EpisodeSummary
from esper.simic.env.episodes import HOSTS
from esper.simic.evaluation import LearnedPlayer, play_cases
from esper.simic.reports import (
    BatchSummary,
    Preparing,
    Progress,
    anomalies_raised,
    episode_finished,
    mean_of_known,
    round_finished,
)
from esper.simic.timing import StopRequest, peak_memory_bytes, stop_on_signals
from esper.statistics import mean_interval

FAILED = "failed.pt"
"""The agent as it gave up; for looking into, not for going on."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    directory: Path | None
    """The run's folder; None if no checkpoints were asked for."""
    rounds: int
    env_steps: int
    seconds: float
    interrupted: str | None
    """The signal that ended it, and what it interrupted besides training; None if it came to its end."""
    best_score: float | None
    """Mean validation gain that the best checkpoint was chosen by."""
    last_checkpoint: Path | None


class VectorizedPPOTrainer:
    """The loop. Everything it moves was built from a config; everything it tells goes to a sink.

    checkpoints  where they are kept; None keeps none
    sink         where events go; nothing that happens there can change the training
    progress     is shown what is prepared and every event but single decisions and what happens to hosts
    """

    def __init__(
        self,
        config: TrainingConfig,
        training: Training,
        *,
        checkpoints: CheckpointStore | None = None,
        sink: RunSink | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config, self.training = config, training
        self.agent, self.envs = training.agent, training.envs
        self.checkpoints, self._sink, self._progress = checkpoints, sink, progress
        self.stopwatch = training.envs.episodes.stopwatch
        self.round, self._began = 0, time.perf_counter()
        self.best_score: float | None = None
        self._episode_counts = [0] * config.num_envs
        self._epochs = [0] * config.num_envs
        self._tells_decisions = sink is not None and config.tells_everything
        self._info: dict[str, Any] = {}

    # The loop

    def train(self, stop: StopRequest | None = None) -> TrainingResult:
        """Round after round, until the config's rounds are done or somebody asks to stop.

        stop  of whoever handles signals already; without, they are handled here
        """
        if stop is None:
            with stop_on_signals() as stop:
                return self.train(stop)
        while self.round < self.config.rounds and not stop:
            with self.stopwatch.part("round"):
                self._run_round(stop)
        return self.finish(stop.reason)

    def finish(self, stopped: str | None) -> TrainingResult:
        """The last word of a run that did not fail."""
        seconds = time.perf_counter() - self._began
        status: RunStatus = "finished" if stopped is None else "interrupted"
        self._tell(RunFinished(status, stopped, self.round, self.agent.env_steps, seconds))
        return TrainingResult(
            directory=None if self.checkpoints is None else self.checkpoints.folder.parent,
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
        began, spent = time.perf_counter(), dict(self.stopwatch.seconds)
        on_hosts = self.stopwatch.total(HOSTS)
        log = RoundLog(
            self.envs,
            decisions=self._tells_decisions,
            observations=self.config.run_telemetry == "debug",
        )
        with self.stopwatch.part("collect"):
            batch = self._collect(stop, log)
        if batch is None:
            return
        with self.stopwatch.part("tell"):
            for event, place in log.events(self.agent):
                self._tell(event, place)
        learning_rate = self.agent.config.lr_at(self.agent.updates)
        with self.stopwatch.part("learn"):
            metrics = self.agent.update(self.envs.flat_observation)
        self.round += 1
        self._tell(
            round_finished(
                self.round,
                metrics,
                batch.episodes,
                env_steps=self.agent.env_steps,
                seconds=time.perf_counter() - began,
                host_seconds=self.stopwatch.total(HOSTS) - on_hosts,
                learning_rate=learning_rate,
                operations=batch.operations,
                reward_components=self.envs.telemetry.take(),
                seconds_by_part={
                    part: seconds - spent.get(part, 0.0)
                    for part, seconds in self.stopwatch.seconds.items()
                    if seconds > spent.get(part, 0.0)
                },
                peak_memory_bytes=peak_memory_bytes(),
            )
        )
        for anomaly in anomalies_raised(metrics.anomalies, round_number=self.round):
            self._tell(anomaly)
        with self.stopwatch.part("remember"):
            self._remember()

    def _collect(self, stop: StopRequest, log: RoundLog) -> BatchSummary | None:
        """A full rollout; None if somebody asked to stop before it was full."""
        batch = BatchSummary()
        while not self.agent.ready:
            if stop:
                return None
            with self.stopwatch.part("act"):
                mask = torch.from_numpy(self._info["action_mask"])
                actions = self.agent.act(self.envs.flat_observation, mask).cpu().numpy()
            with self.stopwatch.part("tell"):
                log.before()
            with self.stopwatch.part("step"):
                _, reward, terminated, truncated, self._info = self.envs.step(actions)
            self._store(reward, terminated, truncated)
            batch.count(actions, self._info["lost"])
            with self.stopwatch.part("tell"):
                self._log(log, batch, terminated | truncated)
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

    def _log(self, log: RoundLog, batch: BatchSummary, ended: NDArray[np.bool_]) -> None:
        """Where every env was in this step, and what came of it. Where an episode ended, that is its product."""
        places = [
            Place(self.round + 1, env_idx, self._episode_counts[env_idx], self._epochs[env_idx] + 1)
            for env_idx in range(self.envs.num_envs)
        ]
        accuracies = [
            self.envs.episodes.host(env_idx).report.validation_accuracy
            for env_idx in range(self.envs.num_envs)
        ]
        self._epochs = [epoch + 1 for epoch in self._epochs]
        finished = []
        for env_idx in map(int, np.flatnonzero(ended)):
            summary: EpisodeSummary = self._info["final_info"]["summary"][env_idx]
            batch.episodes.append(summary)
            finished.append(episode_finished(summary, places[env_idx]))
            accuracies[env_idx] = summary.validation_accuracy
            self._episode_counts[env_idx] += 1
            self._epochs[env_idx] = 0
        happened = [] if self.training.host_log is None else self.training.host_log.take()
        log.after(places, accuracies, happened, finished)

    # What is told

    def start(self, *, resumed_from: int | None) -> None:
        """The first word of a run."""
        self._tell(RunStarted(self.config.run_name or self.config.suite, __version__, resumed_from))

    def _tell(self, event: Event, place: Place = NOWHERE) -> None:
        if self._sink is not None:
            self._sink.emit(event, place)
        if isinstance(event, DecisionTaken | HostEvent):  # there are too many to show
            return
        if self._progress is not None:
            self._progress(event)

    # What is remembered

    def _remember(self) -> None:
        every = self.config.eval_every
        last = self.round == self.config.rounds
        evaluated = bool(every) and (self.round % every == 0 or last)
        score = self.evaluate() if evaluated else None
        if self.checkpoints is None:
            return
        better = score is not None and (self.best_score is None or score > self.best_score)
        if better:
            self.best_score = score
        extra = self._extra()
        if better:
            self._save(self.checkpoints, "best", score, extra)
        if self.round % self.config.run_checkpoint_every == 0:
            self._save(self.checkpoints, "periodic", score, extra)
        self._save(self.checkpoints, "last", score, extra)

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
        path = None if self.checkpoints is None else self.checkpoints.folder / "last.pt"
        return path if path is not None and path.exists() else None

    def _save(
        self, store: CheckpointStore, reason: CheckpointReason, score: float | None, extra: dict[str, Any]
    ) -> None:
        path = store.save(
            lambda path: self.agent.save(path, extra=extra), round_number=self.round, reason=reason
        )
        if reason != "last":  # that one is saved every round
            self._tell(CheckpointSaved(self.round, reason, str(path.relative_to(store.folder.parent)), score))

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
    checkpoints: CheckpointStore | None = None,
    resume: Path | None = None,
    sink: RunSink | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a controller as the config says; `resume` is a checkpoint to go on from.

    However it ends, the sink is told: a failure, too, is the last word of a run. Only a resume that is refused says
    nothing: the run is what it was before.
    """
    began, training, trainer = time.perf_counter(), None, None
    failed = None if checkpoints is None else checkpoints.folder / FAILED
    with stop_on_signals() as stop:
        try:
            if resume is None:
                require_warm_start(config)
            training = build(config, failure_checkpoint=failed)
            fresh = VectorizedPPOTrainer(
                config, training, checkpoints=checkpoints, sink=sink, progress=progress
            )
            if resume is not None:
                fresh.resume(resume)
            trainer = fresh
            trainer.start(resumed_from=None if resume is None else trainer.round)
            tell = (lambda _: None) if progress is None else progress
            prepared = prepare_baselines(training, config, tell, lambda: bool(stop))
            if stop:
                return trainer.finish(_stopped_early(stop, prepared))
            if resume is None:
                warm_start(training, config)
                trainer.begin()
            return trainer.train(stop)
        except BaseException as error:
            if sink is not None and (trainer is not None or resume is None):
                sink.emit(_failure(error, trainer, time.perf_counter() - began))
            raise
        finally:
            if training is not None:
                training.envs.close()


def _stopped_early(stop: StopRequest, prepared: Preparing | None) -> str:
    """Curves are kept on disk, for the next start."""
    kept = "" if prepared is None else f" ({prepared.done} of {prepared.total} are kept)"
    return f"{stop.reason} while control curves were trained{kept}"


def _failure(error: BaseException, trainer: VectorizedPPOTrainer | None, seconds: float) -> RunFinished:
    return RunFinished(
        status="interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
        reason=f"{type(error).__name__}: {error}".rstrip(": "),
        rounds=0 if trainer is None else trainer.round,
        env_steps=0 if trainer is None else trainer.agent.env_steps,
        seconds=seconds,
    )
