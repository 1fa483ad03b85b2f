"""SPEC F1: the stage machine, cell by cell."""

import pickle
from collections.abc import Callable

import pytest
import torch

import esper
from esper.kasmina import GrowingModel, GrowthRules, IllegalOperation
from esper.kasmina.hosts import MLP
from esper.kasmina.stage_machine import Facts, curve_value, legal_bits, refusal
from esper.leyline import Curve, LifecycleOp, SeedFading, SeedGerminated, Stage, StageChanged, Style
from tiny import Recorder, grow_until

W, G, S, P, F, A, R = LifecycleOp


def _model(**options: object) -> GrowingModel:
    wrap: Callable[..., GrowingModel] = esper.wrap
    return wrap(MLP(3, 2, (5, 5, 5)), ["blocks.*"], torch.randn(2, 3), **options)


def _execute(model: GrowingModel, operation: LifecycleOp, slot: str = "blocks.0") -> None:
    if operation is G:
        model.germinate(slot, "norm")
    elif operation is S:
        model.set_alpha_target(slot, 0.5)
    elif operation is P:
        model.prune(slot)
    elif operation is F:
        model.fossilize(slot)
    elif operation is A:
        model.advance(slot)
    elif operation is R:
        model.retire(slot)


def _dormant(model: GrowingModel) -> None:
    pass


def _newborn(model: GrowingModel) -> None:
    model.germinate("blocks.0", "norm")


def _trained(model: GrowingModel, epochs: int = 1) -> None:
    _newborn(model)
    for _ in range(epochs):
        model.tick()
    model.report("blocks.0", gradients_finite=True)


def _trained_badly(model: GrowingModel) -> None:
    _trained(model)
    model.report("blocks.0", gradients_finite=False)


def _unmeasured(model: GrowingModel) -> None:
    _newborn(model)
    model.tick()


def _old(model: GrowingModel) -> None:
    _trained(model, 3)


def _blending(model: GrowingModel) -> None:
    _trained(model)
    model.advance("blocks.0")
    model.tick()


def _blending_old(model: GrowingModel) -> None:
    _blending(model)
    model.tick()


def _holding(model: GrowingModel) -> None:
    grow_until(model, "blocks.0", Stage.HOLDING, "norm")


def _fading(model: GrowingModel) -> None:
    _holding(model)
    model.prune("blocks.0", alpha_speed=3)


def _fossilized(model: GrowingModel) -> None:
    grow_until(model, "blocks.0", Stage.FOSSILIZED, "norm")


def _fossil_of(model: GrowingModel, epochs: int) -> None:
    _fossilized(model)
    for _ in range(epochs):
        model.tick()


def _young_fossil(model: GrowingModel) -> None:
    _fossil_of(model, 2)


def _old_fossil(model: GrowingModel) -> None:
    _fossil_of(model, 3)


def _old_fossil_in_a_crowd(model: GrowingModel) -> None:
    _old_fossil(model)
    _crowded(model)


def _retiring(model: GrowingModel) -> None:
    _old_fossil(model)
    model.retire("blocks.0", alpha_speed=3)


def _embargoed(model: GrowingModel) -> None:
    grow_until(model, "blocks.0", Stage.EMBARGOED, "norm")


def _crowded(model: GrowingModel) -> None:
    model.germinate("blocks.1", "norm")
    model.germinate("blocks.2", "norm")


CELLS = [
    (_dormant, Stage.DORMANT, {W, G}),
    (_crowded, Stage.DORMANT, {W}),
    (_newborn, Stage.TRAINING, {W}),
    (_unmeasured, Stage.TRAINING, {W}),
    (_trained_badly, Stage.TRAINING, {W}),
    (_trained, Stage.TRAINING, {W, A}),
    (_old, Stage.TRAINING, {W, A, P}),
    (_blending, Stage.BLENDING, {W}),
    (_blending_old, Stage.BLENDING, {W, P}),
    (_holding, Stage.HOLDING, {W, P, S, F}),
    (_fading, Stage.BLENDING, {W}),
    (_fossilized, Stage.FOSSILIZED, {W}),
    (_young_fossil, Stage.FOSSILIZED, {W}),
    (_old_fossil, Stage.FOSSILIZED, {W, R}),
    (_old_fossil_in_a_crowd, Stage.FOSSILIZED, {W, R}),
    (_retiring, Stage.BLENDING, {W}),
    (_embargoed, Stage.EMBARGOED, {W}),
]


@pytest.mark.parametrize("operation", LifecycleOp)
@pytest.mark.parametrize(("reach", "stage", "legal"), CELLS, ids=[cell[0].__name__ for cell in CELLS])
def test_every_cell(
    reach: Callable[[GrowingModel], None], stage: Stage, legal: set[LifecycleOp], operation: LifecycleOp
) -> None:
    """What is called legal executes; what is not raises, says so, and changes nothing."""
    model = _model()
    reach(model)
    slot = model.slots["blocks.0"]
    assert slot.stage is stage
    assert model.legal_operations()["blocks.0"].operations == legal
    if operation in legal:
        _execute(model, operation)
        return
    before = slot.snapshot()
    with pytest.raises(IllegalOperation) as refusal:
        _execute(model, operation)
    assert slot.snapshot() == before
    assert refusal.value.legal == legal
    for word in (operation.name, stage.name, "'blocks.0'", "Legal now: WAIT"):
        assert word in str(refusal.value)


def test_a_whole_life_epoch_by_epoch() -> None:
    sink = Recorder()
    model = _model(events=sink)
    slot = model.slots["blocks.0"]
    model.germinate("blocks.0", "norm", tempo=3, alpha_target=0.7)
    story = [(slot.stage.name, slot.alpha)]
    model.tick()
    model.report("blocks.0", gradients_finite=True)
    model.advance("blocks.0")
    for _ in range(3):
        model.tick()
        story.append((slot.stage.name, round(slot.alpha, 6)))
    model.fossilize("blocks.0")
    model.tick()
    story.append((slot.stage.name, slot.alpha))
    assert story == [
        ("TRAINING", 0.0),
        ("BLENDING", 0.233333),
        ("BLENDING", 0.466667),
        ("HOLDING", 0.7),
        ("FOSSILIZED", 0.7),
    ]
    assert sink.events == [
        SeedGerminated("blocks.0", "norm", Style.LINEAR_ADD, 5),
        StageChanged("blocks.0", Stage.DORMANT, Stage.TRAINING, G),
        StageChanged("blocks.0", Stage.TRAINING, Stage.BLENDING, A),
        StageChanged("blocks.0", Stage.BLENDING, Stage.HOLDING, None),
        StageChanged("blocks.0", Stage.HOLDING, Stage.FOSSILIZED, F),
    ]


def test_a_fading_seed_keeps_its_place_until_it_is_gone() -> None:
    model = _model(rules=GrowthRules(max_live_seeds=1, embargo_epochs=2))
    slot = model.slots["blocks.0"]
    grow_until(model, "blocks.0", Stage.HOLDING, "norm")
    model.prune("blocks.0", alpha_speed=3)
    alphas = []
    for _ in range(3):
        assert (slot.stage, slot.life.fading, len(model.live_slots)) == (Stage.BLENDING, True, 1)
        assert LifecycleOp.GERMINATE not in model.legal_operations()["blocks.1"].operations
        assert not any(p.requires_grad for p in slot.seed.parameters()) if slot.seed else False
        model.tick()
        alphas.append(slot.alpha)
    assert alphas == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert (slot.stage, slot.seed, len(model.live_slots), model.added_parameters) == (
        Stage.EMBARGOED,
        None,
        0,
        0,
    )
    assert LifecycleOp.GERMINATE in model.legal_operations()["blocks.1"].operations
    model.tick()
    assert slot.stage is Stage.DORMANT


@pytest.mark.parametrize("embargo", [0, 1, 2, 5])
def test_embargo_lasts_its_epochs(embargo: int) -> None:
    model = _model(rules=GrowthRules(embargo_epochs=embargo))
    grow_until(model, "blocks.0", Stage.EMBARGOED, "norm")
    epochs = 0
    while model.slots["blocks.0"].stage is Stage.EMBARGOED:
        model.tick()
        epochs += 1
    assert epochs == embargo
    assert model.slots["blocks.0"].stage is Stage.DORMANT


def test_fossilising_frees_the_live_place() -> None:
    model = _model(rules=GrowthRules(max_live_seeds=1))
    grow_until(model, "blocks.0", Stage.FOSSILIZED, "norm")
    model.germinate("blocks.1", "norm")
    assert len(model.live_slots) == 1


def test_retargeting_goes_back_through_blending() -> None:
    model = _model()
    slot = model.slots["blocks.0"]
    grow_until(model, "blocks.0", Stage.HOLDING, "norm", alpha_target=0.5)
    assert model.legal_operations()["blocks.0"].alpha_targets == (0.7, 1.0)
    model.set_alpha_target("blocks.0", 1.0, alpha_speed=0)
    assert (slot.stage, slot.alpha) == (Stage.BLENDING, 0.5)
    model.tick()
    assert (slot.stage, slot.alpha) == (Stage.HOLDING, 1.0)


@pytest.mark.parametrize(
    ("style", "legal"),
    [
        (Style.LINEAR_ADD, (Style.LINEAR_ADD, Style.SIGMOID_ADD)),
        (Style.SIGMOID_ADD, (Style.LINEAR_ADD, Style.SIGMOID_ADD)),
        (Style.MULTIPLY, (Style.MULTIPLY,)),
        (Style.GATE, (Style.GATE,)),
    ],
)
def test_retargeting_keeps_the_composition(style: Style, legal: tuple[Style, ...]) -> None:
    model = _model()
    grow_until(model, "blocks.0", Stage.HOLDING, "norm", style=style)
    assert model.legal_operations()["blocks.0"].styles == legal
    for other in set(Style) - set(legal):
        with pytest.raises(ValueError, match=f"style={str(other)!r}|style=<Style"):
            model.set_alpha_target("blocks.0", 0.5, style=other)
    model.set_alpha_target("blocks.0", 0.5, style=legal[-1])


def test_values_that_are_no_choices() -> None:
    model = _model()
    with pytest.raises(ValueError, match=r"tempo=4 is not a choice here; choose from 3, 5, 8"):
        model.germinate("blocks.0", "norm", tempo=4)
    with pytest.raises(ValueError, match=r"alpha_target=0.6 .* 0.5, 0.7, 1.0"):
        model.germinate("blocks.0", "norm", alpha_target=0.6)
    with pytest.raises(ValueError, match=r"style='blend' .* gate"):
        model.germinate("blocks.0", "norm", style="blend")
    assert model.added_parameters == 0
    with pytest.raises(ValueError, match=r"unknown slot 'block.0'; the slots are blocks.0"):
        model.germinate("block.0", "norm")
    grow_until(model, "blocks.0", Stage.HOLDING, "norm")
    with pytest.raises(ValueError, match=r"alpha_target=1.0 .* choose from 0.5, 0.7"):
        model.set_alpha_target("blocks.0", 1.0)
    with pytest.raises(ValueError, match=r"alpha_speed=4"):
        model.prune("blocks.0", alpha_speed=4)
    assert model.slots["blocks.0"].stage is Stage.HOLDING


@pytest.mark.parametrize("field", ["max_live_seeds", "min_prune_age", "embargo_epochs"])
@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_rules_are_validated(field: str, value: object) -> None:
    rules: Callable[..., GrowthRules] = GrowthRules
    with pytest.raises(ValueError, match=f"GrowthRules.{field} must be an integer"):
        rules(**{field: value})


def test_gradient_reports_are_for_one_epoch() -> None:
    model = _model()
    _trained(model)
    assert model.slots["blocks.0"].gradients_finite() is True
    model.tick()
    assert model.slots["blocks.0"].gradients_finite() is None


def test_without_a_report_gradients_are_looked_at() -> None:
    model = _model()
    slot = model.slots["blocks.0"]
    _unmeasured(model)
    torch.stack([model(torch.randn(2, 3)).square().sum() for _ in range(2)]).sum().backward()
    assert slot.gradients_finite() is True
    assert A in model.legal_operations()["blocks.0"].operations
    assert slot.seed is not None
    assert slot.seed.scale.grad is not None
    slot.seed.scale.grad[0] = float("nan")
    assert slot.gradients_finite() is False
    assert A not in model.legal_operations()["blocks.0"].operations


def test_reporting_on_an_empty_slot() -> None:
    with pytest.raises(ValueError, match=r"'blocks.0' is DORMANT: there is no seed"):
        _model().report("blocks.0", contribution=0.1)


def test_a_contribution_that_is_no_number() -> None:
    model = _model()
    _newborn(model)
    with pytest.raises(ValueError, match="contribution=nan is no measurement"):
        model.report("blocks.0", contribution=float("nan"))


def test_a_second_life_starts_from_nothing() -> None:
    model = _model(rules=GrowthRules(embargo_epochs=0))
    slot = model.slots["blocks.0"]
    grow_until(model, "blocks.0", Stage.HOLDING, "norm", style=Style.GATE)
    model.report("blocks.0", contribution=0.5, gradients_finite=True)
    assert slot.snapshot().contribution == 0.5
    model.prune("blocks.0")
    empty = slot.snapshot()
    assert (empty.age, empty.contribution, empty.style, empty.alpha_target) == (0, None, None, None)
    model.germinate("blocks.0", "norm")
    assert (slot.snapshot().contribution, slot.gradients_finite(), slot.life.births) == (None, None, 2)
    model.tick()
    assert P not in model.legal_operations()["blocks.0"].operations


def test_a_fading_seed_tells_of_it_and_drops_its_gradients() -> None:
    sink = Recorder()
    model = _model(events=sink)
    grow_until(model, "blocks.0", Stage.HOLDING, "norm", tempo=5)
    model.set_alpha_target("blocks.0", 0.5, alpha_speed=5)
    model.tick()
    model.tick()
    model(torch.randn(2, 3)).sum().backward()
    epochs = model.slots["blocks.0"].life.epochs_in_stage
    model.prune("blocks.0", alpha_speed=3)
    slot = model.slots["blocks.0"]
    assert slot.seed is not None
    assert all(p.grad is None for p in slot.seed.parameters())
    assert slot.life.epochs_in_stage == epochs == 2  # it is BLENDING still
    assert sink.events[-1] == SeedFading("blocks.0", 0.8, 3)


@pytest.mark.parametrize("curve", Curve)
def test_ramps_follow_the_curve_that_was_asked_for(curve: Curve) -> None:
    def first_third(start: float, target: float) -> float:
        return start + (target - start) * curve_value(curve, 1 / 3)

    model = _model()
    slot = model.slots["blocks.0"]
    grow_until(model, "blocks.0", Stage.HOLDING, "norm")
    model.set_alpha_target("blocks.0", 0.5, alpha_speed=3, alpha_curve=curve, style=Style.SIGMOID_ADD)
    assert slot.snapshot().style is Style.SIGMOID_ADD
    model.tick()
    assert slot.alpha == pytest.approx(first_third(1.0, 0.5))
    model.tick()
    model.tick()
    model.prune("blocks.0", alpha_speed=3, alpha_curve=curve)
    model.tick()
    assert slot.alpha == pytest.approx(first_third(0.5, 0.0))


@pytest.mark.parametrize("style", Style)
def test_the_first_ramp_has_the_curve_of_its_style(style: Style) -> None:
    model = _model()
    grow_until(model, "blocks.0", Stage.BLENDING, "norm", style=style)
    model.tick()
    assert model.slots["blocks.0"].alpha == pytest.approx(curve_value(style.first_curve, 1 / 3))


def test_a_refusal_travels_between_processes() -> None:
    with pytest.raises(IllegalOperation) as refusal:
        _model().advance("blocks.0")
    again = pickle.loads(pickle.dumps(refusal.value))
    assert str(again) == str(refusal.value)
    assert again.legal == refusal.value.legal


def test_a_seed_born_in_inference_mode_can_be_trained() -> None:
    model = _model()
    with torch.inference_mode():
        model.germinate("blocks.0", "norm")
        model.tick()
    model(torch.randn(2, 3)).square().sum().backward()
    assert model.slots["blocks.0"].gradients_finite() is True


WAIT, GERMINATE, RETARGET, PRUNE, FOSSILIZE, ADVANCE, RETIRE = LifecycleOp
READY: dict[Stage, set[LifecycleOp]] = {
    Stage.DORMANT: {WAIT, GERMINATE},
    Stage.TRAINING: {WAIT, ADVANCE, PRUNE},
    Stage.BLENDING: {WAIT, PRUNE},
    Stage.HOLDING: {WAIT, RETARGET, PRUNE, FOSSILIZE},
    Stage.FOSSILIZED: {WAIT, RETIRE},
    Stage.EMBARGOED: {WAIT},
}


@pytest.mark.parametrize("stage", Stage)
def test_the_table_says_what_is_legal_in_each_stage(stage: Stage) -> None:
    ready = Facts(stage, fading=False, place_free=True, prunable=True, trained=True, held=True)
    assert {op for op in LifecycleOp if refusal(op, ready) is None} == READY[stage]


@pytest.mark.parametrize(
    ("stage", "missing", "lost"),
    [
        (Stage.DORMANT, {"place_free": False}, {GERMINATE}),
        (Stage.TRAINING, {"prunable": False}, {PRUNE}),
        (Stage.TRAINING, {"trained": False}, {ADVANCE}),
        (Stage.TRAINING, {"gradients_finite": None}, {ADVANCE}),
        (Stage.TRAINING, {"gradients_finite": False}, {ADVANCE}),
        (Stage.BLENDING, {"fading": True}, {PRUNE}),
        (Stage.HOLDING, {"held": False}, {FOSSILIZE}),
        (Stage.HOLDING, {"finite": False}, {FOSSILIZE}),
        (Stage.FOSSILIZED, {"prunable": False}, {RETIRE}),
    ],
)
def test_each_condition_of_the_table(stage: Stage, missing: dict[str, bool], lost: set[LifecycleOp]) -> None:
    ready = Facts(stage, fading=False, place_free=True, prunable=True, trained=True, held=True)
    left = legal_bits(ready._replace(**missing))  # type: ignore[arg-type]
    assert left == sum(1 << op for op in READY[stage] - lost)
    assert all(refusal(op, ready._replace(**missing)) for op in lost)  # type: ignore[arg-type]
