"""Saved growing models, and what a checkpoint of a Grower holds."""

import io
import json
from functools import cache
from pathlib import Path
from random import Random

import torch
from safetensors.torch import save
from torch import Tensor

from esper.grower import Grower
from esper.kasmina import GrowingModel
from esper.kasmina.describing import describe
from esper.leyline import Layout, Stage
from fuzz.door import Door
from fuzz.mutations import bomb_bytes, spoil_bytes, spoil_tensors, spoil_tree
from grower.loops import Loop, net
from tiny import SLOT, grow_until, tiny_model


@cache
def _saved() -> tuple[dict[str, object], dict[str, Tensor]]:
    """Of a model in the middle of a seed's life, with its optimiser."""
    model = _fresh()
    grow_until(model, SLOT, Stage.BLENDING, "norm")
    model(torch.zeros(2, 3)).sum().backward()
    assert model.care is not None
    model.care.optimizer.step()
    record, tensors = describe(model)
    return json.loads(record.model_dump_json()), {name: tensor.clone() for name, tensor in tensors.items()}


def _fresh() -> GrowingModel:
    model = tiny_model(Layout.FLAT)
    model.attach(torch.optim.Adam(model.parameters(), lr=0.01))
    return model


def _file(rng: Random, folder: Path) -> object:
    record, tensors = _saved()
    way, path = rng.random(), folder / "model.safetensors"
    if way < 0.5:
        text = json.dumps(spoil_tree(record, rng))
        content = save(tensors, metadata={"esper": text})
    elif way < 0.7:
        content = save(spoil_tensors(tensors, rng), metadata={"esper": json.dumps(record)})
    elif way < 0.72:
        content = bomb_bytes(folder)
    else:
        content = spoil_bytes(save(tensors, metadata={"esper": json.dumps(record)}), rng)
    path.write_bytes(content)
    model = _fresh()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    try:
        model.load(path)
    except Exception:
        after = model.state_dict()
        assert set(after) == set(before), "a refused file changed the model"
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        raise
    model(torch.zeros(2, 3)).sum().backward()
    model.tick()
    return model


_LOOP = Loop()


def _grower() -> Grower:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Grower(
        model, ["0", "1"], optimizer=optimizer, example_input=_LOOP.inputs, validate=_LOOP.validate, epochs=9
    )


@cache
def _state() -> dict[str, object]:
    grower = _grower()
    for _ in range(4):
        _LOOP.train(grower.model, grower.model.care.optimizer)  # type: ignore[union-attr]
        grower.step(train_loss=1.0)
    return grower.state_dict()


def _load_state(rng: Random, _: Path) -> object:
    if rng.random() < 0.1:  # as a user's own checkpoint brings it in
        stream = io.BytesIO()
        torch.save(_state(), stream)
        state = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    else:
        state = dict(_state())
    for name in ("model", "history"):
        if rng.random() < 0.2:
            state[name] = json.dumps(spoil_tree(json.loads(str(state[name])), rng))
    if rng.random() < 0.8:
        state = spoil_tree(state, rng)
    grower = _grower()
    grower.load_state_dict(state)
    _LOOP.train(grower.model, grower.model.care.optimizer)  # type: ignore[union-attr]
    grower.step(train_loss=1.0)
    return grower


DOORS = (
    Door("grown model", _file, 1_500),
    Door("state of a Grower", _load_state, 500, (ValueError, TypeError)),
)
