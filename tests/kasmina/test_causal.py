"""A causal wrap never offers a seed that can see later positions."""

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel
from esper.kasmina.hosts import GPT
from esper.leyline import Layout, Stage, Style
from tiny import SLOT, grow_until, tiny_input, tiny_model


def _offered(layout: Layout, causal: bool) -> tuple[str, ...]:
    return tuple(tiny_model(layout, 8, causal=causal).slots[SLOT].blueprints)


def test_what_a_causal_wrap_leaves_out() -> None:
    assert set(_offered(Layout.SERIES, False)) - set(_offered(Layout.SERIES, True)) == {"attention", "mixer"}
    assert _offered(Layout.TOKENS, True) == _offered(Layout.TOKENS, False)
    assert _offered(Layout.FLAT, True) == _offered(Layout.FLAT, False)
    assert set(_offered(Layout.IMAGE, True)) == {"norm", "lora", "lora_large", "widen"}


class CausalSeries(nn.Module):
    """A host over series that is causal itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 4, 1)
        self.middle = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.middle(self.first(x))
        return out


def _causal_models() -> list[tuple[str, GrowingModel, Tensor]]:
    tokens = torch.randint(13, (2, 11), generator=torch.Generator().manual_seed(0))
    series = tiny_input(Layout.SERIES)
    return [
        ("blocks.0", esper.wrap(GPT(13, 11, width=32), ["blocks.0"], tokens, causal=True), tokens),
        ("middle", esper.wrap(CausalSeries(), ["middle"], series, causal=True), series),
    ]


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE])
@pytest.mark.parametrize("which", [0, 1], ids=["gpt", "series"])
def test_outputs_do_not_depend_on_later_inputs(which: int, style: Style) -> None:
    for blueprint in _causal_models()[which][1].slots[_causal_models()[which][0]].blueprints:
        slot, model, x = _causal_models()[which]
        grow_until(model, slot, Stage.HOLDING, blueprint, style=style)
        seed = model.slots[slot].seed
        assert seed is not None
        with torch.no_grad():
            seed.scale.fill_(1.0)
            now = model(x)
            assert isinstance(now, Tensor)
            for position in range(1, 11):
                changed = x.clone()
                changed[..., position:] = changed[..., position:].flip(0) + (0 if which == 0 else 1)
                other = model(changed)
                assert isinstance(other, Tensor)
                before = (slice(None), slice(0, position)) if which == 0 else (..., slice(0, position))
                assert torch.equal(now[before], other[before]), (blueprint, position)
            assert not torch.equal(now, other)


def test_the_check_notices_a_seed_that_looks_ahead() -> None:
    """The same blueprint without the causal wrap does see later positions."""
    tokens = torch.randint(13, (2, 11), generator=torch.Generator().manual_seed(0))
    model = esper.wrap(GPT(13, 11, width=32), ["blocks.0"], tokens)
    grow_until(model, "blocks.0", Stage.HOLDING, "attention")
    seed = model.slots["blocks.0"].seed
    assert seed is not None
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 13
    with torch.no_grad():
        seed.scale.fill_(1.0)
        now, other = model(tokens), model(changed)
    assert isinstance(now, Tensor)
    assert isinstance(other, Tensor)
    assert not torch.equal(now[:, 0], other[:, 0])
