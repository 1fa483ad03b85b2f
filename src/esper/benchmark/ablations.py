"""What a trained controller is worth without one thing that it has: does it close a loop?

    without_memory  its memory is empty before every decision
    without_return  it may neither prune nor retire: what it grew stays
    without_change  from some epoch on it is shown the host as it was then, and only its seeds as they are

A copy that repeats its decisions on another instance is the arm `blind`.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.benchmark.arms import Hosts, LearnedArm, Staging
from esper.benchmark.controllers import open_controller
from esper.leyline import LifecycleOp, operations
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Rewards
from esper.tamiyo import Actor
from esper.tamiyo.actions import Actions, GrowthSpace
from esper.tamiyo.features import host_features

WITHOUT_MEMORY, WITHOUT_RETURN, WITHOUT_CHANGE = "without_memory", "without_return", "without_change"
ABLATIONS = (WITHOUT_MEMORY, WITHOUT_RETURN, WITHOUT_CHANGE)
SHOWN_EPOCHS = 5
"""Epochs after which `without_change` shows nothing new of the host; no change of a drawn stream is earlier."""
_OF_GROWTH = ("time_left", "epochs_left", "added_parameters", "budget_left", "last_", "fossil_", "decayed_")
"""Beginnings of the features of a host that say what was grown, or how late it is: these stay as they are."""


class AblatedPlayer:
    """A policy network, greedy, that lacks something."""

    def __init__(self, actor: Callable[[int], Actor], ablation: str) -> None:
        if ablation not in ABLATIONS:
            raise ValueError(f"ablation is {ablation!r}; expected one of {', '.join(ABLATIONS)}")
        self._make, self._actor, self._ablation = actor, actor(1), ablation
        self._decided = 0
        self._held: tuple[Tensor, Tensor] | None = None

    def begin(self, num_envs: int) -> None:
        """Begin with an empty memory."""
        self._actor, self._decided, self._held = self._make(num_envs), 0, None

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """The most probable actions (env, head) of those that are left to it."""
        episodes.observe()
        masks = torch.from_numpy(episodes.masks().copy())
        flat, reward = episodes.observer.flat.clone(), torch.from_numpy(rewards).float()
        if self._ablation == WITHOUT_MEMORY:
            self._actor.reset()
        elif self._ablation == WITHOUT_RETURN:
            masks[:, _returning(episodes.space)] = False
        else:
            flat, reward = self._unmoved(flat, reward, episodes.space)
        self._decided += 1
        actions: Actions = self._actor.act(flat, masks, reward=reward).cpu().numpy()
        return actions

    def _unmoved(self, flat: Tensor, reward: Tensor, space: GrowthSpace) -> tuple[Tensor, Tensor]:
        """The observation (env, feature) and the rewards (env,) with what moves with the data held still."""
        moving = moving_features(space)
        if self._held is None or self._decided <= SHOWN_EPOCHS:
            self._held = flat[:, moving], reward
            return flat, reward
        flat[:, moving], reward = self._held
        return flat, reward


def _returning(space: GrowthSpace) -> list[int]:
    """Places in a flat mask, whose first head is the operation, of those that give something back."""
    known = operations(retire=space.retire)
    return [known.index(op) for op in (LifecycleOp.PRUNE, LifecycleOp.RETIRE) if op in known]


def moving_features(space: GrowthSpace) -> list[int]:
    """Places in a flat observation of all that the data move in a host: samples, levels, trends, gaps, gradients."""
    return [place for place, name in enumerate(host_features(space)) if not name.startswith(_OF_GROWTH)]


@dataclass(frozen=True, slots=True)
class AblatedArm(LearnedArm):
    """Trained controllers that lack something, one member for each training seed."""

    ablation: str = WITHOUT_MEMORY

    @property
    def identity(self) -> str:
        return f"controllers {', '.join(file.digest for file in self.controllers)}, {self.ablation}"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        file = self.controllers[hosts.member]
        return Staging(
            AblatedPlayer(open_controller(file, hosts.suite).actor, self.ablation), controller=file
        )
