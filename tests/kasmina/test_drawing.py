from pathlib import Path

import pytest
import torch
from torch import nn

import esper
from esper.kasmina.drawing import outline
from esper.kasmina.hosts import ConvNet
from esper.leyline import Stage
from tiny import grow_until


@pytest.fixture
def model() -> esper.GrowingModel:
    model = esper.wrap(ConvNet(1, 3, dims=1), ["blocks.0", "blocks.2"], torch.randn(2, 1, 16))
    grow_until(model, "blocks.0", Stage.HOLDING, "conv_heavy", alpha_target=0.7)
    model.report("blocks.0", contribution=0.0213)
    return model


def test_text(model: esper.GrowingModel) -> None:
    seed = "HOLDING conv_heavy, alpha 0.7 of 0.7, 408 parameters, contribution +0.021"
    assert model.draw().splitlines() == [
        f"blocks.0  Sequential           40  |- {seed}",
        "blocks.1  Sequential          416",
        "blocks.2  Sequential          800  |- DORMANT",
        "head      Linear               51",
        "host 1,307 parameters, grown 408",
    ]


def test_what_is_unknown_is_not_shown_as_zero(model: esper.GrowingModel) -> None:
    model.tick()
    model.prune("blocks.0", alpha_speed=3)
    model.slots["blocks.0"].contribution = None
    assert "BLENDING (fading) conv_heavy" in model.draw()
    assert "contribution" not in model.draw()


def test_slots_inside_slots_are_all_shown() -> None:
    host = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))
    model = esper.wrap(host, ["0", "0.0"], torch.randn(2, 3))
    assert [station.name for station in outline(model)] == ["0.0", "0.1", "0", "1"]


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(model: esper.GrowingModel, tmp_path: Path, ending: str, magic: bytes) -> None:
    path = tmp_path / f"grown.{ending}"
    model.draw(path)
    assert path.read_bytes().startswith(magic)
    if ending == "svg":
        for word in ("conv_heavy", "HOLDING", "alpha 0.7", "contribution"):
            assert word in path.read_text()
