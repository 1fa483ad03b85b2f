"""Training a controller: observe, mask, act, step, store; at the end of a rollout update, log, save."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from esper import __version__
from esper.leyline import (
    NOWHERE,
    CheckpointReason,
    CheckpointSaved,
    CheckpointStore,
    ClusteredWorld,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    HostEvent,
    HostsLost,
    Place,
    PunctualWorld,
    RunFinished,
    RunSink,
    RunStarted,
    RunStatus,
)
from esper.simic.agent.checkpoint import CheckpointError, read_checkpoint
from esper.simic.building import (
    Training,
    build,
    evaluation_episodes,
    prepare_baselines,
    selection_cases,
)
from esper.simic.cloning import require_warm_start, warm_start
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import FlatVectorEnv
from esper.simic.env.episodes import HOSTS
from esper.simic.env.flat import Flat
from esper.simic.evaluation import LearnedPlayer, play_cases, utilities
from esper.simic.gymnasium_loop import Info, collect
from esper.simic.offline.dataset import EPISODES_FOLDER, write_episodes
from esper.simic.offline.recorder import EpisodeRecorder
from esper.simic.reports import (
    BatchSummary,
    News,
    Preparing,
    Progress,
    RoundLog,
    Working,
    anomalies_raised,
    mean_of_known,
    round_finished,
)
from esper.simic.timing import QUIET_SECONDS, StopRequest, peak_memory_bytes, seconds_in, stop_on_signals
from esper.statistics import mean_interval
from esper.tamiyo import unwrap

FAILED = "failed.pt"
"""The checkpoint of an agent that failed; for inspection, not for resuming."""
REPLACEMENTS = 3
"""How often lost hosts are replaced for one checkpoint; workers that go on dying are no accident."""
_RUN_PARTS = {"round", "best_score", "config", "envs"}
"""What a checkpoint holds besides the agent."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended."""

    directory: Path | None
    """The run's folder; None if no checkpoints were asked for."""
    rounds: int
    env_steps: int
    seconds: float
    interrupted: str | None
    """Ctrl-C or the signal that ended it, and what that interrupted besides training; None if it came to its end."""
    best_score: float | None
    """Mean validation gain that the best checkpoint was chosen by; utility with `reward_control_variate=False`."""
    last_checkpoint: Path | None


class VectorizedPPOTrainer:
    """The training loop.

    checkpoints  where checkpoints are kept; None keeps none
    sink         where events are emitted; nothing that happens there can change the training
    progress     called with what is prepared and every event except single decisions and host events
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
        self.agent = training.agent
        self.envs = FlatVectorEnv(training.envs, privileged=unwrap(self.agent.policy).privileged_features > 0)
        self.checkpoints, self._sink, self._progress = checkpoints, sink, progress
        self.stopwatch = training.envs.episodes.stopwatch
        self.round, self._began = 0, time.perf_counter()
        self._reported = time.monotonic()
        self._rollout_steps = config.rollout_steps or training.envs.episodes.horizon
        self.best_score: float | None = None
        self._logs_decisions = sink is not None and config.logs_decisions
        self._observation: Flat  # (env, feature), from begin() or resume() on
        self._info: Info
        self._lost_between: list[EpisodeFinished] = []
        """Episodes lost since the last round; the next one reports them."""
        self._recorder: EpisodeRecorder | None = None
        if config.run_record_episodes and checkpoints is not None:
            self._recorder = training.envs.episodes.watcher = EpisodeRecorder(
                training.envs.episodes,
                policy=config.run_name or config.suite,
                log_probs=self.agent.decided_log_prob,
            )

    # The loop

    def begin(self) -> None:
        """Begin an episode in every env of a new run."""
        self._observation, self._info = self.envs.reset(seed=self.config.seed)
        self.agent.begin_episodes()

    def train(self, stop: StopRequest | None = None) -> TrainingResult:
        """Round after round, until the config's rounds are done or a stop is requested.

        stop  of a caller that handles signals already; without, they are handled here
        """
        if stop is None:
            with stop_on_signals() as stop:
                return self.train(stop)
        while self.round < self.config.rounds and not stop:
            with self.stopwatch.part("round"):
                self._run_round(stop)
        return self.finish(stop.reason)

    def _run_round(self, stop: StopRequest) -> None:
        """Collect a rollout, update from it, log and save.

        A stop drops what was collected since the last round: the checkpoint is of that round's end, and a resumed run
        repeats the rollout exactly.
        """
        began, spent = time.perf_counter(), dict(self.stopwatch.seconds)
        log = RoundLog(
            self.training.envs,
            self.round + 1,
            decisions=self._logs_decisions,
            observations=self.config.run_telemetry == "debug",
        )
        with self.stopwatch.part("collect"):
            batch = self._collect(stop, log)
        if batch is None:
            return
        with self.stopwatch.part("log"):
            for episode in self._lost_between:
                self._emit(replace(episode, round=self.round + 1))
            self._lost_between = []
            for event, place in log.events(self.agent):
                self._emit(event, place)
            self._keep_episodes()
        learning_rate = self.agent.config.lr_at(self.agent.updates)
        with self.stopwatch.part("learn"):  # advantages, then epochs of minibatches
            metrics = self.agent.update(torch.from_numpy(self._observation))
        self.round += 1
        by_part, world = self.stopwatch.since(spent), self.training.envs.episodes.world
        self._emit(
            round_finished(
                self.round,
                metrics,
                batch,
                env_steps=self.agent.env_steps,
                seconds=time.perf_counter() - began,
                host_seconds=seconds_in(by_part, HOSTS),
                learning_rate=learning_rate,
                reward_components=self.training.envs.telemetry.take(),
                seconds_by_part=by_part,
                peak_memory_bytes=peak_memory_bytes(),
                work=world.take_work() if isinstance(world, ClusteredWorld) else None,
            )
        )
        for anomaly in anomalies_raised(metrics.anomalies, round_number=self.round):
            self._emit(anomaly)
        with self.stopwatch.part("save"):
            self._evaluate_and_save()

    def _collect(self, stop: StopRequest, log: RoundLog) -> BatchSummary | None:
        """A rollout: observe, mask, act, step, store. None if a stop was requested before it was full.

        At its deadline a round closes with the steps that it has; hosts that were in time go on in the next.
        """
        batch, host_log = BatchSummary(list(self._lost_between)), self.training.host_log
        deadline = self._set_deadline()
        log.before()
        steps = collect(self.agent, self.envs, self._observation, self._info, stopwatch=self.stopwatch)
        for number, step in enumerate(steps, start=1):
            self._observation, self._info = step.observation, step.info
            batch.add(self.training.envs.last_step)
            with self.stopwatch.part("log"):
                log.after([] if host_log is None else host_log.take())
                log.before()
            if stop and not self.agent.ready:
                return None
            if deadline is not None and time.monotonic() >= deadline and not self.agent.ready:
                self._close_round()
            self._report_work("collecting", number, self._rollout_steps)
        return batch

    def _set_deadline(self) -> float | None:
        """When this round closes, in `time.monotonic`; None is when its rollout is full."""
        seconds, world = self.config.cluster_round_deadline, self.training.envs.episodes.world
        if seconds is None or not isinstance(world, PunctualWorld):
            return None
        deadline = time.monotonic() + seconds
        world.wait_until(deadline)
        return deadline

    def _close_round(self) -> None:
        """Learn from what has come in; what has not is invalid."""
        if not self.agent.buffer.valid[:, : self.agent.buffer.step].any():
            raise ConfigError(
                f"cluster_round_deadline is {self.config.cluster_round_deadline:g}, and no host made a step within "
                "so many seconds; expected several times what a round takes (`seconds` in round_finished)"
            )
        self.agent.close_rollout()

    def _keep_episodes(self) -> None:
        """Write the episodes that ended in this round, if that is asked for; a repeated round writes them again."""
        recording = None if self._recorder is None else self._recorder.take()
        if recording is not None and self.checkpoints is not None:
            folder = self.checkpoints.folder.parent / EPISODES_FOLDER
            write_episodes(folder / f"round-{self.round + 1:06d}.safetensors", recording)

    # Events

    def start(self, *, resumed: Path | None, note: str | None = None) -> None:
        """Emit the first event of a run, or of its going on from the checkpoint `resumed`.

        A best score counts while the checkpoint that it was given to is there.
        """
        resumed_from = None if resumed is None else self.round
        if resumed is not None and self.checkpoints is not None and self.checkpoints.folder == resumed.parent:
            self.best_score = self.best_score if (resumed.parent / "best.pt").is_file() else None
        self._emit(RunStarted(self.config.run_name or self.config.suite, __version__, resumed_from, note))

    def finish(self, stopped: str | None) -> TrainingResult:
        """Emit the last event of a run that did not fail."""
        seconds = time.perf_counter() - self._began
        status: RunStatus = "finished" if stopped is None else "interrupted"
        self._emit(RunFinished(status, stopped, self.round, self.agent.env_steps, seconds))
        last = None if self.checkpoints is None else self.checkpoints.folder / "last.pt"
        return TrainingResult(
            directory=None if self.checkpoints is None else self.checkpoints.folder.parent,
            rounds=self.round,
            env_steps=self.agent.env_steps,
            seconds=seconds,
            interrupted=stopped,
            best_score=self.best_score,
            last_checkpoint=last if last is not None and last.exists() else None,
        )

    def _emit(self, event: Event, place: Place = NOWHERE) -> None:
        if self._sink is not None:
            self._sink.emit(event, place)
        if isinstance(event, DecisionTaken | HostEvent):  # there are too many to show
            return
        self.report(event)

    def report(self, news: News) -> None:
        """Pass news on to `progress`."""
        if self._progress is not None:
            self._progress(news)
            self._reported = time.monotonic()

    def _report_work(self, part: str, done: int, total: int) -> None:
        """Report how far a part of the round is, if nothing was reported for a while."""
        if time.monotonic() - self._reported >= QUIET_SECONDS:
            self.report(Working(self.round + (part == "collecting"), part, done, total))

    # Evaluation and checkpoints

    def _evaluate_and_save(self) -> None:
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
        """How the greedy policy does on hosts it does not train on; by this the best checkpoint is chosen.

        The mean gain, or the mean utility where no baseline is measured.
        """
        wanted = selection_cases(self.training, self.config.eval_episodes)
        episodes = evaluation_episodes(self.training, self.config, min(len(wanted), self.config.num_envs))
        judged = play_cases(
            LearnedPlayer(self.agent.actor),
            episodes,
            wanted,
            progress=lambda done, total: self._report_work("judging", done, total),
        )
        played = [episode for episode in judged if not episode.lost]
        gains = [episode.gain for episode in played if episode.gain is not None]
        gain, utility = mean_of_known(gains), mean_of_known(utilities(played, self.config.reward_family))
        low, high = (mean_interval(gains) if gains else None) or (None, None)
        self._emit(
            EvaluationFinished(
                round=self.round,
                env_steps=self.agent.env_steps,
                policy="learned",
                suite=self.config.suite,
                episodes=len(played),
                mean_return=mean_of_known(episode.episode_return for episode in played),
                mean_utility=utility,
                mean_gain=gain,
                gain_low=low,
                gain_high=high,
                mean_accuracy=mean_of_known(episode.validation_accuracy for episode in played),
            )
        )
        return gain if self.config.reward_control_variate else utility

    def _save(
        self, store: CheckpointStore, reason: CheckpointReason, score: float | None, extra: dict[str, Any]
    ) -> None:
        path = store.save(
            lambda path: self.agent.write(path, extra=extra), round_number=self.round, reason=reason
        )
        if reason != "last":  # that one is saved every round
            self._emit(CheckpointSaved(self.round, reason, str(path.relative_to(store.folder.parent)), score))

    def _extra(self) -> dict[str, Any]:
        """The parts that `_RUN_PARTS` names."""
        return {
            "round": self.round,
            "best_score": self.best_score,
            "config": self.config.to_dict(),
            "envs": self._save_envs(),
        }

    def _save_envs(self) -> dict[str, object]:
        """The state of every env. Episodes whose workers died since the last step are replaced by new ones first."""
        for _ in range(REPLACEMENTS):
            try:
                return self.training.envs.state_dict()
            except HostsLost as loss:
                self._replace_lost(loss.host_idxs)
        return self.training.envs.state_dict()

    def _replace_lost(self, env_idxs: Sequence[int]) -> None:
        self._observation, self._info = self.envs.replace_lost(env_idxs)
        self.agent.begin_episodes(np.isin(np.arange(self.config.num_envs), env_idxs))
        self._lost_between += [self._info["final_info"]["summary"][env_idx] for env_idx in env_idxs]

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; on the CPU the run is then the same, bit for bit, as if it had never stopped."""
        extra: dict[str, Any] = _require_run_parts(path, self.agent.load(path))
        self.round, self.best_score = extra["round"], extra["best_score"]
        if self.agent.holds_to_start and self.agent.start is None:
            raise CheckpointError(f"{path}: it lacks the policy that start_kl holds to: begin the run anew")
        try:
            self._observation, self._info = self.envs.load_state_dict(extra["envs"])
        except Exception as error:  # a damaged state can fail anywhere in what it is given to
            raise CheckpointError(f"{path}: {error}") from error


def read_run_checkpoint(path: Path) -> dict[str, Any]:
    """The data of a training run's checkpoint; what the trainer added to the agent's is its `extra`."""
    checkpoint = read_checkpoint(path)
    _require_run_parts(path, checkpoint.get("extra"))
    counters = checkpoint.get("counters")
    if not isinstance(counters, dict) or not _is_count(counters.get("env_steps")):
        raise CheckpointError(f"{path}: the checkpoint's counters have no env_steps, a whole number >= 0")
    return checkpoint


def _require_run_parts(path: Path, extra: object) -> dict[str, Any]:
    missing = _RUN_PARTS - set(extra if isinstance(extra, dict) else ())
    if missing:
        raise CheckpointError(
            f"{path} is no checkpoint of a training run: it has no {', '.join(sorted(missing))}"
        )
    parts = cast("dict[str, Any]", extra)
    if not isinstance(parts["config"], dict) or not _is_count(parts["config"].get("rounds")):
        raise CheckpointError(f"{path}: the checkpoint's config is not the settings of a run")
    rounds, best_score = parts["config"]["rounds"], parts["best_score"]
    if not _is_count(parts["round"]) or parts["round"] > rounds:
        raise CheckpointError(f"{path}: the checkpoint's round is not a whole number from 0 to {rounds}")
    if best_score is not None and not (isinstance(best_score, float) and math.isfinite(best_score)):
        raise CheckpointError(f"{path}: the checkpoint's best_score is neither None nor a finite number")
    return parts


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def train_ppo_vectorized(
    config: TrainingConfig,
    *,
    checkpoints: CheckpointStore | None = None,
    resume: Path | None = None,
    accept: Callable[[], None] | None = None,
    note: str | None = None,
    sink: RunSink | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a controller as the config says; `resume` is a checkpoint to go on from, under settings that it may have.

    accept  called once nothing refuses the start, before anything is emitted or written
    note    what `RunStarted` records of this start

    However it ends, the last event emitted is `RunFinished`, of a failure too. Only a resume that is refused emits
    nothing: the run is what it was before.
    """
    began, training, trainer = time.perf_counter(), None, None
    failed = None if checkpoints is None else checkpoints.folder / FAILED
    with stop_on_signals() as stop:
        try:
            if resume is None:
                require_warm_start(config)
            else:
                config = config.continuing(TrainingConfig.of(read_run_checkpoint(resume)["extra"]["config"]))
            tell = progress or (lambda _: None)
            tell(Working(0, "drawing the instances..."))
            training = build(config, failure_checkpoint=failed)
            fresh = VectorizedPPOTrainer(
                config, training, checkpoints=checkpoints, sink=sink, progress=progress
            )
            if resume is not None:
                tell(Working(0, f"reading {resume.name}..."))
                fresh.resume(resume)
            if accept is not None:
                accept()
            trainer = fresh
            trainer.start(resumed=resume, note=note)
            tell(Working(0, "looking which baselines are on disk..."))
            prepared = prepare_baselines(training, config, trainer.report, lambda: bool(stop))
            if stop:
                return trainer.finish(_stopped_early(stop, prepared))
            if resume is None:
                if config.warm_start is not None:
                    trainer.report(Working(0, f"taking over {config.warm_start}"))
                warm_start(training, config)
                trainer.begin()
            return trainer.train(stop)
        except BaseException as error:
            if sink is not None and (trainer is not None or resume is None):
                done = (0, 0) if trainer is None else (trainer.round, trainer.agent.env_steps)
                sink.emit(failure(error, *done, time.perf_counter() - began))
            raise
        finally:
            if training is not None:
                training.envs.close()


def _stopped_early(stop: StopRequest, prepared: Preparing | None) -> str:
    """Why the run ended; the curves that are done stay on disk."""
    kept = "" if prepared is None else f" ({prepared.done} of {prepared.total} are kept)"
    return f"{stop.reason} while baseline curves were trained{kept}"


def failure(error: BaseException, rounds: int, env_steps: int, seconds: float) -> RunFinished:
    """The last event of a run that failed."""
    return RunFinished(
        status="interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
        reason=f"{type(error).__name__}: {error}".rstrip(": "),
        rounds=rounds,
        env_steps=env_steps,
        seconds=seconds,
    )
