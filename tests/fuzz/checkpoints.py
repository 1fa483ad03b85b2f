"""Checkpoints of runs: what `esper resume` goes on from."""

import io
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from esper.nissa import RunDirectory
from esper.runs.train import find_resume_point
from esper.simic.building import build
from esper.simic.config.training_config import TrainingConfig
from esper.simic.trainer import VectorizedPPOTrainer
from fuzz.door import Door
from fuzz.mutations import Bomb, bomb_bytes, spoil_bytes, spoil_tree

_CONFIG = TrainingConfig.preset(
    "toy", num_envs=2, num_minibatches=1, n_epochs=1, pool_cases=2, hidden_size=5, rounds=2, horizon=6
)


def _trainer() -> VectorizedPPOTrainer:
    return VectorizedPPOTrainer(_CONFIG, build(_CONFIG))


@cache
def _sound() -> bytes:
    with TemporaryDirectory() as folder:
        trainer = _trainer()
        trainer.begin()
        path = Path(folder) / "last.pt"
        trainer.agent.save(path, extra=trainer._extra())
        return path.read_bytes()


def _written(checkpoint: object) -> bytes:
    stream = io.BytesIO()
    torch.save(checkpoint, stream)
    return stream.getvalue()


def _resume(rng: Random, folder: Path) -> object:
    content, way = _sound(), rng.random()
    if way < 0.4:
        checkpoint = torch.load(io.BytesIO(content), weights_only=True)
        content = _written({**checkpoint, "extra": spoil_tree(checkpoint["extra"], rng)})
    elif way < 0.6:
        content = _written(spoil_tree(torch.load(io.BytesIO(content), weights_only=True), rng))
    elif way < 0.65:
        content = _written({**torch.load(io.BytesIO(content), weights_only=True), "extra": Bomb(folder)})
    elif way < 0.7:
        content = bomb_bytes(folder)
    else:
        content = spoil_bytes(content, rng)
    path = folder / "run" / "checkpoints" / "last.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    _CONFIG.save(folder / "run" / "config.json")
    with RunDirectory.resume(folder, "run") as run:
        point = find_resume_point(run, _CONFIG)
    assert point.checkpoint == path
    trainer = _trainer()
    trainer.resume(path)
    trainer._extra()
    return trainer


DOORS = (Door("checkpoint of a run", _resume, 500),)
