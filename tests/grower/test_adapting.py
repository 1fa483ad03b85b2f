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


def _normed() -> nn.Sequential:
    base = net()
    base.insert(1, nn.BatchNorm1d(7))
    base[:3].requires_grad_(False)
    return base.eval()


def test_statistics_of_the_target_are_kept_beside_those_of_the_source(tmp_path: Path) -> None:
    base, loop = _normed(), Loop()
    grower = esper.Grower(
        base,
        slots=["0.0", "2.0"],
        optimizer=torch.optim.Adam(base[3].parameters()),
        example_input=torch.zeros(2, FEATURES),
        twin=lambda *_: 0.0,
        validate=loop.validate,
    )
    assert (grower.statistics.names, grower.statistics.in_use) == (("source",), "source")
    batches = [(loop.inputs[:40], None), (loop.inputs[40:], None)]
    grower.estimate_statistics(batches)
    assert (grower.statistics.names, grower.statistics.in_use) == (("source", "target"), "target")
    with torch.no_grad():
        expected = base[0](loop.inputs).mean(0)
        assert torch.allclose(base[1].running_mean, expected, atol=1e-6)  # type: ignore[arg-type]
        assert grower._twin is not None
        theirs = grower._twin.model.get_buffer("1.running_mean")
        assert torch.equal(theirs, base[1].running_mean)  # type: ignore[arg-type]
        target = grower.model(loop.inputs)
        grower.save_adapter(tmp_path)
        grower.use_statistics("source")
        assert not torch.allclose(grower.model(loop.inputs), target, atol=1e-3)
        assert torch.equal(grower.model.export()(loop.inputs), _normed()(loop.inputs))
        assert torch.equal(esper.load_adapter(_normed(), tmp_path)(loop.inputs), target)
    with pytest.raises(ValueError, match="no samples reached"):
        grower.estimate_statistics([])


def test_features_of_the_frozen_prefix_are_remembered() -> None:
    grower, loop = _grown(epochs=6), Loop()
    grower.finish(settle="committed")
    grower.model.eval()
    cache = grower.cache_features("0.0", len(loop.inputs))
    rows = torch.arange(len(loop.inputs))
    with torch.no_grad():
        expected = grower.model.export()(loop.inputs)
        for _ in range(2):
            with cache.of(rows):
                found = grower.model(loop.inputs[rows])
            assert torch.allclose(found, expected, atol=1e-6)
    assert cache.remembered == cache.computed == len(loop.inputs)
