"""Learned controllers to play: shipped or saved ones, checkpoints of runs, and cloned networks."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.leyline.utility import Counts
from esper.simic.agent import CheckpointError
from esper.simic.agent.checkpoint import judged_checkpoints
from esper.simic.building import build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import make_world
from esper.tamiyo import Actor
from esper.tamiyo import controller as saved
from esper.tamiyo.actions import GrowthSpace

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
        raise ControllerError(
            f"{path}: there is no such controller, run or checkpoint; `esper controllers` lists those that are here"
        )
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
    steps = config.whole_cost(agent.env_steps)
    return Controller(config, training.envs.space, agent.actor, reward.counts, steps)


def _open_saved(folder: Path, space: GrowthSpace) -> Controller:
    """With the settings on its card."""
    controller = saved.Controller.load(folder)
    config = TrainingConfig.of(controller.card.training.settings).in_one_process()
    card = controller.card
    actor = partial(controller.actor, space)
    steps = config.whole_cost(card.training.env_steps)
    return Controller(config, space, actor, card.reward.counts, steps)


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
