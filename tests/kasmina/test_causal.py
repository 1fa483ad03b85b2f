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
    assert _offered(Layout.TIME_MAJOR, True) == _offered(Layout.TIME_MAJOR, False)
    assert _offered(Layout.ROWS, True) == _offered(Layout.ROWS, False)
    pointwise = {"norm", "lora", "lora_large", "widen"}
    assert set(_offered(Layout.IMAGE, True)) == set(_offered(Layout.VOLUME, True)) == pointwise
    for last in (Layout.IMAGE_LAST, Layout.VOLUME_LAST):
        assert set(_offered(last, True)) == pointwise | {"mlp", "mlp_small"}


class CausalSeries(nn.Module):
    """A host over series that is causal itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 4, 1)
        self.middle = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.middle(self.first(x))
        return out


def _causal_models() -> dict[str, tuple[str, GrowingModel, Tensor, int]]:
    """Slot, model, input, and the axis of time in input and output."""
    tokens = torch.randint(13, (2, 11), generator=torch.Generator().manual_seed(0))
    series = tiny_input(Layout.SERIES)
    time_major = tiny_model(Layout.TIME_MAJOR, 8, causal=True)
    return {
        "gpt": ("blocks.0", esper.wrap(GPT(13, 11, width=32), ["blocks.0"], tokens, causal=True), tokens, 1),
        "series": ("middle", esper.wrap(CausalSeries(), ["middle"], series, causal=True), series, 2),
        "time_major": (SLOT, time_major, tiny_input(Layout.TIME_MAJOR), 1),
    }


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE])
@pytest.mark.parametrize("which", ["gpt", "series", "time_major"])
def test_outputs_do_not_depend_on_later_inputs(which: str, style: Style) -> None:
    name, offering, _, _ = _causal_models()[which]
    for blueprint in offering.slots[name].blueprints:
        slot, model, x, axis = _causal_models()[which]
        grow_until(model, slot, Stage.HOLDING, blueprint, style=style)
        seed = model.slots[slot].seed
        assert seed is not None
        with torch.no_grad():
            seed.scale.fill_(1.0)
            now = model(x)
            assert isinstance(now, Tensor)
            for position in range(1, x.shape[axis]):
                changed = x.clone()
                later = changed.narrow(axis, position, x.shape[axis] - position)
                later.copy_(later.flip(0) + (0 if which == "gpt" else 1))
                other = model(changed)
                assert isinstance(other, Tensor)
                before, after = (out.narrow(axis, 0, position) for out in (now, other))
                assert torch.equal(before, after), (blueprint, position)
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
