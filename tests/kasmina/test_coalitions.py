"""SPEC F4, the model's side: coalitions stacked on the batch equal separate passes."""

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, GrowthRules, forward_coalitions, standard_coalitions
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import Stage
from tiny import grow_until


def _grown(host: nn.Module, x: Tensor, blueprint: str, causal: bool = False) -> GrowingModel:
    """Four slots: HOLDING, BLENDING, TRAINING, FOSSILIZED; all with something to say."""
    model = esper.wrap(host, ["blocks.*"], x, causal=causal, rules=GrowthRules(max_live_seeds=3))
    names = list(model.slots)
    for name, stage in zip(
        names, (Stage.FOSSILIZED, Stage.HOLDING, Stage.BLENDING, Stage.TRAINING), strict=True
    ):
        grow_until(model, name, stage, blueprint, alpha_target=0.7)
    generator = torch.Generator().manual_seed(3)
    model.report(names[2], gradients_finite=True)
    model.slots[names[2]].life.alpha = 0.3
    for slot in model.slots.values():
        assert slot.seed is not None
        slot.sync_seed()
        with torch.no_grad():
            slot.seed.scale.copy_(torch.randn(slot.seed.scale.shape, generator=generator))
    return model.eval()


def _cases() -> list[tuple[GrowingModel, Tensor]]:
    with torch.random.fork_rng():  # hosts draw their weights from the global generator
        torch.manual_seed(0)
        return _drawn_cases()


def _drawn_cases() -> list[tuple[GrowingModel, Tensor]]:
    torch_seed = torch.Generator().manual_seed(0)
    flat = torch.randn(5, 7, generator=torch_seed)
    series = torch.randn(5, 2, 16, generator=torch_seed)
    image = torch.randn(5, 2, 8, 8, generator=torch_seed)
    tokens = torch.randint(11, (5, 7), generator=torch_seed)
    pools, widths = (1, 2, 1, 2), (4, 4, 6, 6)
    return [
        (_grown(MLP(7, 3, (8, 8, 8, 8)), flat, "mlp"), flat),
        (_grown(ConvNet(2, 3, dims=1, widths=widths, pools=pools), series, "conv_small"), series),
        (_grown(ConvNet(2, 3, dims=2, widths=widths, pools=pools, norm="batch"), image, "attention"), image),
        (_grown(GPT(11, 7, layers=4, width=16), tokens, "attention", causal=True), tokens),
    ]


@pytest.mark.parametrize("chunk", [None, 1, 2, 100])
@pytest.mark.parametrize("case", range(4), ids=["mlp", "series", "image", "gpt"])
@torch.no_grad()
def test_stacked_equal_separate(case: int, chunk: int | None) -> None:
    model, x = _cases()[case]
    coalitions = standard_coalitions(model)
    stacked = forward_coalitions(model, x, coalitions, chunk=chunk)
    assert stacked.shape[:2] == (len(coalitions), 5)
    for coalition, together in zip(coalitions, stacked, strict=True):
        alone = _separately(model, x, coalition)
        assert torch.allclose(together, alone, atol=1e-6, rtol=1e-6)
    assert torch.allclose(stacked[0], _call(model, x), atol=1e-6)
    flat = stacked.flatten(1)
    assert torch.cdist(flat, flat).fill_diagonal_(1.0).min() > 1e-4, "every coalition should differ"


def _call(model: GrowingModel, x: Tensor) -> Tensor:
    out = model(x)
    assert isinstance(out, Tensor)
    return out


def _separately(model: GrowingModel, x: Tensor, on: frozenset[str]) -> Tensor:
    """One pass of one coalition, by taking the other seeds away for real."""
    removed = {}
    for name, slot in model.slots.items():
        if slot.stage.is_live and name not in on:
            removed[name], slot.seed = slot.seed, None
    probes = {name: torch.full((len(x),), 0.7) for name in on if model.slots[name].stage is Stage.TRAINING}
    with model.override_alpha(probes):
        out = _call(model, x)
    for name, seed in removed.items():
        model.slots[name].seed = seed
    return out


def test_the_standard_coalitions() -> None:
    """The model as it is, each blended seed off, each TRAINING seed on, and none."""
    model, _ = _cases()[0]
    blended = {"blocks.1", "blocks.2"}
    assert [set(c) for c in standard_coalitions(model)] == [
        blended,
        {"blocks.2"},
        {"blocks.1"},
        blended | {"blocks.3"},
        set(),
    ]


def test_coalitions_are_not_repeated() -> None:
    x = torch.randn(2, 7)
    model = esper.wrap(MLP(7, 3), ["blocks.*"], x)
    assert standard_coalitions(model) == [frozenset()]
    model.germinate("blocks.0", "mlp")
    assert standard_coalitions(model) == [frozenset(), frozenset({"blocks.0"})]


@torch.no_grad()
def test_nothing_is_changed() -> None:
    model, x = _cases()[1]
    before, snapshots = _call(model, x), [slot.snapshot() for slot in model.slots.values()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    forward_coalitions(model, x, standard_coalitions(model))
    assert [slot.snapshot() for slot in model.slots.values()] == snapshots
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(_call(model, x), before)


def test_mistakes() -> None:
    model, x = _cases()[0]
    with pytest.raises(ValueError, match=r"'blocks.0', which has no live seed; live: blocks.1"):
        forward_coalitions(model, x, [{"blocks.0"}])
    with pytest.raises(ValueError, match="coalitions is empty"):
        forward_coalitions(model, x, [])
    with pytest.raises(ValueError, match="chunk must be at least 1, not 0"):
        forward_coalitions(model, x, [set()], chunk=0)
    wrong: dict[str, float] = {"blocks.1": "x"}  # type: ignore[dict-item]
    complaint = r"alpha of 'blocks.1' must be a float or a tensor, not 'x'"
    with pytest.raises(TypeError, match=complaint), model.override_alpha(wrong):
        pass
    with pytest.raises(ValueError, match=r"needs eval mode.*model.eval\(\)"):
        forward_coalitions(model.train(), x, [set()])
    with (
        pytest.raises(ValueError, match=r"has 5 rows, which 3 per-sample alphas do not divide"),
        model.override_alpha({"blocks.1": torch.ones(3)}),
    ):
        model(x)
    with (
        pytest.raises(ValueError, match="unknown slot 'blocks'"),
        model.override_alpha({"blocks": torch.ones(5)}),
    ):
        pass


@torch.no_grad()
def test_an_override_ends_even_when_the_forward_fails() -> None:
    model, x = _cases()[0]
    before = _call(model, x)
    with pytest.raises(RuntimeError), model.override_alpha({"blocks.1": torch.zeros(5)}):
        model(torch.randn(2, 3))
    assert torch.equal(_call(model, x), before)


@torch.no_grad()
def test_several_rows_a_sample_stack_too() -> None:
    """Windows: the rows of a sample lie together, and all take its alpha."""
    host = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 4), nn.Unflatten(0, (-1, 2)))
    x = torch.randn(5, 2, 3)
    model = esper.wrap(host, ["1"], x)
    grow_until(model, "1", Stage.HOLDING, "mlp")
    seed = model.slots["1"].seed
    assert seed is not None
    seed.scale.fill_(1.0)
    model.eval()
    stacked = forward_coalitions(model, x, [{"1"}, set()], chunk=2)
    for coalition, together in zip(({"1"}, set[str]()), stacked, strict=True):
        assert torch.allclose(together, forward_coalitions(model, x, [coalition])[0], atol=1e-6)


@torch.no_grad()
def test_overrides_nest() -> None:
    model, x = _cases()[0]
    before = _call(model, x)
    with model.override_alpha({"blocks.1": 0}):
        off = _call(model, x)
        with model.override_alpha({"blocks.1": torch.ones(5)}):
            assert not torch.equal(_call(model, x), off)
        assert torch.equal(_call(model, x), off)
    assert torch.equal(_call(model, x), before)
    assert not torch.equal(off, before)
