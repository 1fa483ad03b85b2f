"""Learned controllers: those that come with Esper, and those in the files that training leaves behind."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from esper.leyline.errors import EsperError
from esper.simic.agent import CheckpointError
from esper.simic.building import build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.errors import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import make_world
from esper.tamiyo import Actor
from esper.tamiyo import controller as saved
from esper.tamiyo.actions import GrowthSpace

_BEST, _LAST = "best.pt", "last.pt"
CLONE = ".safetensors"
"""A saved `PolicyNetwork`, its settings with it."""


class ControllerError(EsperError, ValueError):
    """A controller that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ControllerFile:
    """Where one trained controller is."""

    checkpoint: Path
    config: Path
    digest: str
    """Of the checkpoint's content: rows of another one are not mixed with these."""


@dataclass(frozen=True, slots=True)
class Controller:
    """One ready to act in the hosts of a suite."""

    config: TrainingConfig
    space: GrowthSpace
    actor: Callable[[int], Actor]


def find_controller(path: Path) -> ControllerFile:
    """Of a controller by its name or folder, a run's folder (its best checkpoint, or else its last), one checkpoint
    in it, or a cloned network."""
    folder = saved.shipped_controllers().get(str(path), path)
    if (folder / saved.CARD).is_file():
        return ControllerFile(folder / saved.WEIGHTS, folder / saved.CARD, _digest(folder / saved.CARD))
    if path.suffix == CLONE and path.is_file():
        return ControllerFile(path, path, _digest(path))
    run = path if path.is_dir() else path.parent.parent
    config = run / "config.json"
    if path.is_dir():
        found = [each for name in (_BEST, _LAST) if (each := run / "checkpoints" / name).is_file()]
        if not found or not config.is_file():
            raise ControllerError(f"{path} is not the folder of a controller, or of a run with a checkpoint")
        checkpoint = found[0]
    elif not path.is_file():
        raise ControllerError(f"{path}: there is no such controller, run or checkpoint")
    elif not config.is_file():
        raise ControllerError(f"{path}: expected a run's config.json at {config}")
    else:
        checkpoint = path
    return ControllerFile(checkpoint, config, _digest(checkpoint))


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=8)
def open_controller(file: ControllerFile, suite: str) -> Controller:
    """Read from data alone; kept in this process. A run's has the space that it was trained in."""
    try:
        if file.config.name == saved.CARD:
            return _open_saved(file.config.parent, make_world(suite, 1).space)
        if file.checkpoint.suffix == CLONE:
            return _open_clone(file.checkpoint)
        config = replace(TrainingConfig.load(file.config), workers=0, device="cpu")
        training = build(config)
        training.agent.load(file.checkpoint)
    except (ConfigError, CheckpointError, CloningError, saved.ControllerError) as error:
        raise ControllerError(str(error)) from None
    return Controller(config, training.envs.space, training.agent.actor)


def _open_saved(folder: Path, space: GrowthSpace) -> Controller:
    """With the settings that its card tells of."""
    controller = saved.Controller.load(folder)
    config = TrainingConfig.of({**controller.card.training.settings, "workers": 0, "device": "cpu"})
    return Controller(config, space, partial(controller.actor, space))


def _open_clone(path: Path) -> Controller:
    """With the settings that it was recorded under."""
    network = PolicyNetwork.load(path)
    settings = network.notes.get("config")
    if not isinstance(settings, dict):
        raise ControllerError(f"{path}: it does not say what settings it was recorded under")
    return Controller(TrainingConfig.of(settings), network.space, network.actor)


def require_fit(file: ControllerFile, suite: str) -> None:
    """Raise unless every host of the suite has a place in the controller's space."""
    ours, theirs = open_controller(file, suite).space, make_world(suite, 1).space
    misfit = ours.misfit(theirs.slot_config, theirs.blueprints)
    if misfit is not None:
        raise ControllerError(f"{file.checkpoint} does not fit the hosts of {suite}: {misfit}")
