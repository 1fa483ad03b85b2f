"""Seeds of low rank merged into weights: as a host of its own class, and as files that PEFT reads."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import esper
from esper.kasmina.adapted import export_peft, parallel_form
from esper.kasmina.adapters import save_adapter
from esper.leyline import Stage, Style
from frozen import Base, frozen_base, grown, pictures
from tiny import grow_until

LOW_RANK = {"stem": "lora", "deep": "lora", "first": "lora_large", "second": "lora"}


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max())))


@torch.no_grad()
def test_the_parallel_form_has_the_answer_by_hand() -> None:
    layer = nn.Linear(1, 2)
    layer.weight.copy_(torch.tensor([[2.0], [3.0]]))
    layer.bias.copy_(torch.tensor([1.0, 0.0]))
    model = esper.wrap(nn.Sequential(layer, nn.Tanh()), ["0"], torch.randn(4, 1))
    grow_until(model, "0", Stage.HOLDING, "lora", alpha_target=0.5)
    seed = model.slots["0"].seed
    assert seed is not None
    assert isinstance(seed.body, nn.Sequential)
    first, second = (part.weight for part in seed.body)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    first.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    second.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    seed.scale.copy_(torch.tensor([4.0, 6.0]))
    form = parallel_form(layer, seed)
    # h = (2x + 1, 3x), U h = (5x + 1, 0), and alpha s V U h = 0.5 * (4 (5x + 1), 0)
    assert form.down.tolist() == [[5.0], [0.0]]
    assert form.up.tolist() == [[2.0, 0.0], [0.0, 3.0]]
    assert form.bias is not None
    assert form.bias.tolist() == [2.0, 0.0]


@torch.no_grad()
def test_a_merged_host_is_of_its_own_class_and_computes_the_same() -> None:
    model, x = grown(frozen_base(), LOW_RANK), pictures()
    expected = model(x)
    merged = model.merge()
    assert type(merged) is Base
    assert merged.state_dict().keys() == Base().state_dict().keys()
    assert not any(part._forward_hooks for part in merged.modules())
    assert close(merged(x), expected)
    assert not close(frozen_base()(x), expected)
    assert torch.equal(model(x), expected)  # the growing model goes on as it was


@torch.no_grad()
def test_a_loaded_adapter_merges(tmp_path: Path) -> None:
    source, x = grown(frozen_base(), LOW_RANK), pictures()
    save_adapter(source, tmp_path)
    model = esper.load_adapter(frozen_base(), tmp_path)
    merged = model.merge()
    assert type(merged) is Base
    assert not any(part._forward_hooks for part in merged.modules())
    assert close(merged(x), source(x))
    assert torch.equal(model(x), source(x))


def _hooked() -> Base:
    base = frozen_base()
    base.first.register_forward_hook(lambda _, __, output: output * 2)
    return base


def _tied() -> Base:
    base = frozen_base()
    base.add_module("twin", nn.Linear(7, 11))
    base.twin.weight = base.first.weight  # type: ignore[union-attr]
    return base


class _Special(nn.Linear):
    pass


def _subclassed() -> Base:
    base = frozen_base()
    base.first = _Special(7, 11).requires_grad_(False)
    return base


def _grouped() -> Base:
    base = frozen_base()
    base.deep = nn.Conv2d(5, 10, 3, groups=5)
    base.first = nn.Linear(10, 11).requires_grad_(False)
    return base


@pytest.mark.parametrize(
    ("base", "kinds", "message"),
    [
        (frozen_base, {"norm": "lora"}, "at 'norm' it grows behind a BatchNorm2d, not a Linear"),
        (frozen_base, {"first": "mlp", "stem": "lora"}, "at 'first' a mlp is not two linear maps"),
        (frozen_base, {"first": "widen"}, "at 'first' a widen is not two linear maps"),
        (_hooked, {"first": "lora"}, "at 'first' hooks of others"),
        (_tied, {"first": "lora"}, "at 'first' the weight of its layer is shared"),
        (_subclassed, {"first": "lora"}, "grows behind a _Special"),
        (_grouped, {"deep": "lora"}, "grows behind a Conv2d, not a Linear or a convolution without groups"),
    ],
)
def test_what_does_not_merge_is_refused_by_name(base: Any, kinds: dict[str, str], message: str) -> None:
    with pytest.raises(esper.AdapterError, match=message):
        grown(base(), kinds).merge()


def test_a_gate_does_not_merge() -> None:
    model = esper.wrap(frozen_base(), ["first"], pictures(2))
    grow_until(model, "first", Stage.HOLDING, "lora", style=Style.GATE)
    with pytest.raises(esper.AdapterError, match="at 'first' its composition is gate"):
        model.merge()


# PEFT


@pytest.mark.filterwarnings("ignore")  # PEFT's own
@torch.no_grad()
def test_peft_reads_what_we_write(tmp_path: Path) -> None:
    model, x = grown(frozen_base(), LOW_RANK), pictures()
    with torch.no_grad():
        model.host.norm.running_mean.add_(0.3)  # type: ignore[operator,union-attr]
    export_peft(model, tmp_path, base_id="a base")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "a base"
    assert (config["r"], config["lora_alpha"]) == (4, 4)
    assert config["rank_pattern"] == config["alpha_pattern"] == {"^first": 11}
    read = peft.PeftModel.from_pretrained(frozen_base(), str(tmp_path)).eval()
    assert (read(x) - model(x)).abs().max() < 1e-5 * float(model(x).abs().max())
    assert not close(frozen_base()(x), model(x))


class _Nested(nn.Module):
    """Names that end alike: "0" and "in.0", of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("0", nn.Linear(5, 7))
        self.add_module("in", nn.Sequential(nn.Linear(7, 7)))
        self.top = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top(self.get_submodule("in")(torch.tanh(self.get_submodule("0")(x))))
        return out


def _nested() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return _Nested().requires_grad_(False).eval()


@pytest.mark.filterwarnings("ignore")  # PEFT's own
@torch.no_grad()
def test_names_that_end_alike_are_told_apart(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    for slot, kind in (("0", "lora"), ("in.0", "lora_large")):
        model = esper.wrap(_nested(), ["0", "in.0"], x)
        grow_until(model, slot, Stage.HOLDING, kind)
        model.slots[slot].seed.scale.fill_(0.8)  # type: ignore[union-attr]
        export_peft(model, tmp_path / kind)
        read = peft.PeftModel.from_pretrained(_nested(), str(tmp_path / kind)).eval()
        assert close(read(x), model(x))
        assert not close(_nested()(x), model(x))


def test_what_peft_cannot_name_is_refused(tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    net = _nested()
    net.get_submodule("0").requires_grad_(True)
    model = esper.wrap(net, ["0", "in.0"], x)
    with pytest.raises(esper.AdapterError, match="nothing has grown that PEFT could read"):
        export_peft(model, tmp_path)
    grow_until(model, "in.0", Stage.HOLDING, "lora")
    with pytest.raises(esper.AdapterError, match=r"in\.0 ends as the trained 0 does"):
        export_peft(model, tmp_path)
    grow_until(model, "0", Stage.HOLDING, "lora")
    with pytest.raises(esper.AdapterError, match="0 is trained and 0 has a seed"):
        export_peft(model, tmp_path)
    assert not list(tmp_path.iterdir())


# Hugging Face


@pytest.mark.filterwarnings("ignore")  # of transformers, and of PEFT
@torch.no_grad()
def test_a_grown_hugging_face_model_saves_and_loads_in_its_own_class(tmp_path: Path) -> None:
    kind: Any = transformers.BertForSequenceClassification
    make: Any = transformers.BertConfig
    config = make(
        vocab_size=31,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        num_labels=3,
    )
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path / "base")

    def base() -> Any:
        found = kind.from_pretrained(tmp_path / "base").eval()
        for name, parameter in found.named_parameters():
            parameter.requires_grad_(name.startswith("classifier"))
        return found

    tokens = {"input_ids": torch.arange(14).view(2, 7)}
    slots = ["bert.encoder.layer.*.intermediate.dense", "bert.encoder.layer.*.attention.self.query"]
    model = esper.wrap(base(), slots, tokens, rules=esper.GrowthRules(max_live_seeds=4))
    for index, slot in enumerate(model.slots):
        grow_until(model, slot, Stage.HOLDING, ("lora", "lora_large")[index % 2])
        model.slots[slot].seed.scale.fill_(0.9)  # type: ignore[union-attr]
    model.host.classifier.bias.add_(torch.tensor([1.0, -1.0, 0.5]))  # type: ignore[operator,union-attr]
    expected = model.eval()(**tokens).logits
    alone = base()(**tokens).logits
    assert not close(alone, expected)

    merged: Any = model.merge()
    merged.save_pretrained(tmp_path / "merged")
    again = kind.from_pretrained(tmp_path / "merged").eval()
    assert close(again(**tokens).logits, expected)

    save_adapter(model, tmp_path / "ours")
    loaded: Any = esper.load_adapter(base(), tmp_path / "ours")
    assert torch.equal(loaded(**tokens).logits, expected)

    export_peft(model, tmp_path / "peft", base_id=str(tmp_path / "base"))
    read = peft.PeftModel.from_pretrained(base(), str(tmp_path / "peft")).eval()
    assert close(read(**tokens).logits, expected)
