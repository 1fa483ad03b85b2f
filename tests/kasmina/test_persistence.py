"""Saving and loading: equal outputs, equal continued training, and nothing but data in the file."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import esper
from esper.kasmina import GrowingModel, GrowthRules
from esper.kasmina.describing import OptimizerRecord, describe
from esper.kasmina.hosts import GPT, ConvNet
from esper.kasmina.persistence import ModelFileError, reinstate
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, grow_until, tiny_model

X = torch.linspace(-1, 1, 5 * 16).view(5, 1, 16)


def _uneven_groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "blocks.1" not in name], "limit": None},
        {"params": [p for name, p in named if "blocks.1" in name], "limit": 0.5, "tag": "x"},
    ]


OPTIMISERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: Adam(model.parameters(), lr=0.01),
    "adamw": lambda model: AdamW(model.parameters(), lr=torch.tensor(0.01), foreach=False, amsgrad=True),
    "groups of their own": lambda model: SGD(_uneven_groups(model), lr=0.1, momentum=0.9),
}


def _fresh(norm: str = "batch", **options: object) -> GrowingModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host = ConvNet(1, 3, dims=1, widths=(4, 5, 6, 7), pools=(1, 2, 1, 2), norm=norm)  # type: ignore[arg-type]
    wrap: Callable[..., GrowingModel] = esper.wrap
    return wrap(host, ["blocks.*"], X, **options)


def _train(model: GrowingModel, optimizer: Optimizer, epochs: int, start: int = 0) -> list[Tensor]:
    """A scripted life in every slot, so that any moment has several stages."""
    outputs = []
    for epoch in range(start, start + epochs):
        if epoch == 0:
            model.germinate("blocks.0", "conv_light", style=Style.GATE)
        if epoch == 1:
            model.advance("blocks.0")
            model.germinate("blocks.1", "mixer", style=Style.MULTIPLY)
        if epoch == 5:
            model.fossilize("blocks.0")
            model.advance("blocks.1")
        if epoch == 6:
            model.prune("blocks.1", alpha_speed=5)
        if epoch == 7:
            model.germinate("blocks.2", "widen", alpha_target=0.7)
        if epoch == 9:
            model.advance("blocks.2")
        model.tick()
        for _ in range(2):
            optimizer.zero_grad()
            out = model(X)
            assert isinstance(out, Tensor)
            (out - torch.tensor([1.0, -1.0, 0.5])).square().mean().backward()
            optimizer.step()
            outputs.append(out.detach())
    return outputs


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        pytest.param(kind, stop, marks=[] if kind == "adam" or stop == 7 else pytest.mark.slow)
        for kind in OPTIMISERS
        for stop in (1, 2, 6, 7, 9, 11)
    ],
)
def test_continued_training_is_the_same_bit_for_bit(tmp_path: Path, kind: str, stop: int) -> None:
    straight = _fresh()
    optimizer = OPTIMISERS[kind](straight)
    straight.attach(optimizer)
    _train(straight, optimizer, stop)
    straight.save(tmp_path / "m.safetensors")
    expected = _train(straight, optimizer, 14 - stop, stop)

    resumed = _fresh()
    optimizer = OPTIMISERS[kind](resumed)
    resumed.attach(optimizer)
    resumed.load(tmp_path / "m.safetensors")
    continued = _train(resumed, optimizer, 14 - stop, stop)
    assert all(torch.equal(one, other) for one, other in zip(expected, continued, strict=True))
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    for slot in straight.slots:
        assert straight.slots[slot].snapshot() == resumed.slots[slot].snapshot()


@pytest.mark.parametrize("itself", [True, False])
def test_a_group_that_was_added_behind_a_seeds_comes_back(tmp_path: Path, itself: bool) -> None:
    """Layers are unfrozen one after another, so that the host's groups stand around those of seeds."""

    def attached() -> tuple[GrowingModel, SGD]:
        model = _fresh()
        late = set(model.host.get_submodule("blocks.3").parameters())
        optimizer = SGD([p for p in model.parameters() if p not in late], lr=0.1, momentum=0.9)
        model.attach(optimizer)
        return model, optimizer

    def unfreeze(model: GrowingModel, optimizer: SGD) -> None:
        late = list(model.host.get_submodule("blocks.3").parameters())
        optimizer.add_param_group({"params": late, "lr": 0.01})

    straight, optimizer = attached()
    _train(straight, optimizer, 8)
    unfreeze(straight, optimizer)
    _train(straight, optimizer, 1, 8)
    path, sizes = tmp_path / "m.safetensors", [len(group["params"]) for group in optimizer.param_groups]
    assert len(sizes) == 3  # the host's, a seed's, and the late layer's
    straight.save(path)
    expected = _train(straight, optimizer, 3, 9)
    resumed, theirs = (straight, optimizer) if itself else attached()
    if not itself:
        with pytest.raises(ModelFileError, match="one that was added while it trained has to be added here"):
            resumed.load(path)
        unfreeze(resumed, theirs)
    resumed.load(path)
    assert [len(group["params"]) for group in theirs.param_groups] == sizes
    assert theirs.param_groups[2]["lr"] == 0.01
    continued = _train(resumed, theirs, 3, 9)
    assert all(torch.equal(one, other) for one, other in zip(expected, continued, strict=True))


def test_seeds_keep_their_rate_over_a_save_whatever_it_would_be_by_default() -> None:
    """Older files do not name it; then it was three times, on frozen hosts too."""

    def frozen() -> tuple[GrowingModel, SGD]:
        model = tiny_model(Layout.FLAT, 8)
        for part in ("first", "middle"):
            model.host.get_submodule(part).requires_grad_(False)
        return model, SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    model, optimizer = frozen()
    model.attach(optimizer, seed_lr_multiplier=2.0)
    grow_until(model, SLOT, Stage.HOLDING, "mlp")
    record, tensors = describe(model)
    assert record.optimizer is not None
    older = record.optimizer.model_dump(exclude={"seed_lr_multiplier"})
    for saved, rate in (
        (record, 0.2),
        (record.model_copy(update={"optimizer": OptimizerRecord.model_validate(older)}), 0.3),
    ):
        again, theirs = frozen()
        again.attach(theirs)
        reinstate(again, saved, tensors)
        theirs.step()
        assert theirs.param_groups[-1]["lr"] == pytest.approx(rate)


def test_outputs_and_settings_without_an_optimiser(tmp_path: Path) -> None:
    model = _fresh(rules=GrowthRules(max_live_seeds=3), seed=7, isolation_penalty=2.0)
    optimizer = Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    _train(model, optimizer, 8)
    model.detach()
    model.save(tmp_path / "m.safetensors")
    again = _fresh()
    again.load(tmp_path / "m.safetensors")
    assert torch.equal(_call(again.eval()), _call(model.eval()))
    assert (again.growth_seed, again.isolation_penalty) == (7, 2.0)
    assert again.slots["blocks.0"].life.rules.max_live_seeds == 3
    assert not any(p.requires_grad for p in again.slots["blocks.1"].seed.parameters())  # type: ignore[union-attr]
    with pytest.raises(ModelFileError, match="holds no optimizer state"):
        _attached().load(tmp_path / "m.safetensors")


def _call(model: GrowingModel) -> Tensor:
    out = model(X)
    assert isinstance(out, Tensor)
    return out


def _attached() -> GrowingModel:
    model = _fresh()
    model.attach(Adam(model.parameters(), lr=0.01))
    return model


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    tokens = torch.arange(14).view(2, 7) % 5
    model, again = (esper.wrap(GPT(5, 7), ["blocks.*"], tokens, causal=True) for _ in range(2))
    model.germinate("blocks.0", "attention")
    model.save(tmp_path / "m.safetensors")
    again.load(tmp_path / "m.safetensors")
    assert torch.equal(model(tokens), again(tokens))
    assert isinstance(again.host, GPT)
    assert again.host.head.weight is again.host.token_embedding.weight


def test_schedules_go_on_after_loading(tmp_path: Path) -> None:
    straight, resumed = _fresh(), _fresh()
    runs = []
    for model in (straight, resumed):
        optimizer = Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        model.attach(optimizer, scheduler)
        runs.append((optimizer, scheduler))
    _train(straight, runs[0][0], 3)
    for _ in range(3):
        runs[0][1].step()
    straight.save(tmp_path / "m.safetensors")
    resumed.load(tmp_path / "m.safetensors")
    runs[1][1].load_state_dict(runs[0][1].state_dict())
    for optimizer, scheduler in runs:
        optimizer.step()
        scheduler.step()
    assert runs[0][1].get_last_lr() == runs[1][1].get_last_lr()
    assert [g["lr"] for g in runs[0][0].param_groups] == [g["lr"] for g in runs[1][0].param_groups]


# Refusals


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "m.safetensors"
    model = _attached()
    assert model.care is not None
    _train(model, model.care.optimizer, 8)
    model.save(path)
    return path


@pytest.fixture
def saved(trained: Path, tmp_path: Path) -> Path:
    """A file of one's own to spoil."""
    return Path(shutil.copy(trained, tmp_path))


def _rewrite(path: Path, change: Callable[[dict[str, object], dict[str, Tensor]], None]) -> None:
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()["esper"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(document, tensors)
    save_file(tensors, path, metadata={"esper": json.dumps(document)})


def _refused(path: Path, complaint: str, model: GrowingModel | None = None) -> None:
    """The file is refused and the model is as before."""
    model = model or _attached()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelFileError, match=complaint):
        model.load(path)
    assert set(before) == set(model.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(slot.stage is Stage.DORMANT for slot in model.slots.values())
    assert model.care is not None
    assert len(model.care.optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d, _: d.update(version=1), r"version 1; this Esper reads version 2"),
        (lambda d, _: d.pop("version"), r"version None"),
        (lambda d, _: d.update(surprise=1), r"surprise: Extra inputs are not permitted"),
        (lambda d, _: d["slots"]["blocks.0"].update(stage=9), r"slots.blocks.0.stage: .*found 9"),
        (lambda d, _: d["slots"]["blocks.0"].update(alpha="much"), r"slots.blocks.0.alpha"),
        (
            lambda d, _: d["slots"]["blocks.0"].update(blueprint="evil"),
            r"'blocks.0' holds blueprint 'evil', not",
        ),
        (
            lambda d, _: d["slots"]["blocks.0"].update(stage=0),
            r"slots.blocks.0: Value error, a seed is there exactly",
        ),
        (lambda d, _: d["slots"].pop("blocks.3"), r"slot layouts differ"),
        (
            lambda d, _: d["slots"]["blocks.0"].update(age=-5),
            r"slots.blocks.0.age: .*greater than or equal to 0",
        ),
        (
            lambda d, _: d["slots"]["blocks.0"].update(alpha=7),
            r"slots.blocks.0.alpha: .*less than or equal to 1",
        ),
        (
            lambda d, _: d["slots"]["blocks.0"].update(births=0),
            r"a seed has a style, an alpha target and a birth",
        ),
        (lambda d, _: d["slots"]["blocks.1"].update(ramp=None), r"a ramp belongs to BLENDING"),
        (lambda d, _: d["slots"]["blocks.0"].update(fading=True), r"only a BLENDING seed fades"),
        (
            lambda d, _: d["slots"]["blocks.3"].update(alpha=1.0),
            r"alpha is 0 before blending and without a seed",
        ),
        (lambda d, _: d["rules"].update(max_live_seeds=1), r"more seeds are live than max_live_seeds=1"),
        (lambda d, _: d.update(version=True), r"version True"),
        (lambda d, _: d.update(isolation_penalty=-1.0), r"isolation_penalty"),
        (
            lambda d, _: d["optimizer"]["groups"].append({"parameters": [], "options": {}}),
            r"groups do not hold",
        ),
        (lambda d, _: d["optimizer"]["groups"][1]["parameters"].append("grown.x.y"), r"groups do not hold"),
        (lambda d, _: d["optimizer"]["groups"].pop(), r"groups do not hold"),
        (
            lambda d, _: d["optimizer"]["groups"][0]["options"].update(betas=None),
            r"option betas is None, expected one like",
        ),
        (
            lambda d, _: d["optimizer"]["groups"][0]["options"].update(lr=-1),
            r"option lr is -1, expected one like",
        ),
        (
            lambda d, _: d["optimizer"]["groups"][0]["options"].pop("lr"),
            r"options of the optimizer's group 0 differ: lr",
        ),
        (lambda d, _: d["optimizer"]["groups"][0]["options"].update(params=[]), r"group 0 differ: params"),
        (lambda d, _: d["optimizer"].update(scalars={}), r"names parameters that are not the model's"),
        (lambda _, t: t.pop("optimizer/host.head.bias/exp_avg"), r"head.bias/exp_avg is missing"),
        (lambda _, t: t.update({"optimizer/host.head.bias/junk": torch.ones(3)}), r"junk does not belong"),
        (lambda _, t: t.update({"optimizer/host.head.bias/exp_avg": torch.ones(4)}), r"exp_avg is \(4,\)"),
        (lambda d, _: d["rules"].update(min_prune_age=-1), r"min_prune_age must be an integer >= 0"),
        (lambda d, _: d["rules"].update(bonus=1), r"bonus"),
        (lambda d, _: d["optimizer"].update(kind="SGD"), r"holds SGD state, the attached optimizer is Adam"),
        (lambda _, t: t.pop("model/host.head.weight"), r"host.head.weight is missing"),
        (lambda _, t: t.update({"model/more": torch.ones(1)}), r"more does not belong to this model"),
        (
            lambda _, t: t.update({"model/host.head.bias": torch.ones(4)}),
            r"head.bias is \(4,\) torch.float32, the",
        ),
        (
            lambda _, t: t.update({"model/host.head.bias": torch.ones(3).half()}),
            r"head.bias is \(3,\) torch.float16",
        ),
    ],
)
def test_files_that_do_not_fit(saved: Path, change: Callable[..., None], complaint: str) -> None:
    _rewrite(saved, change)
    _refused(saved, complaint)


def test_a_broken_epoch_stays_broken_over_a_save(tmp_path: Path) -> None:
    """What `.grad` showed is remembered, but it is no report: a seed that breaks afterwards is still noticed."""
    model = _attached()
    assert model.care is not None
    _train(model, model.care.optimizer, 5)
    model.save(tmp_path / "m.safetensors")
    again = _attached()
    again.load(tmp_path / "m.safetensors")
    assert again.slots["blocks.0"].gradients_finite() is True
    again.slots["blocks.0"].non_finite[0] = True
    assert again.slots["blocks.0"].gradients_finite() is False
    again.save(tmp_path / "m.safetensors")
    third = _attached()
    third.load(tmp_path / "m.safetensors")
    assert third.slots["blocks.0"].broken()


def test_loading_in_inference_mode_gives_trainable_seeds(saved: Path) -> None:
    model = _fresh()
    with torch.inference_mode():
        model.load(saved)
    _call(model.train()).sum().backward()


def test_expanded_buffers_are_refused_when_saving(tmp_path: Path) -> None:
    host = nn.Sequential(nn.Linear(3, 3))
    host.register_buffer("k", torch.ones(1).expand(6))
    with pytest.raises(ValueError, match=r"host.k is an expanded tensor"):
        esper.wrap(host, ["0"], torch.randn(2, 3)).save(tmp_path / "m.safetensors")


def test_files_can_be_read_by_whoever_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        _fresh().save(tmp_path / "m.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "m.safetensors").stat().st_mode & 0o777 == 0o644


def test_damaged_and_foreign_files(saved: Path) -> None:
    whole = saved.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:7], b"", b"\xff" * 64):
        saved.write_bytes(damaged)
        _refused(saved, "is not a whole safetensors file")
    save_file({"a": torch.ones(1)}, saved)
    _refused(saved, "was not written by Esper")
    save_file({"a": torch.ones(1)}, saved, metadata={"esper": "{not json"})
    _refused(saved, "damaged metadata")
    save_file({"a": torch.ones(1)}, saved, metadata={"esper": "[1]"})
    _refused(saved, "version None")
    with pytest.raises(FileNotFoundError):
        _attached().load(saved.parent / "nowhere.safetensors")


def test_a_pickle_is_refused_without_running_it(saved: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    saved.write_bytes(pickle.dumps(Evil()))
    _refused(saved, "is not a whole safetensors file")
    torch.save({"state": Evil()}, saved)
    _refused(saved, "is not a whole safetensors file")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("epochs", [2, 11])  # with two live seeds, and with a fossil and a fading one
def test_a_grown_model_takes_the_seeds_of_the_file_for_its_own(saved: Path, epochs: int) -> None:
    fresh, grown = _attached(), _attached()
    assert fresh.care is not None
    assert grown.care is not None
    _train(grown, grown.care.optimizer, epochs)
    for model in (fresh, grown):
        model.load(saved)
    assert list(grown.state_dict()) == list(fresh.state_dict())
    assert [len(group["params"]) for group in grown.care.optimizer.param_groups] == [
        len(group["params"]) for group in fresh.care.optimizer.param_groups
    ]
    ours, theirs = (_train(model, model.care.optimizer, 4, 8) for model in (grown, fresh) if model.care)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_file_that_does_not_fit_leaves_a_grown_model_as_it_was(saved: Path) -> None:
    model = _attached()
    assert model.care is not None
    _train(model, model.care.optimizer, 2)
    before, groups = list(model.state_dict()), len(model.care.optimizer.param_groups)
    _rewrite(saved, lambda _, tensors: tensors.update({"model/more": torch.ones(1)}))
    with pytest.raises(ModelFileError, match="more does not belong to this model"):
        model.load(saved)
    assert (list(model.state_dict()), len(model.care.optimizer.param_groups)) == (before, groups)


def test_another_host_is_refused(saved: Path) -> None:
    other = _fresh(norm="group")
    with pytest.raises(ModelFileError, match=r"is missing|does not belong"):
        other.load(saved)


def test_a_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("esper.kasmina.persistence.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        _fresh().save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
