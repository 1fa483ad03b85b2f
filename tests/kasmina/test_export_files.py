"""A grown model as a file: whatever the ending, it computes the same, for batches of any size."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.kasmina import GrowingModel
from esper.kasmina.export import write_model
from esper.leyline import Layout, Stage
from esper.leyline.files import ENDINGS
from tiny import SLOT, grow_until, tiny_input, tiny_model


def grown(layout: Layout) -> GrowingModel:
    model = tiny_model(layout)
    grow_until(model, SLOT, Stage.HOLDING, "lora")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    return model.eval()


@pytest.mark.parametrize("layout", [Layout.SERIES, Layout.IMAGE])
@pytest.mark.parametrize("ending", ENDINGS)
def test_it_computes_the_same(ending: str, layout: Layout, tmp_path: Path) -> None:
    model, path = grown(layout), tmp_path / f"out{ending}"
    wide = tiny_input(layout, batch=6)
    example = wide.expand(*wide.shape)[::2]  # a view with strides of its own
    write_model(model, path, example)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # one, that can be moved
    inputs = tiny_input(layout, batch=7, seed=4)
    with torch.no_grad():
        expected = model(inputs)
        assert isinstance(expected, Tensor)
        bare = tiny_model(layout).eval()
        assert not torch.equal(bare(inputs), expected)
        if ending == ".safetensors":
            bare.load(path)
            found = bare(inputs)
        elif ending == ".pt2":
            found = torch.export.load(path).module()(inputs)
        else:
            session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
            (answer,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
            found = torch.from_numpy(answer)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected an ending among .safetensors, .onnx, .pt2"):
        write_model(grown(Layout.FLAT), tmp_path / "out.pkl", tiny_input(Layout.FLAT))
