"""RETIRE: a fossil is given back, and what remains is what it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

import esper
from esper.kasmina import GrowingModel, GrowthRules
from esper.kasmina.blueprints import all_blueprints
from esper.kasmina.coalitions import plan_coalitions
from esper.kasmina.hosts import ConvNet
from esper.leyline import Composition, SeedFading, Stage, StageChanged, Style
from esper.leyline.heads import ALPHA_SPEEDS, LifecycleOp
from tiny import Recorder

X = torch.linspace(-1, 1, 5 * 13).view(5, 1, 13)
FIRST, SECOND = "blocks.0", "blocks.1"
KINDS = [each.name for each in all_blueprints() if "series" in map(str, each.layouts)]
OPTIMISERS: dict[str, Callable[[GrowingModel], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: Adam(model.parameters(), lr=0.01),
    "named": lambda model: AdamW(model.named_parameters(), lr=0.01),
}


def _model(*, events: Recorder | None = None, kind: str | None = "adam") -> GrowingModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        host = ConvNet(1, 3, dims=1, widths=(3, 5, 7), pools=(1, 1, 1))
    model = esper.wrap(host, ["blocks.*"], X, events=events, rules=GrowthRules(min_prune_age=1))
    if kind is not None:
        model.attach(OPTIMISERS[kind](model))
    return model


def _epoch(model: GrowingModel) -> Tensor:
    assert model.care is not None
    model.tick()
    for _ in range(2):
        model.care.optimizer.zero_grad()
        out = model(X)
        assert isinstance(out, Tensor)
        (out - 0.3).square().mean().backward()
        model.care.optimizer.step()
    return out.detach()


def _fossil(
    model: GrowingModel, slot: str = FIRST, kind: str = "conv_small", style: str = "linear_add"
) -> None:
    """Grow a fossil that has been one for an epoch."""
    model.germinate(slot, kind, style=style)
    _epoch(model)
    model.advance(slot)
    for _ in range(3):
        _epoch(model)
    model.fossilize(slot)
    _epoch(model)


def _without(model: GrowingModel, *slots: str) -> Tensor:
    with torch.no_grad(), model.override_alpha(dict.fromkeys(slots, 0.0)):
        return model.eval()(X)


def _covered(model: GrowingModel) -> list[int]:
    assert model.care is not None
    return sorted(id(p) for group in model.care.optimizer.param_groups for p in group["params"])


def _check_books(model: GrowingModel) -> None:
    """Every parameter that learns is in the optimiser once, and nothing else is."""
    assert model.care is not None
    learning = [id(p) for p in model.parameters() if p.requires_grad]
    assert _covered(model) == sorted(learning)
    assert {id(p) for p in model.care.optimizer.state} <= set(learning)
    for group in model.care.optimizer.param_groups:
        assert len(group.get("param_names", group["params"])) == len(group["params"])


@pytest.mark.parametrize(
    ("kind", "style"),
    [
        pytest.param(
            kind, style, marks=[] if style is Style.LINEAR_ADD or kind == KINDS[0] else pytest.mark.slow
        )
        for kind in KINDS
        for style in Style
    ],
)
def test_what_remains_computes_what_it_did_without_the_fossil(kind: str, style: Style) -> None:
    model = _model()
    _fossil(model, kind=kind, style=style)
    _fossil(model, SECOND)
    weights = {name: p.clone() for name, p in model.named_parameters() if f"{FIRST}." not in name}
    expected, with_it = _without(model, FIRST), _without(model)
    model.retire(FIRST)
    assert torch.equal(_without(model), expected)
    assert not torch.equal(with_it, expected)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters() if name in weights)


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("speed", ALPHA_SPEEDS)
def test_its_parameters_leave_optimiser_and_accounts(kind: str, speed: int) -> None:
    model = _model(kind=kind)
    bare = sum(p.numel() for p in model.parameters())
    _fossil(model)
    _fossil(model, SECOND)
    other = model.slots[SECOND].parameter_count
    grown = model.added_parameters
    assert grown > other
    seed = model.slots[FIRST].seed
    assert seed is not None
    model.retire(FIRST, alpha_speed=speed)
    assert not {id(p) for p in seed.parameters()} & set(_covered(model))
    alphas = [model.slots[FIRST].alpha]
    frozen = [p.clone() for p in seed.parameters()]
    while model.slots[FIRST].seed is not None:
        assert model.slots[FIRST].stage is Stage.BLENDING
        assert model.added_parameters == grown  # it is still there, and still costs
        _epoch(model)
        _check_books(model)
        alphas.append(model.slots[FIRST].alpha)
    assert len(alphas) == speed + 1
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[-1] == 0.0
    assert all(torch.equal(p, q) for p, q in zip(seed.parameters(), frozen, strict=True))
    assert model.added_parameters == other
    assert sum(p.numel() for p in model.parameters()) == bare + other
    _check_books(model)


def test_the_slot_is_free_again_after_its_embargo() -> None:
    sink = Recorder()
    model = _model(events=sink)
    _fossil(model)
    sink.events.clear()
    model.retire(FIRST, alpha_speed=3)
    stages = [model.slots[FIRST].stage]
    for _ in range(5):
        _epoch(model)
        stages.append(model.slots[FIRST].stage)
    fading, cooling = [Stage.BLENDING] * 3, [Stage.EMBARGOED] * 1
    assert stages == [*fading, *cooling, Stage.DORMANT, Stage.DORMANT]
    assert sink.events == [
        SeedFading(FIRST, 1.0, 3),
        StageChanged(FIRST, Stage.FOSSILIZED, Stage.BLENDING, LifecycleOp.RETIRE),
        StageChanged(FIRST, Stage.BLENDING, Stage.EMBARGOED, None),
        StageChanged(FIRST, Stage.EMBARGOED, Stage.DORMANT, None),
    ]
    births = model.slots[FIRST].life.births
    _fossil(model, kind="mixer")
    assert model.slots[FIRST].life.births == births + 1
    _check_books(model)


def test_while_it_fades_it_takes_a_live_place() -> None:
    model = _model()
    _fossil(model)
    model.germinate(SECOND, "norm")
    model.retire(FIRST, alpha_speed=3)
    legal = model.legal_operations()
    assert model.free_places == 0
    assert LifecycleOp.GERMINATE not in legal["blocks.2"].operations
    while model.slots[FIRST].stage is not Stage.EMBARGOED:
        _epoch(model)
    assert LifecycleOp.GERMINATE in model.legal_operations()["blocks.2"].operations


@pytest.mark.parametrize("after", range(5))
def test_a_saved_retirement_goes_on_bit_for_bit(tmp_path: Path, after: int) -> None:
    straight = _model(kind="sgd")
    _fossil(straight)
    _fossil(straight, SECOND)
    straight.retire(FIRST, alpha_speed=3)
    for _ in range(after):
        _epoch(straight)
    straight.save(tmp_path / "model.safetensors")
    resumed = _model(kind="sgd")
    resumed.load(tmp_path / "model.safetensors")
    assert resumed.snapshots() == straight.snapshots()
    for _ in range(6 - after):
        assert torch.equal(_epoch(resumed), _epoch(straight))
    assert resumed.snapshots() == straight.snapshots()
    for (name, one), (_, other) in zip(resumed.named_parameters(), straight.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_an_export_in_the_middle_computes_what_the_model_does() -> None:
    model = _model(kind="sgd")
    _fossil(model)
    _fossil(model, SECOND)
    model.retire(FIRST, alpha_speed=3)
    for _ in range(4):
        plain = model.eval().export()
        torch.testing.assert_close(plain(X), model(X))
        model.train()
        _epoch(model)
    model.detach()
    assert sum(p.numel() for p in model.eval().export().parameters()) == (
        model.host_parameters + model.slots[SECOND].parameter_count
    )


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.GATE])
def test_a_weighed_fossil_contributes_what_leaving_it_out_costs(style: Style) -> None:
    model = _model()
    _fossil(model, style=style)
    model.germinate(SECOND, "norm")
    _epoch(model)
    assert style.composition in (Composition.ADD, Composition.GATE)
    plan = plan_coalitions(model, fossils=True)
    assert plan.weighed == (SECOND, FIRST)
    assert plan.coalitions == (
        frozenset({FIRST}),
        frozenset({FIRST, SECOND}),  # the TRAINING seed is switched on
        frozenset(),  # the fossil is off, and so is every other
    )
    scores = [-(_without(model) - _without(model, *off)).abs().sum().item() for off in ((), (), (FIRST,))]
    assert plan.worths(scores)[FIRST].contribution == -scores[2] > 0.0
    assert plan_coalitions(model).weighed == (SECOND,)


def test_no_live_seed_is_on_in_the_last_coalition_and_every_fossil_is() -> None:
    model = _model()
    _fossil(model)
    model.germinate(SECOND, "norm")
    _epoch(model)
    model.advance(SECOND)
    _epoch(model)
    assert plan_coalitions(model, fossils=True).coalitions == (
        frozenset({FIRST, SECOND}),
        frozenset({FIRST}),  # both the blended seed off, and every live seed off
        frozenset({SECOND}),
    )


def test_a_fossil_that_breaks_shows_where_it_is_weighed() -> None:
    """It is not guarded like a live seed: the governor must see what the host puts out."""
    model = _model()
    _fossil(model)
    seed = model.slots[FIRST].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(torch.nan)
    with torch.no_grad(), model.override_alpha({FIRST: 1.0}):
        assert model.eval()(X).isnan().all()
    assert _without(model, FIRST).isfinite().all()


def test_what_is_known_of_a_fossil_is_of_its_epoch() -> None:
    model = _model()
    _fossil(model)
    assert model.readings()[0].contribution != model.readings()[0].contribution  # NaN: not weighed
    model.report(FIRST, contribution=0.125)
    assert model.readings()[0].contribution == 0.125
    model.tick()
    assert model.readings()[0].contribution != model.readings()[0].contribution
    assert model.snapshots()[0].contribution == 0.125  # the last word on it
