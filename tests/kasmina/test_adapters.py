"""Adapters as files: what they hold, that the base with one computes what was grown, and what is refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina.adapters import CONFIG, TENSORS, save_adapter
from esper.kasmina.seed import Seed
from frozen import Base, frozen_base, grown, pictures

KINDS = {"stem": "conv_small", "first": "mlp", "second": "widen"}


@pytest.fixture(name="noise")
def _noise(tmp_path: Path) -> Path:
    save_adapter(grown(frozen_base(), KINDS), tmp_path / "noise", base_id="a base", card={"epochs": 3})
    return tmp_path / "noise"


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _require_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_the_base_with_an_adapter_computes_what_was_grown(noise: Path) -> None:
    x, expected = pictures(), grown(frozen_base(), KINDS)(pictures())
    base = frozen_base()
    alone = base(x)
    model = esper.load_adapter(base, noise)
    assert torch.equal(model(x), expected)
    assert not torch.allclose(expected, alone, atol=0.1)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    assert model.names == ("noise",)
    assert model.cards["noise"] == {"epochs": 3}


@torch.no_grad()
def test_a_file_holds_what_was_added_alone(noise: Path) -> None:
    from safetensors.torch import load_file

    names = set(load_file(noise / TENSORS))
    added = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "head.weight", "head.bias"}
    assert {name for name in names if name.startswith("host/")} == {f"host/{name}" for name in added}
    assert {name.split("/")[1] for name in names if name.startswith("seed/")} == set(KINDS)
    config = json.loads((noise / CONFIG).read_text())
    assert config["base"]["id"] == "a base"
    assert set(config["base"]["tensors"]) == set(frozen_base().state_dict()) - added


@torch.no_grad()
def test_adapters_side_by_side_are_switched_and_come_off(tmp_path: Path, noise: Path) -> None:
    other = grown(frozen_base(), {"deep": "lora", "first": "norm"}, seed=3, alpha=1.0)
    save_adapter(other, tmp_path / "blur")
    base, x = frozen_base(), pictures()
    state, alone = _state(base), base(x)
    first = grown(frozen_base(), KINDS)(x)
    model = esper.load_adapter(base, noise)
    assert esper.load_adapter(model, tmp_path / "blur") is model
    assert model.active == "blur"
    assert torch.equal(model(x), other(x))
    model.switch("noise")
    assert torch.equal(model(x), first)
    base.head.bias.add_(1.0)  # what is trained in an adapter stays with it
    trained = model(x)
    model.switch(None)
    assert torch.equal(model(x), alone)
    model.switch("noise")
    assert torch.equal(model(x), trained)
    with pytest.raises(esper.AdapterError, match=r"no adapter is named 'fog'; loaded: noise, blur"):
        model.switch("fog")
    with pytest.raises(esper.AdapterError, match=r"named 'blur' is loaded already"):
        esper.load_adapter(model, tmp_path / "blur")
    assert esper.load_adapter(model, tmp_path / "blur", name="blur again").names[-1] == "blur again"
    assert model.unload() is base
    _require_state(base, state)
    assert torch.equal(base(x), alone)
    assert not any(part._forward_hooks for part in base.modules())


def test_what_an_adapter_replaces_is_kept_in_the_order_of_its_names(noise: Path) -> None:
    """In the order of a set each process had its own, and loaded what another saved into the wrong places."""
    model = esper.load_adapter(frozen_base(), noise)
    base, shown = frozen_base().state_dict(), model.state_dict()
    replaced = (
        "head.bias",
        "head.weight",
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
    )
    for index, name in enumerate(replaced):
        assert torch.equal(shown[f"held.0.tensor_{index}"], base[name])


def test_an_adapter_trains_on(noise: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = esper.load_adapter(frozen_base(), noise)
    model(pictures()).square().sum().backward()
    held = list(model.held.parameters())
    assert all(parameter.grad is not None for parameter in held)
    assert all(p.grad is None for p in model.base.parameters() if not p.requires_grad)
    model.print_trainable_parameters()
    trained = sum(p.numel() for p in held) + 13 * 3 + 3
    total = sum(p.numel() for p in model.parameters())
    assert capsys.readouterr().out == (
        f"trainable params: {trained:,} || all params: {total:,} || trainable%: {100 * trained / total:.4f}\n"
    )


def test_an_adapter_is_part_of_the_model_and_what_breaks_in_it_shows(noise: Path) -> None:
    model = esper.load_adapter(frozen_base(), noise)
    h = torch.full((2, 5, 9, 9), float("inf"))
    seeds = [part for part in model.held.modules() if isinstance(part, Seed)]
    assert len(seeds) == len(KINDS)
    assert all(seed.part_of_host for seed in seeds)
    (at_stem,) = (seed for seed in seeds if seed.blueprint_name == KINDS["stem"])
    delta, finite = at_stem(h, (), {})
    assert finite is None  # nobody asked where it is
    assert not delta.isfinite().any()


class _Renamed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.neck = self.first
        del self.first


def _changed(change: Callable[[Base], object]) -> Base:
    base = frozen_base()
    with torch.no_grad():
        change(base)
    return base


OTHERS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "weights": (lambda: frozen_base(seed=1), r"stem.weight has other values"),
    "one value": (
        lambda: _changed(lambda base: base.deep.weight[0, 0, 0].add_(1e-6)),
        r"deep.weight has other",
    ),
    "width": (
        lambda: frozen_base(width=6),
        r"stem.weight is float32 \(5, 2, 3, 3\) there and float32 \(6, 2, 3, 3\) in this model",
    ),
    "classes": (
        lambda: _changed(lambda base: setattr(base, "head", nn.Linear(13, 4))),
        r"head.weight is float32 \(3, 13\) there and float32 \(4, 13\)",
    ),
    "names": (_Renamed, r"this model has no first.bias"),
    "half": (lambda: frozen_base().half(), r"stem.weight is float32 \(5, 2, 3, 3\) there and float16"),
    "more": (
        lambda: _changed(lambda base: base.add_module("tail", nn.Linear(2, 2))),
        r"it knows no tail.bias",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_base_is_refused_by_name_and_untouched(other: str, noise: Path) -> None:
    make, message = OTHERS[other]
    base = make()
    state = _state(base)
    with pytest.raises(
        esper.AdapterError, match=rf"noise is an adapter of another base \(a base\): .*{message}"
    ):
        esper.load_adapter(base, noise)
    _require_state(base, state)
    assert not any(part._forward_hooks for part in base.modules())


@torch.no_grad()
def test_a_refused_adapter_leaves_the_one_at_work(tmp_path: Path, noise: Path) -> None:
    save_adapter(grown(frozen_base(seed=1), {"deep": "lora"}), tmp_path / "blur")
    model, x = esper.load_adapter(frozen_base(), noise), pictures()
    expected = model(x)
    with pytest.raises(esper.AdapterError, match="blur is an adapter of another base"):
        esper.load_adapter(model, tmp_path / "blur")
    assert model.active == "noise"
    assert torch.equal(model(x), expected)


def _edit(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        change(config)
        (folder / CONFIG).write_text(json.dumps(config))

    return edit


def _flip(folder: Path) -> None:
    content = bytearray((folder / TENSORS).read_bytes())
    content[-3] ^= 1
    (folder / TENSORS).write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (_flip, r"adapter.safetensors is damaged: its sha256"),
    "cut": (
        lambda f: (f / TENSORS).write_bytes((f / TENSORS).read_bytes()[:-9]),
        r"adapter.safetensors is damaged",
    ),
    "gone": (
        lambda f: (f / TENSORS).unlink(),
        r"adapter.safetensors cannot be read: No such file.*that save_adapter wrote",
    ),
    "no config": (lambda f: (f / CONFIG).unlink(), r"adapter.json cannot be read: No such file"),
    "no json": (lambda f: (f / CONFIG).write_text("{"), r"adapter.json is damaged: "),
    "a list": (
        lambda f: (f / CONFIG).write_text("[]"),
        r"adapter.json has version None; this Esper reads version 1",
    ),
    "newer": (
        _edit(lambda c: c.update(version=2)),
        r"adapter.json has version 2; this Esper reads version 1",
    ),
    "a field": (_edit(lambda c: c["slots"]["stem"].update(alpha=2.0)), r"slots.stem.alpha: .*found 2.0"),
    "a digest": (_edit(lambda c: c["base"]["tensors"].popitem()), r"base.sha256 is not that of base.tensors"),
    "a kind": (
        _edit(lambda c: c["slots"]["stem"].update(blueprint="mine")),
        r"slot 'stem' holds a 'mine': no blue",
    ),
    "another kind": (
        _edit(lambda c: c["slots"]["stem"].update(blueprint="lora")),
        r"seed/stem/body.\S+ does not fit the seeds",
    ),
    "another width": (
        _edit(lambda c: c["slots"]["stem"].update(channels=7)),
        r"slot 'stem': .*its blueprint makes",
    ),
    "no slot": (_edit(lambda c: c["slots"].update(nowhere=c["slots"]["stem"])), r"has no submodule nowhere"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_adapter_is_refused_by_name_and_the_model_untouched(damage: str, noise: Path) -> None:
    change, message = DAMAGE[damage]
    change(noise)
    base = frozen_base()
    state = _state(base)
    with pytest.raises(esper.AdapterError, match=message):
        esper.load_adapter(base, noise)
    _require_state(base, state)
    assert not any(part._forward_hooks for part in base.modules())


def test_what_cannot_be_an_adapter_is_refused(tmp_path: Path, noise: Path) -> None:
    model = grown(frozen_base(), KINDS)
    with pytest.raises(esper.AdapterError, match="base grows"):
        esper.load_adapter(model, noise)
    with pytest.raises(esper.AdapterError, match="base grows"):
        esper.load_adapter(copy.deepcopy(model.host), noise)
    with torch.no_grad():
        model.slots["stem"].seed.scale.fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(esper.AdapterError, match="seed/stem/scale is not finite"):
        save_adapter(model, tmp_path / "broken")
    for parameter in model.bare_parameters():
        parameter.requires_grad_(True)
    with pytest.raises(esper.AdapterError, match=r"none of the host's 693 parameters is frozen"):
        save_adapter(model, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


@torch.no_grad()
def test_a_seed_in_training_is_left_out(tmp_path: Path) -> None:
    model = grown(frozen_base(), {"stem": "lora", "deep": "lora"})
    model.remove("deep")
    for _ in range(10):
        model.tick()
    model.germinate("deep", "conv_small")
    save_adapter(model, tmp_path)
    assert list(json.loads((tmp_path / CONFIG).read_text())["slots"]) == ["stem"]
    assert torch.equal(esper.load_adapter(frozen_base(), tmp_path)(pictures()), model(pictures()))


@torch.no_grad()
def test_an_adapter_without_a_head_works_with_that_of_the_base(tmp_path: Path, noise: Path) -> None:
    base, x = frozen_base(), pictures()
    base.head.requires_grad_(False)
    headless = grown(base, {"deep": "lora"}, seed=3)
    save_adapter(headless, tmp_path / "headless")
    model = esper.load_adapter(frozen_base(), noise)
    esper.load_adapter(model, tmp_path / "headless")
    assert torch.equal(model(x), headless(x))
