"""A Grower on a frozen base: the adapter that it writes."""

import json
from pathlib import Path

import peft
import pytest
import torch
from torch import nn

import esper
from grower.loops import FEATURES, Loop, net


def _base() -> nn.Sequential:
    base = net()
    base[:2].requires_grad_(False)
    return base


def _grown(*, epochs: int = 12) -> esper.Grower:
    base, loop = _base(), Loop()
    optimizer = torch.optim.Adam(base[2].parameters(), lr=0.02)
    grower = esper.Grower(
        base,
        slots=["0.0", "1.0"],
        optimizer=optimizer,
        example_input=torch.zeros(2, FEATURES),
        validate=loop.validate,
        epochs=epochs,
        rent=0.0,
        blueprints=["lora*"],
    )
    for _ in range(epochs):
        loop.train(grower.model, optimizer)
        grower.step()
    return grower


def test_what_was_grown_is_written_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grower, loop = _grown(), Loop()
    plain = grower.finish()
    assert grower.model.added_parameters > 0
    grower.save_adapter(tmp_path, base_id="three layers", description="signs")
    card = json.loads((tmp_path / "adapter.json").read_text())["card"]
    assert card == {
        "description": "signs",
        "controller": "frozen_spread",
        "epochs": 12,
        "last_score": grower.history[-1].score,
        "added_parameters": grower.model.added_parameters,
    }
    with torch.no_grad():
        loaded = esper.load_adapter(_base(), tmp_path)
        assert torch.equal(loaded(loop.inputs), plain(loop.inputs))
        assert torch.allclose(grower.model.merge()(loop.inputs), plain(loop.inputs), atol=1e-5)
        assert not torch.allclose(_base()(loop.inputs), plain(loop.inputs), atol=1e-2)
    grower.print_trainable_parameters()
    loaded.print_trainable_parameters()
    ours, theirs = capsys.readouterr().out.splitlines()
    assert ours == theirs
    head = 7 * 3 + 3
    assert ours.startswith(f"trainable params: {grower.model.added_parameters + head:,} ||")


@pytest.mark.filterwarnings("ignore")  # PEFT's own
def test_peft_reads_what_a_grower_exports(tmp_path: Path) -> None:
    grower, loop = _grown(), Loop()
    grower.export_peft(tmp_path, base_id="three layers")
    read = peft.PeftModel.from_pretrained(_base(), str(tmp_path)).eval()
    with torch.no_grad():
        assert (read(loop.inputs) - grower.model.eval()(loop.inputs)).abs().max() < 1e-5
