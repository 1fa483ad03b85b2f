"""Judging a policy: greedy episodes of given cases, with the product of each at hand before it is gone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, overload

import numpy as np
import torch

from esper.leyline import Beginning, HostProtocol
from esper.simic.env.episodes import Episodes, EpisodeSummary
from esper.simic.env.spaces import Actions
from esper.tamiyo import Actor
from esper.tamiyo.rules import RulePolicy

Seen = TypeVar("Seen")


class Player(Protocol):
    """Somebody who acts in every env at once."""

    def begin(self, num_envs: int) -> None: ...

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions: ...


class LearnedPlayer:
    """A policy network, greedy."""

    def __init__(self, actor: Callable[[int], Actor]) -> None:
        self._make, self._actor = actor, actor(1)

    def begin(self, num_envs: int) -> None:
        self._actor = self._make(num_envs)

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions:
        episodes.observe()
        masks = torch.from_numpy(episodes.masks().copy())
        flat = episodes.observer.flat.clone()
        actions: Actions = (
            self._actor.act(flat, masks, reward=torch.from_numpy(rewards).float()).cpu().numpy()
        )
        return actions


class RulePlayer:
    """A rule that needs no learning, one for each env."""

    def __init__(self, make: Callable[[int], RulePolicy]) -> None:
        self._make, self._rules = make, list[RulePolicy]()

    def begin(self, num_envs: int) -> None:
        self._rules = [self._make(env_idx) for env_idx in range(num_envs)]
        for rule in self._rules:
            rule.reset()

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions:
        del rewards
        return np.stack(
            [
                episodes.encode(env_idx, rule.act(episodes.situation(env_idx)))
                for env_idx, rule in enumerate(self._rules)
            ]
        )


@dataclass(frozen=True, slots=True)
class Judged(Generic[Seen]):
    """One episode, and what `look` made of its product (None if the host was condemned or lost)."""

    summary: EpisodeSummary
    seen: Seen | None


@overload
def play_cases(
    player: Player, episodes: Episodes, wanted: Sequence[tuple[str, int]]
) -> list[Judged[None]]: ...


@overload
def play_cases(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    look: Callable[[HostProtocol, str], Seen | None],
) -> list[Judged[Seen]]: ...


def play_cases(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    look: Callable[[HostProtocol, str], Seen | None] | None = None,
) -> list[Judged[Seen]]:
    """One episode of each (case, host seed), as many at a time as there are envs, in the order given."""
    judged: list[Judged[Seen]] = []
    for start in range(0, len(wanted), episodes.num_envs):
        part = wanted[start : start + episodes.num_envs]
        judged += _play_together(player, episodes, part, look)
    return judged


def _play_together(
    player: Player,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    look: Callable[[HostProtocol, str], Seen | None] | None,
) -> list[Judged[Seen]]:
    filled = [
        *wanted,
        *[wanted[-1]] * (episodes.num_envs - len(wanted)),
    ]  # places that are left over repeat the last
    for env_idx in range(episodes.num_envs):
        episodes.seed(env_idx, 0)
    episodes.begin_many([Beginning(env_idx, *pair) for env_idx, pair in enumerate(filled)])
    player.begin(episodes.num_envs)
    finished: list[Judged[Seen] | None] = [None] * episodes.num_envs
    rewards = np.zeros(episodes.num_envs)
    for _ in range(episodes.horizon):
        result = episodes.step(player.act(episodes, rewards))
        rewards = result.components.total
        for env_idx in map(int, np.flatnonzero(result.ended)):
            if finished[env_idx] is None:
                finished[env_idx] = _judge(episodes, env_idx, bool(result.lost[env_idx]), look)
            if (
                episodes.episode(env_idx).epoch < episodes.horizon
            ):  # ended early: it only keeps its place from here on
                episodes.begin(env_idx, case=filled[env_idx][0], host_seed=filled[env_idx][1])
    return [one for one in finished[: len(wanted)] if one is not None]


def _judge(
    episodes: Episodes, env_idx: int, lost: bool, look: Callable[[HostProtocol, str], Seen | None] | None
) -> Judged[Seen]:
    summary = episodes.summary(env_idx, lost=lost)
    worth_looking = look is not None and summary.utility is not None
    return Judged(summary, look(episodes.host(env_idx), summary.case) if look and worth_looking else None)
