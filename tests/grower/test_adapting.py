"""A Grower on a frozen base: the adapter that it writes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import peft
import pytest
import torch
from torch import nn

import esper
from esper.grower.history import Decision
from esper.kasmina.norm_statistics import norm_statistics
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


class _Shifted(Loop):
    """Inputs that lie elsewhere and wider than those that the base has learned, from some epoch on."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.plain = self.inputs
        self.shift(shift)

    def shift(self, amount: float) -> None:
        self.inputs = self.plain * (1.0 + amount) + amount

    def __iter__(self) -> Iterator[tuple[torch.Tensor, None]]:
        return iter([(self.inputs[:40], None), (self.inputs[40:], None)])


def _learned() -> nn.Sequential:
    """A base with its head, trained on the inputs as they are."""
    base, loop = net(), Loop()
    base.insert(1, nn.BatchNorm1d(7))
    optimizer = torch.optim.Adam(base.parameters(), lr=0.02)
    for _ in range(40):
        loop.train(base, optimizer)
    base[:3].requires_grad_(False)
    return base.eval()


def _following(loop: _Shifted, **options: object) -> esper.Grower:
    base = _learned()
    return esper.Grower(
        base,
        slots=["0.0", "2.0"],
        optimizer=torch.optim.Adam(base[3].parameters(), lr=1e-4),
        example_input=torch.zeros(2, FEATURES),
        validate=loop.validate,
        controller="random",
        blueprints=["norm"],
        epochs=8,
        governor=None,
        target=loop,
        **options,  # type: ignore[arg-type]
    )


def _one_epoch(grower: esper.Grower, loop: _Shifted) -> Decision:
    """In evaluation mode, in which BatchNorm keeps its statistics."""
    grower.model.eval()
    for inputs, targets in loop.batches():
        loss = nn.functional.cross_entropy(grower.model(inputs), targets)
        grower._optimizer.zero_grad()
        loss.backward()
        grower._optimizer.step()
    return grower.step()


def test_statistics_of_a_target_are_used_from_the_start_where_they_help() -> None:
    loop = _Shifted(2.0)
    grower = _following(loop)
    assert (grower.statistics.names, grower.statistics.in_use) == (("source", "target"), "target")
    assert (
        loop.validate(grower.model)["validation_accuracy"]
        > 0.1 + loop.validate(_learned())["validation_accuracy"]
    )
    decision = _one_epoch(grower, loop)
    assert re.search(
        r"BatchNorm statistics: target are used; .*: target 0\.\d+, source 0\.\d+", decision.notes[0]
    )


def test_those_of_the_source_are_used_where_they_validate_clearly_better() -> None:
    """The batches are not of what is validated: their statistics spoil it."""
    loop, other = Loop(), _Shifted(5.0)
    base = _learned()
    grower = esper.Grower(
        base,
        slots=["0.0"],
        optimizer=torch.optim.Adam(base[3].parameters()),
        example_input=torch.zeros(2, FEATURES),
        validate=loop.validate,
        target=other,
    )
    assert (grower.statistics.names, grower.statistics.in_use) == (("source", "target"), "source")
    grower.estimate_statistics([(loop.inputs, None)], name="mine")
    assert grower.choose_statistics([(loop.inputs, None)]) == "target"
    assert grower.statistics.names == ("source", "target", "mine")


def test_when_validation_falls_statistics_are_chosen_again() -> None:
    loop = _Shifted()
    grower = _following(loop)
    assert not any("statistics" in note for note in _one_epoch(grower, loop).notes[1:])
    kept = norm_statistics(grower.model.host)["1.running_mean"].clone()
    loop.shift(3.0)
    fallen = _one_epoch(grower, loop)
    assert any(note.startswith("BatchNorm statistics: target") for note in fallen.notes)
    now = norm_statistics(grower.model.host)["1.running_mean"]
    assert not torch.allclose(now, kept, atol=0.5)
    assert "before" in grower.statistics.names
    after = _one_epoch(grower, loop)
    assert after.score is not None
    assert fallen.score is not None
    assert after.score > fallen.score + 0.1
    assert not any("statistics" in note for note in after.notes)


def test_a_failing_validation_leaves_the_statistics_as_they_were() -> None:
    loop = _Shifted(2.0)
    grower = _following(loop)
    before = norm_statistics(grower.model.host)["1.running_mean"].clone()

    def fails(_: nn.Module) -> dict[str, float]:
        raise RuntimeError("no disk")

    grower._gauge.validate = fails
    loop.shift(4.0)
    with pytest.raises(RuntimeError, match="no disk"):
        grower.choose_statistics(loop)
    assert torch.equal(norm_statistics(grower.model.host)["1.running_mean"], before)


def test_what_cannot_be_chosen_is_refused() -> None:
    loop, base = Loop(), _learned()

    def make(model: nn.Module, **options: object) -> esper.Grower:
        optimizer = torch.optim.Adam(model[3].parameters())  # type: ignore[index]
        example = torch.zeros(2, FEATURES)
        return esper.Grower(model, slots=["0.0"], optimizer=optimizer, example_input=example, **options)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="statistics are chosen by validation, and there is none"):
        make(base, target=[(loop.inputs, None)])
    with pytest.raises(ValueError, match="its twin would keep others"):
        make(base, target=[(loop.inputs, None)], validate=loop.validate, twin=lambda *_: 0.0)
    make(base, validate=loop.validate)  # nothing was left on the model
