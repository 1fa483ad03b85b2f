"""Playing given cases to the end under one player, with the final model of each episode at hand before it is gone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from esper.leyline import ActionSpec, Beginning, DecisionSettings, EpisodeFinished, HostProtocol, HostsLost
from esper.leyline.utility import Family
from esper.simic.env.episodes import Episodes
from esper.simic.reward import SCORES
from esper.tamiyo import Actor
from esper.tamiyo.actions import Actions
from esper.tamiyo.rules import RulePolicy
from esper.tamiyo.rules.policy import decisions_of

Seen = TypeVar("Seen")
Rewards = NDArray[np.float64]


class Player(Protocol):
    """Chooses the actions of all envs at once."""

    def begin(self, num_envs: int) -> None:
        """Forget earlier episodes: every env is about to begin one."""

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """Actions (env, head), given what is shown of the rewards (env,) of the step before."""


class LearnedPlayer:
    """A policy network, greedy."""

    def __init__(self, actor: Callable[[int], Actor]) -> None:
        self._make, self._actor = actor, actor(1)

    def begin(self, num_envs: int) -> None:
        """Begin with an empty memory."""
        self._actor = self._make(num_envs)

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """The most probable legal actions (env, head)."""
        episodes.observe()
        masks = torch.from_numpy(episodes.masks().copy())
        flat = episodes.observer.flat.clone()
        chosen = self._actor.act(flat, masks, reward=torch.from_numpy(rewards).float())
        actions: Actions = chosen.cpu().numpy()
        return actions


class RulePlayer:
    """A rule for each env; `make` gives the rule of one env."""

    def __init__(self, make: Callable[[int], RulePolicy]) -> None:
        self._make, self._rules = make, list[RulePolicy]()

    def decisions(self, num_envs: int) -> DecisionSettings:
        """What the rules may decide together: to retire fossils if one of them may."""
        each = [decisions_of(self._make(env_idx)) for env_idx in range(num_envs)]
        return next((one for one in each if one.retire), each[0])

    def begin(self, num_envs: int) -> None:
        """Make the rules anew."""
        self._rules = [self._make(env_idx) for env_idx in range(num_envs)]
        for rule in self._rules:
            rule.reset()

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """What each rule says, encoded as (env, head)."""
        del rewards
        return np.stack([self._act(episodes, env_idx) for env_idx in range(len(self._rules))])

    def _act(self, episodes: Episodes, env_idx: int) -> Actions:
        try:
            situation = episodes.situation(env_idx)
        except HostsLost:  # there is nothing to decide; the step ends the episode
            return episodes.encode(env_idx, ActionSpec())
        return episodes.encode(env_idx, self._rules[env_idx].act(situation))


@dataclass(frozen=True, slots=True)
class Judged(Generic[Seen]):
    """One episode, and what `look` returned for its final model (None if the host was condemned or lost)."""

    summary: EpisodeFinished
    seen: Seen | None


def utilities(played: Iterable[EpisodeFinished], family: Family) -> list[float]:
    """Of each episode; one without a final model has the worst score of the family."""
    worst, _ = SCORES[family]
    return [worst if episode.utility is None else episode.utility for episode in played]


def play_cases(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> list[EpisodeFinished]:
    """One episode of each (case, host seed), as many at a time as there are envs, in the order given.

    progress  called after each step with how many of how many there were
    """
    judged = judge_cases(player, episodes, wanted, look=lambda _: None, progress=progress)
    return [one.summary for one in judged]


def judge_cases(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    look: Callable[[HostProtocol], Seen],
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> list[Judged[Seen]]:
    """`play_cases`, with a `look` at each final model. Envs that are left over repeat the last case."""
    judged: list[Judged[Seen]] = []
    steps, played = -(-len(wanted) // episodes.num_envs) * episodes.horizon, 0
    for start in range(0, len(wanted), episodes.num_envs):
        group = wanted[start : start + episodes.num_envs]
        filled = [*group, *[group[-1]] * (episodes.num_envs - len(group))]
        for env_idx in range(episodes.num_envs):
            episodes.seed(env_idx, 0)
        episodes.begin_many([Beginning(env_idx, *pair) for env_idx, pair in enumerate(filled)])
        player.begin(episodes.num_envs)
        ended: dict[int, Judged[Seen]] = {}
        rewards = np.zeros(episodes.num_envs)
        for _ in range(episodes.horizon):
            result = episodes.step(player.act(episodes, rewards))
            rewards = result.shown_rewards
            played += 1
            progress(played, steps)
            for env_idx, summary in result.finished.items():
                if env_idx not in ended:
                    kept = summary.utility is not None
                    ended[env_idx] = Judged(summary, look(episodes.host(env_idx)) if kept else None)
                if summary.epochs < episodes.horizon:  # ended early: it only keeps its place from here on
                    case, host_seed = filled[env_idx]
                    episodes.begin(env_idx, case=case, host_seed=host_seed)
        judged += [ended[env_idx] for env_idx in range(len(group))]
    return judged
