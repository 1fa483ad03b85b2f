"""Keeping episodes while they are played: whoever decides, and whatever for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper import __version__
from esper.leyline import EpisodeFinished, LifecycleOp
from esper.simic.env.accounts import PRIVILEGED
from esper.simic.env.episodes import Episodes, StepResult
from esper.simic.evaluation import Player, Rewards, play_cases
from esper.simic.offline.recording import BY_STEP, EpisodeRow, Recording, Terms
from esper.tamiyo.actions import Actions
from esper.tamiyo.distributions import FactoredDistribution, LayoutTensors
from esper.tamiyo.layout import ActionLayout

LogProbs = Callable[[], NDArray[np.float64]]
"""(env,): how probable the actions were that have just been chosen."""


@dataclass(slots=True)
class _Running:
    """One episode so far: a list of rows for each name in BY_STEP."""

    begun: int
    """How many had begun before it."""
    steps: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in BY_STEP})
    summary: EpisodeFinished | None = None
    """What came of it, once it has ended."""

    def drop_last(self) -> None:
        """Forget the step that was lost with its host."""
        for rows in self.steps.values():
            rows.pop()

    @property
    def length(self) -> int:
        """Steps so far."""
        return len(self.steps["reward"])

    @property
    def number(self) -> int | None:
        """Of the episode in its env, from 0; None while it runs."""
        return None if self.summary is None else self.summary.episode


def terms_of(episodes: Episodes, privileged: tuple[str, ...]) -> Terms:
    """What all episodes of these environments have in common, with what is kept for the critic alone."""
    return Terms.of(
        episodes.space,
        horizon=episodes.horizon,
        settle=episodes.settle,
        reward=episodes.reward,
        shown_reward=episodes.accounts.shown_reward,
        privileged=privileged,
    )


class EpisodeRecorder:
    """Keeps every step of running `Episodes`, as their `watcher`, and gives the episodes that ended.

    policy     who decides
    log_probs  asked before each step; None where probabilities are unknown

    An episode that had begun before the recorder came is left out.
    """

    def __init__(self, episodes: Episodes, *, policy: str, log_probs: LogProbs | None = None) -> None:
        self._episodes, self.policy, self._log_probs = episodes, policy, log_probs
        self._running: list[_Running | None] = [None] * episodes.num_envs
        self._ended: list[_Running] = []
        self._begun = 0
        self._shown = np.zeros(episodes.num_envs)

    @property
    def terms(self) -> Terms:
        """What all its episodes have in common."""
        return terms_of(self._episodes, PRIVILEGED if self._episodes.critic_looks else ())

    def before(self, actions: Actions) -> None:
        """Keep what is seen and asked for, before a step of all envs."""
        episodes = self._episodes
        episodes.observe()
        observation, mask = episodes.observer.flat.numpy().copy(), episodes.masks().copy()
        unseen = (
            episodes.accounts.privileged() if episodes.critic_looks else np.zeros((len(mask), 0), np.float32)
        )
        # What is illegal is not executed: the host waits.
        executed = np.where(episodes.choices.allowed(actions, mask)[:, None], actions, 0)
        # One decision, one record: what a policy put into heads that the operation does not use says nothing.
        matters = episodes.space.action_layout.relevance.numpy()[executed[:, 0]]
        executed = np.where(matters, executed, 0)
        known = np.full(len(mask), np.nan) if self._log_probs is None else self._log_probs()
        for env_idx in range(len(mask)):
            if episodes.episode(env_idx).epoch == 0:
                self._running[env_idx] = _Running(self._begun)
                self._begun += 1
                self._shown[env_idx] = 0.0
            running = self._running[env_idx]
            if running is None:
                continue
            rows = (observation, unseen, mask, executed, self._shown, None, known)
            for name, row in zip(BY_STEP, rows, strict=True):
                running.steps[name].append(None if row is None else row[env_idx])

    def after(self, result: StepResult) -> None:
        """Keep what came of it."""
        rewards, self._shown = result.components.total, result.shown_rewards.copy()
        for env_idx, running in enumerate(self._running):
            if running is None:
                continue
            running.steps["reward"][-1] = rewards[env_idx]
            if result.lost[env_idx]:
                running.drop_last()
            if env_idx in result.finished:
                running.summary = result.finished[env_idx]
                self._running[env_idx] = None
                self._ended.append(running)

    def take(self, *, firsts: int | None = None) -> Recording | None:
        """The episodes that ended since they were last taken, in the order they began; None if none did.

        firsts  only those that were the first of their env, and at most so many
        """
        ended, self._ended = sorted(self._ended, key=lambda running: running.begun), []
        if firsts is not None:
            ended = [running for running in ended if running.number == 0][:firsts]
        ended = [running for running in ended if running.length]
        return self._recording(ended) if ended else None

    def _recording(self, ended: Sequence[_Running]) -> Recording:
        summaries = [running.summary for running in ended if running.summary is not None]
        types = {"mask": np.bool_, "action": np.int64}
        by_step = {
            name: torch.from_numpy(
                np.stack([row for running in ended for row in running.steps[name]]).astype(
                    types.get(name, np.float32)
                )
            )
            for name in BY_STEP
        }
        rows = tuple(
            EpisodeRow(
                case=summary.case,
                host_seed=summary.host_seed,
                policy=self.policy,
                esper=__version__,
                gain=summary.gain,
                rolled_back=summary.rolled_back,
            )
            for summary in summaries
        )
        return Recording(
            **by_step,
            length=torch.tensor([running.length for running in ended]),
            terminated=torch.tensor([not summary.lost for summary in summaries]),
            terms=self.terms,
            rows=rows,
        )


def record_episodes(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    policy: str,
    log_probs: LogProbs | None = None,
) -> tuple[Recording, list[EpisodeFinished]]:
    """Play each (case, host seed) once and keep every step; also what each episode came to.

    A host that was lost before its first step has no episode in the recording.
    """
    recorder, other = EpisodeRecorder(episodes, policy=policy, log_probs=log_probs), episodes.watcher
    episodes.watcher = recorder
    try:
        played = play_cases(player, episodes, wanted)
    finally:
        episodes.watcher = other
    recording = recorder.take(firsts=len(wanted))
    if recording is None:
        raise RuntimeError(f"all of {len(wanted)} hosts were lost before their first step")
    return recording, played


class RandomPlayer:
    """Random legal actions, head after head, with known probabilities: uniform, but for the operations that lean.

    op_logits  operation -> its logit, 0 where not named; without any it is what the rule `random` does
    """

    def __init__(
        self, layout: ActionLayout, generator: torch.Generator, op_logits: Mapping[str, float] | None = None
    ) -> None:
        self._constants, self._generator = LayoutTensors(layout, torch.device("cpu")), generator
        self._logits = torch.zeros(layout.width)
        for name, logit in (op_logits or {}).items():
            layout.block(self._logits, "op")[0, LifecycleOp[name]] = logit
        self.log_prob = np.zeros(0)
        """(env,) of the last actions."""

    def begin(self, num_envs: int) -> None:
        """There is nothing to forget."""

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """Legal actions (env, head)."""
        del rewards
        mask = torch.from_numpy(episodes.masks().copy())
        distribution = FactoredDistribution(self._constants, self._logits.expand(mask.shape), mask)
        chosen = distribution.sample(self._generator)
        self.log_prob = distribution.evaluate(chosen).log_prob.sum(-1).double().numpy()
        actions: Actions = chosen.numpy()
        return actions
