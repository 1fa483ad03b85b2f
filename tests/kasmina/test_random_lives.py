"""Random lives: whatever legal thing is done in whatever order, the books stay right."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import esper
from esper.kasmina import GrowingModel, GrowthRules, IllegalOperation
from esper.kasmina.hosts import GPT, MLP, ConvNet
from esper.leyline import ALPHA_CURVES, ALPHA_SPEEDS, TEMPOS, Layout, LegalOperations, LifecycleOp, Stage
from tiny import tiny_host, tiny_input

TINY_LAYOUTS = (Layout.VOLUME, Layout.IMAGE_LAST, Layout.VOLUME_LAST, Layout.TIME_MAJOR, Layout.ROWS)
HOSTS = ("mlp", "series", "image", "gpt", *TINY_LAYOUTS)
EXAMPLES: dict[str, Tensor] = {
    "mlp": torch.linspace(-1, 1, 21).view(3, 7),
    "series": torch.linspace(-1, 1, 48).view(3, 1, 16),
    "image": torch.linspace(-1, 1, 192).view(3, 1, 8, 8),
    "gpt": torch.arange(21).view(3, 7) % 11,
    **{layout: tiny_input(layout, batch=3) for layout in TINY_LAYOUTS},
}


def _model(kind: str, rules: GrowthRules) -> GrowingModel:
    if kind in TINY_LAYOUTS:
        parts = ["first", "middle", "last"]
        return esper.wrap(tiny_host(Layout(kind), 4), parts, EXAMPLES[kind], rules=rules)
    hosts: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: MLP(7, 3, (5, 4, 3)),
        "series": lambda: ConvNet(1, 3, dims=1, widths=(3, 4, 5)),
        "image": lambda: ConvNet(1, 3, dims=2, widths=(3, 4, 5), norm="batch"),
        "gpt": lambda: GPT(11, 7, layers=3, heads=2, width=8),
    }
    return esper.wrap(hosts[kind](), ["blocks.*"], EXAMPLES[kind], causal=kind == "gpt", rules=rules)


def _apply(
    model: GrowingModel, draw: st.DataObject, operation: LifecycleOp, name: str, legal: LegalOperations
) -> None:
    if operation is LifecycleOp.GERMINATE:
        model.germinate(
            name,
            draw.draw(st.sampled_from(legal.blueprints)),
            style=draw.draw(st.sampled_from(legal.styles)),
            tempo=draw.draw(st.sampled_from(TEMPOS)),
            alpha_target=draw.draw(st.sampled_from(legal.alpha_targets)),
        )
    elif operation is LifecycleOp.ADVANCE:
        model.advance(name)
    elif operation is LifecycleOp.SET_ALPHA_TARGET:
        model.set_alpha_target(
            name,
            draw.draw(st.sampled_from(legal.alpha_targets)),
            style=draw.draw(st.sampled_from(legal.styles)),
            alpha_speed=draw.draw(st.sampled_from(ALPHA_SPEEDS)),
            alpha_curve=draw.draw(st.sampled_from(ALPHA_CURVES)),
        )
    elif operation in (LifecycleOp.PRUNE, LifecycleOp.RETIRE):
        take_out = model.prune if operation is LifecycleOp.PRUNE else model.retire
        speed, curve = draw.draw(st.sampled_from(ALPHA_SPEEDS)), draw.draw(st.sampled_from(ALPHA_CURVES))
        take_out(name, alpha_speed=speed, alpha_curve=curve)
    elif operation is LifecycleOp.FOSSILIZE:
        model.fossilize(name)


def _refuses_everything_else(model: GrowingModel, legal: dict[str, LegalOperations]) -> None:
    attempts = {
        LifecycleOp.GERMINATE: lambda name: model.germinate(name, "norm"),
        LifecycleOp.ADVANCE: model.advance,
        LifecycleOp.SET_ALPHA_TARGET: lambda name: model.set_alpha_target(name, 0.5),
        LifecycleOp.PRUNE: model.prune,
        LifecycleOp.FOSSILIZE: model.fossilize,
        LifecycleOp.RETIRE: model.retire,
    }
    for name, options in legal.items():
        for operation, attempt in attempts.items():
            if operation not in options.operations:
                try:
                    attempt(name)
                except IllegalOperation:
                    continue
                raise AssertionError(f"{operation.name} passed at {name} in {model.slots[name].stage.name}")


def _check_books(model: GrowingModel, optimizer: torch.optim.Optimizer, rules: GrowthRules) -> None:
    everything = sum(p.numel() for p in model.parameters())
    assert everything == model.host_parameters + model.added_parameters
    trainable = [id(p) for p in model.parameters() if p.requires_grad]
    covered = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(covered) == sorted(trainable)
    assert {id(p) for p in optimizer.state} <= set(trainable)
    growing = [name for name in model.live_slots if not model.slots[name].life.fading]
    assert len(growing) <= rules.max_live_seeds  # a fossil may fade out beside as many
    legal = model.legal_operations()
    for slot, reading in zip(model.slots.values(), model.readings(), strict=True):
        assert reading.legal == sum(1 << operation for operation in legal[slot.name].operations)
        assert (slot.seed is not None) == (slot.stage.is_live or slot.stage is Stage.FOSSILIZED)
        assert 0.0 <= slot.alpha <= 1.0
        if slot.seed is not None:
            assert slot.seed.alpha.item() == torch.tensor(slot.alpha).item()
            frozen = not any(p.requires_grad for p in slot.seed.parameters())
            assert frozen == slot.life.fading


def _train(model: GrowingModel, optimizer: torch.optim.Optimizer, kind: str) -> None:
    optimizer.zero_grad()
    out = model(EXAMPLES[kind])
    assert isinstance(out, Tensor)
    assert out.isfinite().all()
    (out - 0.5).square().mean().backward()
    optimizer.step()


LIVES = given(
    draw=st.data(),
    kind=st.sampled_from(HOSTS),
    max_live_seeds=st.integers(1, 3),
    min_prune_age=st.integers(0, 3),
    embargo_epochs=st.integers(0, 2),
    momentum=st.booleans(),
)


def live(
    draw: st.DataObject,
    kind: str,
    max_live_seeds: int,
    min_prune_age: int,
    embargo_epochs: int,
    momentum: bool,
) -> None:
    rules = GrowthRules(
        max_live_seeds=max_live_seeds, min_prune_age=min_prune_age, embargo_epochs=embargo_epochs
    )
    model = _model(kind, rules)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if momentum
        else torch.optim.Adam(model.parameters(), lr=1e-3)
    )
    model.attach(optimizer)
    for _ in range(draw.draw(st.integers(5, 25))):
        legal = model.legal_operations()
        _refuses_everything_else(model, legal)
        choices = [
            (operation, name)
            for name, options in legal.items()
            for operation in sorted(options.operations)
            if operation is not LifecycleOp.WAIT
        ]
        eager: int = draw.draw(st.integers(0, 3))
        if choices and eager:
            operation, name = choices[draw.draw(st.integers(0, len(choices) - 1))]
            _apply(model, draw, operation, name, legal[name])
        _check_books(model, optimizer, rules)
        model.tick()
        _train(model, optimizer, kind)
        _check_books(model, optimizer, rules)


@settings(max_examples=12, deadline=None, derandomize="CI" in os.environ)
@LIVES
def test_random_legal_lives(**drawn: Any) -> None:
    live(**drawn)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@LIVES
def test_many_random_legal_lives(**drawn: Any) -> None:
    live(**drawn)
