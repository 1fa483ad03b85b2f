"""SPEC F2: a newborn seed changes nothing, and yet all of it learns; the skip stays alive at alpha 1."""

import operator
from collections.abc import Iterable
from itertools import product

import pytest
import torch
from _pytest.mark.structures import ParameterSet

import esper
from esper.kasmina import GrowingModel
from esper.leyline import Layout, Stage, Style
from tiny import BATCH, SLOT, grow_until, in_styles, offered, tiny_input, tiny_model

WIDTHS = (1, 3, 8)
USUAL = 3
"""A width that no number of heads or groups divides, for which everything is tried in the fast tests."""


def every_seed(*others: Iterable[object]) -> list[ParameterSet]:
    """All of (layout, blueprint, width, ...); slow where more than one of width and others is unusual.

    The first of each is usual. Widths make the body, styles the seed around it, stages the slot that calls it.
    """
    usual = (USUAL, *(next(iter(choices)) for choices in others))
    return [
        pytest.param(
            *seed,
            *chosen,
            marks=[] if sum(map(operator.ne, chosen, usual)) <= 1 else pytest.mark.slow,
        )
        for seed in offered()
        for chosen in product(WIDTHS, *others)
    ]


def _full_alpha(layout: Layout) -> dict[str, torch.Tensor | float]:
    """One alpha per sample, but for rows, which are nobody's."""
    return {SLOT: 1.0 if layout is Layout.ROWS else torch.ones(BATCH)}


@pytest.mark.parametrize(("layout", "blueprint", "width", "style"), every_seed(Style))
def test_identity_at_birth(layout: Layout, blueprint: str, width: int, style: Style) -> None:
    """Outputs equal bit for bit, in TRAINING and switched on at alpha 1; nobody's randomness moves."""
    model, x = tiny_model(layout, width), tiny_input(layout)
    bare = {autocast: _output(model, x, autocast) for autocast in (False, True)}
    randomness = torch.get_rng_state()
    model.germinate(SLOT, blueprint, style=style)
    assert torch.equal(torch.get_rng_state(), randomness)
    for autocast, expected in bare.items():
        assert torch.equal(_output(model, x, autocast), expected)
        with model.override_alpha(_full_alpha(layout)):
            assert torch.equal(_output(model, x, autocast), expected)
    assert torch.equal(torch.get_rng_state(), randomness)


def _output(model: GrowingModel, x: torch.Tensor, autocast: bool) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(x)
    assert isinstance(out, torch.Tensor)
    assert out.dtype is (torch.float32 if not autocast else torch.bfloat16)
    return out


@pytest.mark.parametrize(
    ("layout", "blueprint", "width", "style", "stage"),
    every_seed((Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE), (Stage.HOLDING, Stage.TRAINING)),
)
def test_every_parameter_learns_within_two_steps(
    layout: Layout, blueprint: str, width: int, style: Style, stage: Stage
) -> None:
    model, x = tiny_model(layout, width), tiny_input(layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    grow_until(model, SLOT, stage, blueprint, style=style)
    seed = model.slots[SLOT].seed
    assert seed is not None
    for _ in range(2):
        optimizer.zero_grad()
        out = model(x)
        assert isinstance(out, torch.Tensor)
        (out - torch.linspace(-2, 2, out.numel()).view_as(out)).square().mean().backward()
        optimizer.step()
    silent = [name for name, p in seed.named_parameters() if p.grad is None or not p.grad.any()]
    assert not silent


@pytest.mark.parametrize(("layout", "blueprint", "style"), in_styles())
def test_the_host_keeps_learning_at_alpha_one(layout: Layout, blueprint: str, style: Style) -> None:
    """Upstream gradients stay alive through the skip, even when the seed itself passes nothing back."""
    model, x = tiny_model(layout, 8), tiny_input(layout)
    grow_until(model, SLOT, Stage.HOLDING, blueprint, style=style)
    out = model(x)
    assert isinstance(out, torch.Tensor)
    out.square().sum().backward()
    assert model.slots[SLOT].alpha == 1.0
    for parameter in model.bare_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def test_births_are_reproducible_and_distinct() -> None:
    def weights(seed: int, births: int) -> torch.Tensor:
        model = tiny_model(Layout.FLAT, 8, seed=seed)
        model.slots[SLOT].life.births = births
        model.germinate(SLOT, "mlp")
        planted = model.slots[SLOT].seed
        assert planted is not None
        return torch.cat([p.flatten() for p in planted.body.parameters()])

    assert torch.equal(weights(0, 0), weights(0, 0))
    assert not torch.equal(weights(0, 0), weights(0, 1))
    assert not torch.equal(weights(0, 0), weights(1, 0))


def test_two_slots_of_one_model_get_different_seeds() -> None:
    host = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model = esper.wrap(host, ["0", "1"], torch.randn(2, 3))
    for slot in model.slots:
        model.germinate(slot, "mlp")
    first, second = (list(slot.seed.body.parameters()) for slot in model.slots.values() if slot.seed)
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", Layout)
def test_seeds_take_the_dtype_of_their_host(layout: Layout, dtype: torch.dtype) -> None:
    model, x = tiny_model(layout, 8), tiny_input(layout).to(dtype)
    model.to(dtype)
    bare = model(x)
    assert isinstance(bare, torch.Tensor)
    grow_until(model, SLOT, Stage.HOLDING, "lora")
    seed = model.slots[SLOT].seed
    assert seed is not None
    assert {p.dtype for p in seed.parameters()} == {dtype}
    grown = model(x)
    assert isinstance(grown, torch.Tensor)
    assert torch.equal(grown, bare)


@pytest.mark.parametrize("stage", [Stage.HOLDING, Stage.FOSSILIZED])
def test_a_grown_slot_keeps_the_dtype_of_autocast(stage: Stage) -> None:
    model, x = tiny_model(Layout.FLAT, 8), tiny_input(Layout.FLAT)
    grow_until(model, SLOT, stage, "norm", style=Style.GATE)
    seen: list[torch.dtype] = []
    handle = model.host.get_submodule(SLOT).register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    _output(model, x, autocast=True)
    handle.remove()
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize(("layout", "blueprint"), offered())
def test_a_grown_slot_keeps_shape_and_memory_format(layout: Layout, blueprint: str) -> None:
    """What the host does with strides behind the slot goes on working."""
    seen: list[tuple[torch.Size, tuple[int, ...]]] = []
    for grow in (False, True):
        model, x = tiny_model(layout, 8), tiny_input(layout)
        if layout in (Layout.IMAGE, Layout.VOLUME):
            fast = torch.channels_last if layout is Layout.IMAGE else torch.channels_last_3d
            model, x = model.to(memory_format=fast), x.to(memory_format=fast)  # type: ignore[call-overload]
        if grow:
            grow_until(model, SLOT, Stage.HOLDING, blueprint)
        middle = model.host.get_submodule(SLOT)
        middle.register_forward_hook(lambda _m, _a, out: seen.append((out.shape, out.stride())))
        model(x)
    assert seen[0] == seen[1]
