"""Folders of controllers: a card and weights."""

import hashlib
import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from safetensors.torch import load, save

from esper.tamiyo.controller import CARD, WEIGHTS, Controller
from fuzz.door import Door
from fuzz.mutations import bomb_bytes, spoil_bytes, spoil_tensors, spoil_tree
from tiny_controllers import tiny_controller


@cache
def _sound() -> tuple[bytes, bytes]:
    with TemporaryDirectory() as folder:
        tiny_controller().save(folder)
        return (Path(folder) / CARD).read_bytes(), (Path(folder) / WEIGHTS).read_bytes()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _folder(rng: Random, folder: Path) -> object:
    card, weights = _sound()
    way = rng.random()
    if way < 0.5:
        card = json.dumps(spoil_tree(json.loads(card), rng)).encode()
    elif way < 0.65:
        card = spoil_bytes(card, rng)
    elif way < 0.7:
        weights = bomb_bytes(folder)
    elif way < 0.85:
        weights = save(spoil_tensors(load(weights), rng))
    else:
        weights = spoil_bytes(weights, rng)
    if rng.random() < 0.8:  # a card that was written for these weights
        card = card.replace(_digest(_sound()[1]), _digest(weights))
    (folder / CARD).write_bytes(card)
    (folder / WEIGHTS).write_bytes(weights)
    return Controller.load(folder)


DOORS = (Door("controller", _folder, 1_000),)
