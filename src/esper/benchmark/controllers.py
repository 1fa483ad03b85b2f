"""Learned controllers to play: shipped or saved ones, checkpoints of runs, cloned networks, and ablated ones.

Does a controller close a loop? An ablated one lacks what that would need:

    without_memory  its memory is empty before every decision
    without_return  it may neither prune nor retire: what it grew stays
    without_change  from some epoch on it is shown the host as it was then, and only its seeds as they are

A copy that repeats its decisions on another instance is the arm `blind`.
"""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from esper.benchmark.arms import Hosts, LearnedArm, Staging
from esper.leyline import LifecycleOp, operations
from esper.leyline.errors import EsperError
from esper.leyline.utility import Counts
from esper.simic.agent import CheckpointError
from esper.simic.agent.checkpoint import judged_checkpoints
from esper.simic.building import build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import make_world
from esper.simic.evaluation import Rewards
from esper.tamiyo import Actor
from esper.tamiyo import controller as saved
from esper.tamiyo.actions import Actions, GrowthSpace
from esper.tamiyo.features import host_features

CLONE = ".safetensors"
"""The suffix of a saved `PolicyNetwork`, which holds its settings too."""


class ControllerError(EsperError, ValueError):
    """A controller that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ControllerFile:
    """Where one trained controller is."""

    checkpoint: Path
    config: Path
    digest: str
    """Hash of the content: rows of another controller are not mixed with this one's."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller that is ready to act in the hosts of a suite."""

    config: TrainingConfig
    space: GrowthSpace
    actor: Callable[[int], Actor]
    counts: Counts
    """What counted where it was trained."""
    env_steps: int | None
    """Epochs of hosts that its training took; None where that is not known."""


def find_controller(path: Path) -> ControllerFile:
    """The files of a controller, given by its name or folder, a run's folder (its best checkpoint, or else its last),
    one checkpoint in it, or a cloned network."""
    folder = saved.controller_folder(path)
    if folder is not None:
        return ControllerFile(folder / saved.WEIGHTS, folder / saved.CARD, _digest(folder / saved.CARD))
    if path.suffix == CLONE and path.is_file():
        return ControllerFile(path, path, _digest(path))
    if path.is_dir():
        checkpoints, config = judged_checkpoints(path), path / "config.json"
        if not checkpoints or not config.is_file():
            raise ControllerError(f"{path} is not the folder of a controller, or of a run with a checkpoint")
        return ControllerFile(checkpoints[0], config, _digest(checkpoints[0]))
    if not path.is_file():
        raise ControllerError(f"{path}: there is no such controller, run or checkpoint")
    config = path.parent.parent / "config.json"
    if not config.is_file():
        raise ControllerError(f"{path}: expected a run's config.json at {config}")
    return ControllerFile(path, config, _digest(path))


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def open_controller(file: ControllerFile, suite: str) -> Controller:
    """Load a controller; kept in this process. A run's has the space that it was trained in."""
    try:
        if file.config.name == saved.CARD:
            return _open_saved(file.config.parent, make_world(suite, 1).space)
        if file.checkpoint.suffix == CLONE:
            return _open_clone(file.checkpoint)
        config = TrainingConfig.load(file.config).in_one_process()
        training = build(config)
        training.agent.load(file.checkpoint)
    except (ConfigError, CheckpointError, CloningError, saved.ControllerError) as error:
        raise ControllerError(str(error)) from None
    agent, reward = training.agent, training.envs.episodes.reward
    return Controller(config, training.envs.space, agent.actor, reward.counts, agent.env_steps)


def _open_saved(folder: Path, space: GrowthSpace) -> Controller:
    """With the settings on its card."""
    controller = saved.Controller.load(folder)
    config = TrainingConfig.of(controller.card.training.settings).in_one_process()
    card = controller.card
    actor = partial(controller.actor, space)
    return Controller(config, space, actor, card.reward.counts, card.training.env_steps)


def _open_clone(path: Path) -> Controller:
    """With the settings that it was recorded under."""
    network = PolicyNetwork.load(path)
    settings = network.notes.get("config")
    if not isinstance(settings, dict):
        raise ControllerError(f"{path}: it does not say what settings it was recorded under")
    config = TrainingConfig.of(settings)
    return Controller(config, network.space, network.actor, make_world(config.suite, 1).counts, None)


def open_fitting(file: ControllerFile, suite: str) -> Controller:
    """`open_controller`; raises unless every host of the suite has a place in the controller's space."""
    controller, theirs = open_controller(file, suite), make_world(suite, 1).space
    misfit = controller.space.misfit(theirs.slot_config, theirs.blueprints)
    if misfit is not None:
        raise ControllerError(f"{file.checkpoint} does not fit the hosts of {suite}: {misfit}")
    return controller


# What a controller is worth without one thing that it has


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
