"""Training a controller from recorded episodes: draw a batch, update, log, save. No host is begun.

The checkpoints are those of any other run, with the critics beside: such a run is resumed, judged, shipped, and
trained further on hosts, in the same way.
"""

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from esper import __version__
from esper.leyline import (
    HEAD_NAMES,
    CheckpointReason,
    CheckpointSaved,
    CheckpointStore,
    RoundFinished,
    RunEvent,
    RunFinished,
    RunSink,
    RunStarted,
)
from esper.simic.agent.checkpoint import CheckpointError, generator_from, optimizer_state, require_same_form
from esper.simic.agent.losses import mean_over
from esper.simic.agent.normalization import RunningMeanStd
from esper.simic.agent.ppo import NON_FINITE_LIMIT, NonFiniteUpdateError
from esper.simic.building import Training, build
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.accounts import PRIVILEGED
from esper.simic.held_out import is_held_out
from esper.simic.offline.dataset import Dataset
from esper.simic.offline.iql import IQL, IQLTerms, return_bounds
from esper.simic.offline.recorder import terms_of
from esper.simic.offline.recording import Sequences, Terms
from esper.simic.reports import Progress, mean_of_known
from esper.simic.timing import StopRequest, peak_memory_bytes, stop_on_signals
from esper.simic.trainer import TrainingResult, failure, read_run_checkpoint
from esper.tamiyo import GrowthPolicy, unwrap
from esper.tamiyo.critics import GrowthBody

_PARTS = ("v", "q", "slow_q")


def require_offline(config: TrainingConfig) -> None:
    """Raise ConfigError or DatasetError, before anything takes time, for what cannot be learned from."""
    training = build(replace(config, workers=0, cluster=None, cluster_round_deadline=None))
    data = Dataset.open(config.offline)
    require_fit(training, config, data.terms)
    require_not_held_out(config.suite, data)
    warn_of_few_rounds(config)


def require_fit(training: Training, config: TrainingConfig, found: Terms) -> None:
    """Raise ConfigError unless data of these terms are what this run's environments would give."""
    if config.warm_start is not None:
        raise ConfigError(f"warm_start is {config.warm_start!r}; an offline run begins anew, expected None")
    privileged = PRIVILEGED if config.critic_sees_baseline else ()
    if privileged and found.privileged != privileged:
        raise ConfigError(
            "privileged_critic is on, and what only the critic may see was not recorded; expected "
            "privileged_critic=False, --no-privileged-critic"
        )
    difference = terms_of(training.envs.episodes, found.privileged).difference(found)
    if difference is not None:
        raise ConfigError(
            f"offline names data that this run's hosts would not give: they have {difference}; set suite, horizon, "
            "settle, gamma and reward as they were recorded"
        )


def warn_of_few_rounds(config: TrainingConfig) -> None:
    """Warn where the policy would never begin to learn; more rounds can follow."""
    annealed, share = config.ppo().annealed_at(config.rounds), config.offline_policy_share
    if config.lr_anneal_steps and annealed <= 1.0 - share:
        warnings.warn(
            f"rounds is {config.rounds}, and the policy learns in the last {share:g} of "
            f"lr_anneal_steps={config.lr_anneal_steps}, which these do not reach: it stays as it begins, unless "
            "`esper resume --rounds` goes on",
            stacklevel=2,
        )


def require_not_held_out(suite: str, data: Dataset) -> None:
    """Raise ConfigError if an episode is of an instance that controllers of this suite are judged on."""
    cases = Counter(row.case for row in data.rows)
    judged_on = [case for case in cases if is_held_out(suite, case)]
    if judged_on:
        episodes = sum(cases[case] for case in judged_on)
        raise ConfigError(
            f"offline names {episodes} episodes of held-out instances of {suite}, the first of {judged_on[0]}: a "
            "controller that learned from them could not be judged on them; expected episodes of training draws"
        )


@dataclass(slots=True)
class _Tally:
    """The batches of a round."""

    terms: list[IQLTerms] = field(default_factory=list)
    skipped: int = 0

    def mean(self, pick: Callable[[IQLTerms], torch.Tensor]) -> float | None:
        """Mean over the batches that were applied."""
        values = [pick(each).item() for each in self.terms]
        return mean_of_known(None if math.isnan(value) else value for value in values)

    def entropies(self) -> dict[str, float | None]:
        """head -> mean over steps where it had a choice, None if there was none."""
        entropy = torch.cat([each.entropy for each in self.terms])
        has_choice = torch.cat([each.has_choice for each in self.terms])
        return {
            name: mean_over(entropy[:, head], has_choice[:, head]).item()
            if has_choice[:, head].any()
            else None
            for head, name in enumerate(HEAD_NAMES)
        }


@dataclass(frozen=True, slots=True)
class _Pace:
    """How a round learns."""

    trace: float
    policy: bool
    """Whether the policy learns, too."""
    policy_lr: float


MOST_GROWTH = 10.0
"""Of a return from the first step of an episode to its last, where it is counted from the step it is seen at."""


class OfflineTrainer:
    """The loop of an offline run; its round is `offline_batches` updates.

    checkpoints, sink and progress are as of `VectorizedPPOTrainer`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        training: Training,
        data: Dataset,
        *,
        checkpoints: CheckpointStore | None = None,
        sink: RunSink | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config, self.training, self.data, self.agent = config, training, data, training.agent
        self.checkpoints, self._sink, self._progress = checkpoints, sink, progress
        policy = unwrap(self.agent.policy)
        assert isinstance(policy, GrowthPolicy)
        data.hold()
        self.agent.reward_normalizer.update(data.reward)
        scale = self.agent.reward_normalizer.std.item()
        stats = RunningMeanStd((policy.observation_size,), self.agent.device, fixed=policy.fixed_scales())
        for part in data.parts():
            stats.update(part.inputs(policy.privileged_features).observation)
        self._normalize: Callable[[Tensor], Tensor] | None = None
        """How the policy sees observations; None is as they were recorded."""
        if config.normalize_observations:
            self.agent.observation_stats.load_state_dict(stats.state_dict())
            self._normalize = self.agent.observation_stats.normalize
        self.learner = IQL(
            policy,
            lambda generator: GrowthBody(
                policy.space,
                privileged_features=policy.privileged_features,
                hidden_size=policy.hidden_size,
                num_lstm_layers=policy.num_lstm_layers,
                generator=generator,
            ),
            config.iql(),
            reward_scale=scale,
            value_unit=scale if config.normalize_rewards else 1.0,
            normalize=stats.normalize if self._normalize is None else None,  # critics are not shipped
            telescopes=learns_whole_returns(data.terms.reward.mode, config.gamma, data.terms.horizon),
            bounds=return_bounds(torch.cat([part.whole(config.gamma) for part in data.parts()])),
            seed=config.seed,
        )
        self._generator = torch.Generator().manual_seed(config.seed)
        self.round, self._began = 0, time.perf_counter()
        self._skipped_in_a_row = 0

    def train(self, stop: StopRequest) -> TrainingResult:
        """Round after round, until the config's rounds are done or a stop is requested.

        Raises NonFiniteUpdateError after three rounds in which no loss, or no gradient, was finite.
        """
        while self.round < self.config.rounds and not stop:
            self._run_round(stop)
        return self.finish(stop.reason)

    def _run_round(self, stop: StopRequest) -> None:
        """Batches, log, save. A stop drops what was learned since the last round, which a resumed run repeats."""
        began, tally = time.perf_counter(), _Tally()
        lr, pace = self.agent.config.lr_at(self.round), self._pace()
        for _ in range(self.config.offline_batches):
            batch: Sequences = self.data.draw(self.config.offline_batch, self._generator).to(
                self.agent.device
            )
            if self._normalize is not None:
                batch = batch.seen_through(self._normalize, self.learner.policy.privileged_features)
            before = self.learner.updates
            terms = self.learner.update(
                batch, lr=lr, policy_lr=pace.policy_lr, trace=pace.trace, policy=pace.policy
            )
            if self.learner.updates > before:
                tally.terms.append(terms)
            else:
                tally.skipped += 1
            if stop:
                return
        self.round += 1
        self._skipped_in_a_row = 0 if tally.terms else self._skipped_in_a_row + 1
        self._emit(self._finished(tally, lr, time.perf_counter() - began))
        self._save_all()
        if self._skipped_in_a_row >= NON_FINITE_LIMIT:
            kept = (
                "" if self.checkpoints is None else f"; all is saved in {self.checkpoints.folder / 'last.pt'}"
            )
            raise NonFiniteUpdateError(
                f"no update of {self._skipped_in_a_row} rounds in a row had a finite loss and gradient, and none was "
                f"applied{kept}. "
                f"Lower lr; then look for extreme rewards and observations in {', '.join(self.config.offline)}"
            )

    def _pace(self) -> "_Pace":
        """First critics learn what was done until the end, which travels fast, then what is best from each state on.

        Then the policy learns, too; without annealing, throughout.
        """
        config, agent = self.config, self.agent.config
        alone = 1.0 - config.offline_policy_share if agent.lr_anneal_steps else 0.0
        progress = agent.annealed_at(self.round)
        fallen = min(progress / alone, 1.0) if alone else progress
        since = (progress - alone) / (1.0 - alone)
        return _Pace(
            trace=config.offline_trace * (1.0 - fallen),
            policy=not alone or agent.annealed_at(self.round + 1) > alone,
            policy_lr=agent.lr * (1.0 - 0.9 * max(since, 0.0)),
        )

    def _finished(self, tally: _Tally, lr: float, seconds: float) -> RoundFinished:
        """The round in numbers; what only hosts could show is unknown."""
        entropies = tally.entropies() if tally.terms else dict.fromkeys(HEAD_NAMES)
        known = [value for value in entropies.values() if value is not None]
        return RoundFinished(
            round=self.round,
            env_steps=0,
            seconds=seconds,
            env_epochs_per_second=None,
            episodes=0,
            lost_episodes=0,
            mean_return=None,
            mean_gain=None,
            mean_accuracy=None,
            mean_control_accuracy=None,
            policy_loss=tally.mean(lambda terms: terms.policy_loss),
            value_loss=tally.mean(lambda terms: terms.value_loss),
            entropy=tally.mean(_joint_entropy) if known else None,
            entropy_by_head=entropies,
            approx_kl=None,
            clip_fraction=None,
            ratio_max=None,
            ratio_min=None,
            explained_variance=tally.mean(lambda terms: terms.explained_variance),
            grad_norm=tally.mean(lambda terms: terms.grad_norm) if known else None,
            learning_rate=lr,
            entropy_coef=None,
            minibatches_applied=len(tally.terms),
            minibatches_skipped=tally.skipped,
            had_non_finite=tally.skipped > 0,
            kl_stopped=False,
            operations={},
            reward_components={},
            peak_memory_bytes=peak_memory_bytes(),
            q_loss=tally.mean(lambda terms: terms.q_loss),
            advantage_weight=tally.mean(lambda terms: terms.weight.mean()),
        )

    # Events and checkpoints

    def start(self, *, resumed: Path | None, note: str | None = None) -> None:
        """Emit the first event of a run, or of its going on from the checkpoint `resumed`."""
        resumed_from = None if resumed is None else self.round
        self._emit(RunStarted(self.config.run_name or self.config.suite, __version__, resumed_from, note))

    def finish(self, stopped: str | None) -> TrainingResult:
        """Emit the last event of a run that did not fail."""
        seconds = time.perf_counter() - self._began
        self._emit(
            RunFinished("finished" if stopped is None else "interrupted", stopped, self.round, 0, seconds)
        )
        last = None if self.checkpoints is None else self.checkpoints.folder / "last.pt"
        return TrainingResult(
            directory=None if self.checkpoints is None else self.checkpoints.folder.parent,
            rounds=self.round,
            env_steps=0,
            seconds=seconds,
            interrupted=stopped,
            best_score=None,
            last_checkpoint=last if last is not None and last.exists() else None,
        )

    def _emit(self, event: RunEvent) -> None:
        if self._sink is not None:
            self._sink.emit(event)
        if self._progress is not None:
            self._progress(event)

    def _save_all(self) -> None:
        if self.checkpoints is None:
            return
        reasons: list[CheckpointReason] = ["last"]
        if self.round % self.config.run_checkpoint_every == 0:
            reasons.insert(0, "periodic")
        extra = self._extra()
        for reason in reasons:
            path = self.checkpoints.save(
                lambda path: self.agent.write(path, extra=extra), round_number=self.round, reason=reason
            )
            if reason != "last":  # that one is saved every round
                place = str(path.relative_to(self.checkpoints.folder.parent))
                self._emit(CheckpointSaved(self.round, reason, place, None))

    def _extra(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "best_score": None,
            "config": self.config.to_dict(),
            "envs": {},
            "offline": {
                **self.learner.state_dict(),
                "generator": self._generator.get_state(),
                "skipped_in_a_row": self._skipped_in_a_row,
            },
        }

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; on the CPU the run is then the same, bit for bit, as if it had never stopped."""
        extra: dict[str, Any] = self.agent.load(path)
        saved = extra.get("offline")
        if not isinstance(saved, dict):
            raise CheckpointError(f"{path}: it is no checkpoint of an offline run, it has no critics")
        ours = self.learner.state_dict()
        for part in _PARTS:
            require_same_form(path, part, ours[part], saved.get(part))
        moments = optimizer_state(path, self.learner.optimizer, saved.get("optimizer"))
        generator = generator_from(path, saved, "generator", torch.device("cpu"))
        self.learner.load_state_dict({**saved, "optimizer": moments})
        self.round, self._generator = extra["round"], generator
        self._skipped_in_a_row = saved.get("skipped_in_a_row", 0)  # earlier versions did not write it


def _joint_entropy(terms: IQLTerms) -> torch.Tensor:
    """Of all heads together, mean over steps that had a choice."""
    return mean_over(terms.entropy.sum(-1), terms.has_choice.any(-1))


def train_offline(
    config: TrainingConfig,
    *,
    checkpoints: CheckpointStore | None = None,
    resume: Path | None = None,
    accept: Callable[[], None] | None = None,
    note: str | None = None,
    sink: RunSink | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """`train_ppo_vectorized` for a config that names data sets: the same arguments, the same first and last event."""
    began, trainer = time.perf_counter(), None
    with stop_on_signals() as stop:
        try:
            if resume is not None:
                before = cast("Mapping[str, Any]", read_run_checkpoint(resume)["extra"])
                config = config.continuing(TrainingConfig.of(before["config"]))
            training = build(replace(config, workers=0, cluster=None, cluster_round_deadline=None))
            data = Dataset.open(config.offline)
            require_fit(training, config, data.terms)
            require_not_held_out(config.suite, data)
            fresh = OfflineTrainer(
                config, training, data, checkpoints=checkpoints, sink=sink, progress=progress
            )
            if resume is not None:
                fresh.resume(resume)
            if accept is not None:
                accept()
            trainer = fresh
            trainer.start(resumed=resume, note=note)
            return trainer.train(stop)
        except BaseException as error:
            if sink is not None and (trainer is not None or resume is None):
                rounds = 0 if trainer is None else trainer.round
                sink.emit(failure(error, rounds, 0, time.perf_counter() - began))
            raise


def learns_whole_returns(mode: str, gamma: float, horizon: int) -> bool:
    """Whether critics are to learn whole returns; where much is discounted, those of late steps are out of scale."""
    return mode == "shaped" and gamma**-horizon <= MOST_GROWTH
